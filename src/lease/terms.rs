//! The terms of leases: how long they last, and when they are renewed.

use std::time::Duration;

/// How long leases last, when they are renewed, and how many at once.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::lease::LeaseTerms;
///
/// // A lease of 30 s, renewed every 10 s; at most 100 in one call to the store.
/// let terms = LeaseTerms::new(Duration::from_secs(30));
/// assert_eq!(terms, terms.renew_every(Duration::from_secs(10)).batch_size(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    pub(crate) lease: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) batch_size: usize,
}

/// The longest lease, 100 years: what is added to the present then has a name.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl LeaseTerms {
    /// Creates the terms of leases that run out `lease` after they were taken or renewed. `lease`
    /// is clamped to a range from one microsecond to 100 years. Default: renewal after a third of
    /// it, at most 100 leases in one call to the store.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        let lease = lease.clamp(Duration::from_micros(1), LONGEST);
        LeaseTerms { lease, renew_every: lease / 3, batch_size: 100 }
    }

    /// Sets how long after it was taken or renewed a lease is renewed, clamped to a range from one
    /// nanosecond to seven eighths of the lease. A shorter period survives more failures. A renewal
    /// may be earlier by an eighth of the period, to join others in one batch.
    #[must_use]
    pub fn renew_every(mut self, period: Duration) -> Self {
        self.renew_every = period.clamp(Duration::from_nanos(1), self.lease - self.lease / 8);
        self
    }

    /// Sets the maximum number of leases that are renewed in one call to the store; at least 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size.max(1);
        self
    }

    /// Returns by how much a renewal may be earlier than it is due.
    pub(crate) fn slack(&self) -> Duration {
        self.renew_every / 8
    }

    /// Returns how long after a failure a renewal is tried again.
    pub(crate) fn retry(&self) -> Duration {
        (self.renew_every / 4).max(Duration::from_nanos(1))
    }
}
