//! The statistics of leases.

use std::fmt;

/// What leases have done so far, as returned by [`Leases::stats`](crate::lease::Leases::stats).
///
/// Every lease that was taken is held, was released or was lost:
/// `taken == held + released + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Leases that are held. A lease that has run out counts until it is reported lost.
    pub held: usize,
    /// Leases that were taken: successful calls of `hold` and `hold_since`.
    pub taken: u64,
    /// Renewals that the store confirmed in time.
    pub renewed: u64,
    /// Renewals that failed, or were dropped unanswered, and are tried again.
    pub failed: u64,
    /// Leases that were released or dropped before they were reported lost, or that ended because
    /// their key was taken again.
    pub released: u64,
    /// Leases that were reported lost: they ran out, the store no longer had them, or the timer was
    /// shut down.
    pub lost: u64,
}

impl fmt::Display for LeaseStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaseStats { held, taken, renewed, failed, released, lost } = self;
        writeln!(f, "held {held}, taken {taken}, released {released}, lost {lost}")?;
        write!(f, "renewed {renewed}, failed {failed}")
    }
}
