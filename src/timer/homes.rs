//! The homes: which of a timer's shards a thread adds to.

use crate::engine::owner::Shards;
use crate::engine::shard::{Body, Refusal, Shard, Times};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread_number;
use crate::timer::entry::TimerEntry;
use crate::timer::error::AddError;
use crate::timer::tasks::Tasks;
use crate::timer::timeout::Timeout;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// Where threads add to a timer; see the [module](self). Whoever adds may keep it alive.
pub(crate) struct Homes<T: Send + 'static> {
    pub(crate) shards: Arc<Shards<Tasks<T>>>,
    /// Their number is a power of two.
    pairs: Box<[CachePadded<Pair<T>>]>,
}

/// Two shards, of which a thread adds to one; see [`Homes::home`].
struct Pair<T: 'static> {
    shards: [&'static Shard<Tasks<T>>; 2],
    /// Whether it is the second one.
    second: AtomicBool,
}

impl<T: Send + 'static> Homes<T> {
    pub(crate) fn new(shards: Arc<Shards<Tasks<T>>>) -> Self {
        let (set, count) = (shards.set, shards.set.len());
        let pair = |first| {
            // A single shard is a pair with itself.
            let shards = [set.at(first), set.at((first + 1).min(count - 1))];
            CachePadded::new(Pair { shards, second: AtomicBool::new(false) })
        };
        let pairs = (0..count).step_by(2).map(pair).collect();
        Homes { shards, pairs }
    }

    /// Adds an entry to the calling thread's shard.
    #[inline]
    pub(crate) fn add(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        self.add_by(entry, Body::admit)
    }

    /// Adds an entry in the same way for a caller that cannot be refused: above `max_pending` if
    /// necessary. Fails only after `shutdown`.
    pub(crate) fn add_beyond_limit(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        self.add_by(entry, Body::admit_beyond_limit)
    }

    #[inline]
    fn add_by(
        &self,
        entry: TimerEntry<T>,
        admit: impl FnOnce(&Body<Tasks<T>>) -> Result<(), Refusal>,
    ) -> Result<Timeout<T>, AddError<T>> {
        let (when, task) = (entry.when(), entry.into_task());
        let added = self.add_task(task, self.shards.context.resolve(when), admit);
        added.map_err(|(refusal, task)| AddError::of(refusal, TimerEntry::new(when, task)))
    }

    /// Adds a task whose times the caller knows, if `admit` admits it. Returns it otherwise.
    #[inline]
    pub(crate) fn add_task(
        &self,
        task: T,
        times: Times,
        admit: impl FnOnce(&Body<Tasks<T>>) -> Result<(), Refusal>,
    ) -> Result<Timeout<T>, (Refusal, T)> {
        let thread = thread_number();
        let home = self.home(thread);
        // Divided here, and not while others may wait for the lock.
        let tick = self.shards.context.time.ticks.ceil(times.1);
        let mut body = home.lock();
        if let Err(refusal) = admit(&body) {
            return Err((refusal, task));
        }
        let key = body.add_task(task, (tick, times), thread, || {
            self.pair(thread).second.fetch_xor(true, Ordering::Relaxed);
        });
        Shard::leave(body);
        Ok(Timeout::new(home, key))
    }

    /// Returns the shard to which the calling thread, with this number, adds.
    ///
    /// Each thread has a pair of shards to itself, as far as there are enough, and adds to one of
    /// them. When other threads come there often, because they cancel what this thread adds, it
    /// changes to the other shard of the pair, and leaves them the first one with the timers that
    /// they know. So neither thread contends for the other's lock or for the cache lines behind it.
    #[inline]
    fn home(&self, thread: u32) -> &'static Shard<Tasks<T>> {
        let pair = self.pair(thread);
        // Relaxed: either shard is right.
        pair.shards[usize::from(pair.second.load(Ordering::Relaxed))]
    }

    #[inline]
    fn pair(&self, thread: u32) -> &Pair<T> {
        &self.pairs[thread as usize & (self.pairs.len() - 1)]
    }
}
