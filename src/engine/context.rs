//! The context: the part that all shards of a driver share.

use crate::engine::clock::{Time, When};
use crate::engine::delay_queue::DelayQueue;
use crate::engine::report::catch_panic_of;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::wheel::ticks::NEVER;
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;

/// The state that the shards of a driver share; see the [module](self).
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
    pub(crate) panicked: AtomicU64,
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
        for (_, waker) in self.delay_queue.wakers() {
            self.catch_panic(|| waker.wake_by_ref());
            self.discard(waker);
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

    /// Calls user code; counts and reports a panic in it.
    pub(crate) fn catch_panic(&self, code: impl FnOnce()) {
        if catch_panic_of(&self.name, code).is_none() {
            self.count_panic();
        }
    }

    /// Drops a user's value; counts and reports a panic in that. Several values are dropped one by
    /// one: a second panic in the drop of one value ends the process.
    pub(crate) fn discard<T>(&self, value: T) {
        if mem::needs_drop::<T>() {
            self.catch_panic(|| drop(value));
        }
    }

    /// Counts a panic of user code. Relaxed: the count publishes nothing.
    pub(crate) fn count_panic(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the present, if it had to be read or is cheap to read, or else zero; and the
    /// deadline.
    ///
    /// Always inlined: the answer takes three registers.
    #[inline(always)]
    pub(crate) fn resolve(&self, when: When) -> (u64, u64) {
        let time = &self.time;
        match when {
            When::After(delay) => {
                let now = time.now();
                (now, time.deadline_after(now, delay))
            }
            When::At(instant) => (time.cheap_now(), time.deadline_at(instant)),
            When::Never => (0, NEVER),
        }
    }

    /// Takes a permit for another entry, unless all are taken, and returns whether it did. Never
    /// goes above the limit, not even for a moment: otherwise one refused `add` could make another
    /// one fail that fits.
    ///
    /// Relaxed: the count publishes nothing; the entries lie behind their shard's lock.
    #[inline]
    pub(crate) fn take_permit(&self) -> bool {
        let Some(max) = self.max_pending else { return true };
        let one_more = |pending| (pending < max).then_some(pending + 1);
        self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Takes a permit even if all are taken: for an entry that cannot be refused.
    pub(crate) fn overdraw(&self) {
        if self.max_pending.is_some() {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn release_permits(&self, permits: usize) {
        if self.max_pending.is_some() {
            self.pending.fetch_sub(permits, Ordering::Relaxed);
        }
    }
}
