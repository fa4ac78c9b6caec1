//! The shards of a timer: which of them a thread adds to, and what they hold together.

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::thread_number;
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::DelayQueue;
use crate::timer::pool;
use crate::timer::shard::Shard;
use crate::timer::stats::Stats;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::snapshot::Snapshot;
use crossbeam_utils::CachePadded;
use std::collections::HashMap;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Shards<T: Send + 'static> {
    /// Their number is a power of two.
    shards: Box<[&'static Shard<T>]>,
    /// Which shard of its pair a thread adds to, 0 or 1: see [`Shards::home`].
    active: Box<[CachePadded<AtomicUsize>]>,
}

impl<T: Send + 'static> Shards<T> {
    /// Of these, whose number is a power of two.
    pub(crate) fn new(shards: Box<[&'static Shard<T>]>) -> Self {
        let pairs = shards.len().div_ceil(2);
        let active = (0..pairs).map(|_| CachePadded::new(AtomicUsize::new(0))).collect();
        Shards { shards, active }
    }

    /// The shard that the calling thread adds to.
    ///
    /// Each thread has a pair of shards to itself, as far as there are enough, and adds to one of
    /// them. When other threads come there often, because they cancel what this one adds, it goes
    /// to the other one of the pair, and leaves them the first with the timers that they know. So
    /// neither meets the other's lock, nor the cache lines behind it.
    #[inline]
    pub(crate) fn home(&self) -> &'static Shard<T> {
        let pair = self.pair();
        // Relaxed: either shard is right.
        let shard = 2 * pair + self.active[pair].load(Ordering::Relaxed);
        self.shards[shard & (self.shards.len() - 1)]
    }

    /// Lets the calling thread's pair change over to its other shard.
    pub(crate) fn leave_crowd(&self) {
        self.active[self.pair()].fetch_xor(1, Ordering::Relaxed);
    }

    #[inline]
    fn pair(&self) -> usize {
        thread_number() as usize & (self.active.len() - 1)
    }

    /// The shard of a shard.
    #[inline]
    pub(crate) fn of(&self, shard: u32) -> &'static Shard<T> {
        self.shards[shard as usize]
    }

    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    /// How many timers are pending.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().core.len()).sum()
    }

    pub(crate) fn add_to(&self, stats: &mut Stats) {
        for shard in &self.shards {
            let state = shard.lock();
            stats.absorb(&state.core.counters, state.core.len());
        }
    }

    /// How the levels of all shards stand at `now`. Lets go of each lock after some buckets.
    pub(crate) fn snapshot(&self, now: u64) -> Snapshot {
        let mut snapshot = Snapshot::new(self.count());
        for shard in &self.shards {
            let mut cursor = 0;
            while snapshot.absorb(&shard.lock().core, &mut cursor, now) {}
        }
        snapshot
    }

    /// Closes all shards, and hands what was pending to `out`, with its deadline.
    pub(crate) fn drain(&self, context: &TimerContext, mut out: impl FnMut(u64, T)) {
        self.shards.iter().for_each(|shard| shard.drain(context, &mut out));
    }

    /// Checks every shard, and that the delay queue has each armed bucket once.
    pub(crate) fn assert_invariants(&self, delay_queue: &DelayQueue) {
        let mut queued = HashMap::new();
        delay_queue
            .for_each(|it: &Expiration| *queued.entry((it.shard, it.bucket)).or_insert(0) += 1);
        for shard in &self.shards {
            shard.assert_invariants(|shard, id| queued.get(&(shard, id)).copied().unwrap_or(0));
        }
    }
}

impl<T: Send + 'static> Drop for Shards<T> {
    /// Nothing is pending: whoever drops the timer has drained it.
    fn drop(&mut self) {
        self.shards.iter().for_each(|shard| pool::put(shard));
    }
}
