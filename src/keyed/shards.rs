//! The shards of keyed timers: an owner of wheels on a timer's driver.
//!
//! # Locks
//! Each shard has one, of the same rank as the lock of a timer's shard: that of its alarms and
//! the delay queue's may be taken under it, and a turn takes it. A key's `Eq` may run under it, and
//! what a caller does with an entry or in a closure; no task runs there, and neither tasks nor keys
//! are dropped.

use crate::keyed::alarms::Alarms;
use crate::keyed::locked::Locked;
use crate::keyed::shard::Shard;
use crate::store::key::Key;
use crate::store::key_map::{shard_of, shards_for};
use crate::sync::{MutexGuard, parallelism};
use crate::timer::Timer;
use crate::timer::context::TimerContext;
use crate::timer::entry::Task;
use crate::timer::owner::{Expired, Flush, FlushStep, MAX_SHARDS, Owned, Owner, Queued, place_of};
use crate::timer::report::Contained;
use crate::timer::shard::Wakeup;
use crate::timer::shard_lock::ShardLock;
use crate::timer::stats::Stats;
use crate::timer::tasks::Tasks;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use crate::wheel::wheels::{OUTSIDE, Wheels};
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Slots of each wheel: few, because there are many shards, and a deadline is seldom near.
const WHEEL_SIZE: usize = 64;

/// The number of keys that are taken out under one hold of a lock.
const BATCH: usize = 64;

/// The shards of keyed timers; see the [module](self). Alarms refer to them weakly.
pub(crate) struct Shards<K: Eq, T> {
    pub(crate) context: Arc<TimerContext>,
    /// Their number is a power of two. Padded, so that two locks never share a cache line.
    shards: Box<[PaddedShard<K, T>]>,
    /// The number of the first shard.
    first: u32,
    /// Those of each shard: their tasks expire keys by name.
    alarms: Box<[Alarms]>,
    /// What hands those tasks over. Weakly: a callback that is under way when the timer ends must
    /// not keep the executor alive.
    closures: Weak<Owned<Tasks<Task>>>,
    expired: Contained<Box<dyn Fn(K, T) + Send + Sync>>,
}

type PaddedShard<K, T> = CachePadded<ShardLock<Shard<K, T>>>;

impl<K, T> Shards<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    /// Registers shards with the timer's driver.
    pub(crate) fn new(timer: &Timer, expired: impl Fn(K, T) + Send + Sync + 'static) -> Arc<Self> {
        let context = Arc::clone(&timer.driver().context);
        let count = shards_for(parallelism()).min(MAX_SHARDS);
        timer.driver().register(|first| {
            Arc::new_cyclic(|shards: &Weak<Self>| {
                let current = context.time.ticks.floor(context.time.now());
                let shard = |number| {
                    let wheels = Wheels::new(number, WHEEL_SIZE, current);
                    CachePadded::new(ShardLock::new(Shard::new(&context, wheels)))
                };
                let alarm = |place| {
                    let shards = Weak::clone(shards);
                    Alarms::new(move |name| {
                        if let Some(shards) = shards.upgrade() {
                            shards.alarm(place, name);
                        }
                    })
                };
                Shards {
                    shards: (first..).take(count).map(shard).collect(),
                    first,
                    alarms: (0..count).map(alarm).collect(),
                    closures: Arc::downgrade(timer.base().closures()),
                    expired: Contained::new(&context.name, Box::new(expired)),
                    context,
                }
            })
        })
    }

    /// Expires a key for its alarm, if the key's deadline has passed.
    fn alarm(&self, place: usize, name: Key) {
        let Some(mut shard) = self.lock_for_alarm(place, name) else { return };
        let expired = shard.alarm(&self.context, name, self.context.time.now());
        drop(shard);
        match expired {
            Ok((key, task)) => (self.expired)(key, task),
            Err(wakes) => self.context.wake(wakes),
        }
    }

    /// Locks a shard for an alarm. Puts the alarm off if a thread holds the shard for long. In
    /// virtual time it waits, as a turn does; and after the last turn.
    fn lock_for_alarm(&self, place: usize, name: Key) -> Option<MutexGuard<'_, Shard<K, T>>> {
        let (waits, shard) = (self.context.time.clock.as_manual().is_some(), &self.shards[place]);
        shard.lock_for_turn(waits, true).or_else(|| {
            let (queue, number) = (&self.context.delay_queue, self.first + place as u32);
            let Some(wakes) = self.alarms[place].put_off(queue, number, name) else {
                return Some(shard.lock());
            };
            self.context.wake(wakes);
            None
        })
    }
}

/// The part that the clones of a keyed timer share. When it is dropped with the last clone, all
/// keys are removed. An alarm that is under way may keep the shards alive a little longer.
pub(crate) struct Registration<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    pub(crate) timer: Timer,
    pub(crate) shards: Arc<Shards<K, T>>,
}

impl<K, T> Drop for Registration<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    fn drop(&mut self) {
        for left in self.shards.cancel_all() {
            let task = self.shards.task_of(left);
            self.shards.context.discard(task);
        }
        self.shards.alarms.iter().for_each(Alarms::end);
        self.timer.driver().deregister(self.shards.first);
    }
}

