//! The context: what all shards of a timer share.

use crate::engine::clock::Time;
use crate::engine::delay_queue::DelayQueue;
use crate::engine::report::catch_panic_of;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// What the shards of a timer share; see the [module](self).
pub(crate) struct TimerContext {
    /// The name of the timer.
    pub(crate) name: Arc<str>,
    pub(crate) time: Time,
    /// Padded, like the other thing that many threads change: all of them read the rest.
    pub(crate) delay_queue: CachePadded<DelayQueue>,
    /// The most entries that may be pending, if there is a limit; and how many are, only then.
    max_pending: Option<usize>,
    pending: CachePadded<AtomicUsize>,
    /// Panics of user code that were contained.
    panicked: AtomicU64,
}

/// Whether an entry counts against `max_pending`, or is one that cannot be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Keep,
    Exceed,
}

/// The reason why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

/// The duty to wake listeners, once no lock is held.
#[must_use = "dropped at once, it wakes at once"]
#[derive(Default)]
pub(crate) struct Wake(Option<Arc<TimerContext>>);

impl Wake {
    pub(crate) fn of(context: &Arc<TimerContext>) -> Self {
        Wake(Some(Arc::clone(context)))
    }
}

impl Drop for Wake {
    #[inline]
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.wake_listeners();
        }
    }
}

impl TimerContext {
    pub(crate) fn new(name: Arc<str>, time: Time, max_pending: Option<usize>) -> Self {
        let (pending, panicked) = (CachePadded::default(), AtomicU64::new(0));
        let delay_queue = CachePadded::default();
        TimerContext { name, time, delay_queue, max_pending, pending, panicked }
    }

    /// Wakes the listeners: futures and loops that drive the timer. The caller holds no lock, as
    /// this is the user's code.
    #[cold]
    pub(crate) fn wake_listeners(&self) {
        for waker in self.delay_queue.wakers() {
            self.catch_panic(|| waker.wake_by_ref());
        }
    }

    /// Ends the waits of threads and listeners, now and later.
    pub(crate) fn stop(&self) {
        self.delay_queue.stop();
        self.wake_listeners();
    }

    /// Has threads and listeners look at a manual clock that has moved.
    pub(crate) fn clock_moved(&self) {
        if self.delay_queue.clock_moved() {
            self.wake_listeners();
        }
    }

    /// Calls user code; counts and reports a panic in it. Returns nothing then.
    pub(crate) fn catch_panic<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        let returned = catch_panic_of(&self.name, code);
        if returned.is_none() {
            self.count_panic();
        }
        returned
    }

    /// Counts a panic of user code. Relaxed: the count publishes nothing.
    pub(crate) fn count_panic(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Takes a permit for another entry. Never goes above the limit if the entry can be refused,
    /// not even for a moment: otherwise one refused `add` could make another one fail that fits.
    ///
    /// Relaxed: the count publishes nothing; the entries lie behind their shard's lock.
    #[inline]
    pub(crate) fn take_permit(&self, limit: Limit) -> Result<(), Refusal> {
        let Some(max) = self.max_pending else { return Ok(()) };
        let one_more = |pending| (pending < max || limit == Limit::Exceed).then_some(pending + 1);
        let taken = self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.map(|_| ()).map_err(|_| Refusal::Full)
    }

    #[inline]
    pub(crate) fn release_permits(&self, permits: usize) {
        if self.max_pending.is_some() {
            self.pending.fetch_sub(permits, Ordering::Relaxed);
        }
    }
}
