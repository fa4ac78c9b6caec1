//! The statistics of a purgatory.

use std::fmt;

/// What a purgatory has done so far, as returned by
/// [`Purgatory::stats`](crate::purgatory::Purgatory::stats).
///
/// Every operation that was accepted is still delayed, was completed, expired or cancelled, or had
/// a check that panicked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgatoryStats {
    /// Entries that are watched: an operation counts once for each of its keys.
    pub watched: usize,
    /// Operations that are waiting.
    pub delayed: usize,
    /// Operations that one of the two checks of `try_complete_else_watch` completed.
    pub completed_at_once: u64,
    /// Operations that a trigger completed.
    pub completed_by_trigger: u64,
    /// Operations that `force_complete` completed.
    pub completed_by_force: u64,
    /// Operations whose time was up.
    pub expired: u64,
    /// Operations that were cancelled, or returned by `cancel_for_key` or `shutdown`; not those
    /// that were handed back to the adding thread because of a shutdown.
    pub cancelled: u64,
    /// Panics of operations' code, which the timer's statistics do not count again.
    pub panicked: u64,
}

impl PurgatoryStats {
    /// Returns how many operations were completed before their time was up.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed_at_once + self.completed_by_trigger + self.completed_by_force
    }
}

impl fmt::Display for PurgatoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "delayed {}, watched {}", self.delayed, self.watched)?;
        writeln!(
            f,
            "completed {} at once, {} by trigger, {} by force",
            self.completed_at_once, self.completed_by_trigger, self.completed_by_force
        )?;
        let PurgatoryStats { expired, cancelled, panicked, .. } = self;
        write!(f, "expired {expired}, cancelled {cancelled}, panicked {panicked}")
    }
}
