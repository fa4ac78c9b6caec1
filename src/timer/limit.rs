//! The limit: how many timers may be pending at once.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// A count of permits that all adders share; only timers with `max_pending` have one.
#[derive(Debug)]
pub(crate) struct Limit {
    max: usize,
    pending: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(max: usize) -> Self {
        Limit { max, pending: AtomicUsize::new(0) }
    }

    /// Takes a permit, unless all are taken, and returns whether it did. Never goes above the
    /// limit, not even for a moment: otherwise one refused `add` could make another one fail that
    /// fits.
    ///
    /// Relaxed: the count publishes nothing; the entries lie behind their shard's lock.
    pub(crate) fn acquire(&self) -> bool {
        let one_more = |pending| (pending < self.max).then_some(pending + 1);
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Takes a permit even if all are taken: for a task that cannot be refused.
    pub(crate) fn overdraw(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, permits: usize) {
        self.pending.fetch_sub(permits, Ordering::Relaxed);
    }
}