impl<K: Eq, T> Shards<K, T> {
    /// Locks the shard of the keys with this hash.
    #[inline]
    pub(crate) fn lock_for(&self, hash: u64) -> Locked<'_, K, T> {
        self.lock(shard_of(hash, self.shards.len()))
    }

    #[inline]
    fn lock(&self, place: usize) -> Locked<'_, K, T> {
        Locked::new(self, &self.context, &self.shards[place])
    }

    /// Locks one shard after the other.
    fn each(&self) -> impl Iterator<Item = Locked<'_, K, T>> {
        (0..self.shards.len()).map(|place| self.lock(place))
    }

    /// Returns the task of a key that was taken out. No lock is held: the key is dropped here.
    pub(crate) fn task_of(&self, (key, task): (K, T)) -> T {
        self.context.discard(key);
        task
    }

    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for place in 0..self.shards.len() {
            let mut after = None;
            // A few at a time, so that the lock is never held for long.
            loop {
                after = self.lock(place).take_some(&self.context, after, BATCH, &mut batch);
                all.append(&mut batch);
                if after.is_none() {
                    break;
                }
            }
        }
        all
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, &T, Option<Instant>)) {
        let mut place = Some(0);
        while let Some(from) = place {
            place = self.visit_from(from, &mut visit);
        }
    }

    /// Visits the first chunk with keys at `place` or after it. A place is a shard's number, above
    /// 32 bits for the chunk's. Returns the place after that chunk, unless it is the end.
    pub(crate) fn visit_from(
        &self,
        place: u64,
        visit: &mut impl FnMut(&K, &T, Option<Instant>),
    ) -> Option<u64> {
        let mut number = usize::try_from(place >> 32).ok()?;
        let mut chunk = (place & u64::from(u32::MAX)) as usize;
        // One at a time, so that the lock is never held for long.
        while number < self.shards.len() {
            let mut visited = false;
            let mut note = |key: &K, task: &T, deadline: Option<Instant>| {
                visited = true;
                visit(key, task, deadline);
            };
            let more = self.lock(number).visit(&self.context, chunk, &mut note);
            (number, chunk) = if more { (number, chunk + 1) } else { (number + 1, 0) };
            if visited {
                break;
            }
        }
        (number < self.shards.len()).then_some((number as u64) << 32 | chunk as u64)
    }

    pub(crate) fn keys(&self) -> usize {
        self.each().map(|shard| shard.core.len()).sum()
    }

    /// Checks the keys of every shard.
    pub(crate) fn assert_keys(&self) {
        self.each().for_each(|shard| shard.assert_invariants(None));
    }
}

impl<K, T> Owner for Shards<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    fn flush(&self, step: &FlushStep, armed: &mut Vec<Expiration>, expired: &mut Expired) -> Flush {
        let place = place_of(step.shard);
        let (mut shard, expiration) = match step.poll(&self.context, &self.shards[place]) {
            Ok(polled) => polled,
            Err(flush) => return flush,
        };
        let (alarms, tasks) = (&self.alarms[place], expired.items());
        if expiration.bucket == OUTSIDE {
            let unfinished = alarms.take(tasks).then_some(expiration);
            expired.again = tasks.len();
            let wakes = self.context.delay_queue.flushed(armed.drain(..), unfinished);
            return Flush::Done(Wakeup::new(&self.context, wakes));
        }
        let hand = |name| tasks.push(alarms.task(name));
        let wakes = shard.flush(&self.context, (expiration, step.now), armed, hand);
        Flush::Done(Wakeup::new(&self.context, wakes))
    }

    fn hand_over(&self, expired: &mut Expired) -> usize {
        let again = mem::take(&mut expired.again);
        self.closures.upgrade().map_or(0, |closures| Owner::hand_over(&*closures, expired) - again)
    }

    fn forget_if_empty(&self, expiration: Expiration) -> Trimmed {
        let shard = &self.shards[place_of(expiration.shard)];
        let shard = shard.try_lock().filter(|_| expiration.bucket != OUTSIDE);
        let Some(mut shard) = shard else { return Trimmed::Live };
        self.context.forget_if_empty(&mut shard.core, expiration)
    }

    fn close(&self) {
        self.each().for_each(|mut shard| shard.closed = true);
    }

    /// Drops nothing: keyed timers keep their timer alive, so nothing can be pending here.
    fn drop_pending(&self) -> u64 {
        // mutants(1): it is not called.
        0
    }

    fn len(&self) -> usize {
        self.keys()
    }

    fn add_to(&self, stats: &mut Stats) {
        self.each().for_each(|shard| stats.absorb(&shard.core.counters, shard.core.len()));
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: u64) {
        for place in 0..self.shards.len() {
            let mut cursor = 0;
            while snapshot.absorb(&self.lock(place).core, &mut cursor, now) {}
        }
    }

    fn assert_invariants(&self, queued: &Queued) {
        self.each().for_each(|shard| shard.assert_invariants(Some(queued)));
    }
}
