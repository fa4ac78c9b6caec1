//! The part: an owner that is built on a timer, as keyed timers and purgatories are.
//!
//! An entry of a part that expires stays where it is until its alarm, a task of the timer, arrives
//! through the executor. Meanwhile it is filed nowhere. The alarm then expires it by its key.
//!
//! An alarm that finds its shard held for long is put off: the thread that runs it, the reaper for
//! example, has others to run. Its key then waits beside the shard's lock, and the delay queue has
//! a bucket that stands for all such keys. A turn takes them out when it has the shard, as it does
//! with any bucket, and hands them over again. So what waits is no timer.
//!
//! # Locks
//! The lock of the alarms that were put off may be taken under a shard's, and the delay queue's
//! under it.

use crate::engine::delay_queue::DelayQueue;
use crate::engine::owner::{Driven, Expired, MAX_SHARDS, Owned, Owner, Set, Shards, ordinal_of};
use crate::engine::shard::{Body, Content};
use crate::store::slab::Key;
use crate::store::table::shards_for;
use crate::sync::{Mutex, MutexGuard, parallelism};
use crate::timer::Timer;
use crate::timer::entry::{SharedClosure, Task};
use crate::timer::tasks::Tasks;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::wheels::OUTSIDE;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Weak};

/// Slots of each wheel: few, because there are many shards, and a deadline is seldom near.
const WHEEL_SIZE: usize = 64;

/// How many alarms are handed over again at once.
const BATCH: usize = if cfg!(tickwheel_model) { 1 } else { 128 };

/// A content whose entries expire by alarms.
pub(crate) trait Alarmed: Content + 'static {
    /// What the owner has once, for all its shards.
    type Shared;

    /// Whether an alarm that is dropped runs then.
    const RUNS_WHEN_DROPPED: bool = false;

    /// Notes that an entry was flushed. If it is due, it is filed nowhere any more. Returns whether
    /// there has to be an alarm.
    fn flushed(item: &mut Self::Item, is_due: bool) -> bool;

    /// Expires an entry for its alarm, if its deadline has passed.
    fn alarm(owned: &Arc<Owned<Self>>, ordinal: usize, key: Key);

    /// Ends what is left when the part's last reference is dropped.
    fn end(owned: &Owned<Self>);
}

/// An owner that is built on a timer; see the [module](self). Alarms refer to it weakly.
pub(crate) struct Part<C: Alarmed> {
    pub(crate) timer: Timer,
    pub(crate) owned: Arc<Owned<C>>,
}

/// What a part has beside its shards.
pub(crate) struct Alarms<S> {
    /// Those of each shard.
    alarms: Box<[ShardAlarms]>,
    /// What hands their tasks over. Weakly: a call that is under way when the timer ends must not
    /// keep the executor alive.
    pub(crate) closures: Weak<Owned<Tasks<Task>>>,
    pub(crate) shared: S,
}

impl<C: Alarmed> Part<C> {
    /// Registers shards with the timer's driver.
    pub(crate) fn new(timer: Timer, shared: C::Shared) -> Arc<Self>
    where
        Owned<C>: Send + Sync,
        Set<C>: Sync,
    {
        // In virtual time no hash decides an order, unless the timer has several shards itself. In
        // models threads meet in several.
        let is_manual = timer.base.driver.context.time.clock.as_manual().is_some();
        let is_manual = is_manual && !cfg!(tickwheel_model);
        let is_single = is_manual && timer.base.layout.0 == 1;
        let count = if is_single { 1 } else { shards_for(parallelism()).min(MAX_SHARDS) };
        let closures = Arc::downgrade(timer.base.closures());
        let owned = timer.base.driver.register(|first| {
            Arc::new_cyclic(|owned: &Weak<Owned<C>>| {
                let shards = Shards::new(&timer.base.driver.context, (count, WHEEL_SIZE), first);
                let alarm = |ordinal| {
                    let owned = Weak::clone(owned);
                    ShardAlarms::new(move |key| {
                        if let Some(owned) = owned.upgrade() {
                            C::alarm(&owned, ordinal, key);
                        }
                    })
                };
                let alarms = (0..count).map(alarm).collect();
                Owned { shards, beside: Alarms { alarms, closures, shared } }
            })
        });
        Arc::new(Part { timer, owned })
    }
}

impl<C: Alarmed> Drop for Part<C> {
    fn drop(&mut self) {
        C::end(&self.owned);
        self.owned.beside.alarms.iter().for_each(ShardAlarms::end);
        self.timer.base.driver.deregister(self.owned.shards.first);
    }
}

impl<C: Alarmed> Owned<C> {
    /// Locks a shard for an alarm. Puts the alarm off if a thread holds the shard for long; waits
    /// after the last turn, and in virtual time, as a turn does.
    pub(crate) fn lock_for_alarm(
        &self,
        ordinal: usize,
        key: Key,
    ) -> Option<MutexGuard<'_, Body<C>>> {
        let Shards { set, context, first, .. } = &*self.shards;
        set.at(ordinal).lock_for_turn(true).or_else(|| {
            if context.time.clock.as_manual().is_some() {
                return Some(set.at(ordinal).insist());
            }
            let number = first + ordinal as u64;
            let alarms = &self.beside.alarms[ordinal];
            let Some(owes) = alarms.put_off(&context.delay_queue, number, key) else {
                return Some(set.at(ordinal).lock());
            };
            if owes {
                context.wake_listeners();
            }
            None
        })
    }
}

impl<C: Alarmed> Driven for C {
    type Beside = Alarms<C::Shared>;

    fn flush(
        owned: &Owned<Self>,
        body: &mut Body<Self>,
        (expiration, now): (Expiration, u64),
        expired: &mut Expired,
    ) -> Option<Expiration> {
        let (alarm, tasks) = (&owned.beside.alarms[ordinal_of(expiration.shard)], expired.items());
        if expiration.bucket == OUTSIDE {
            let unfinished = alarm.take(tasks).then_some(expiration);
            expired.again = tasks.len();
            return unfinished;
        }
        let closed = body.closed;
        body.core.flush_in_place(expiration, now, |key, item, is_due| {
            // After a shutdown nothing expires any more.
            if C::flushed(item, is_due) && !closed {
                tasks.push(alarm.task(key, C::RUNS_WHEN_DROPPED));
            }
        });
        None
    }

    fn hand_over(owned: &Owned<Self>, expired: &mut Expired) -> usize {
        let again = mem::take(&mut expired.again);
        let closures = owned.beside.closures.upgrade();
        closures.map_or(0, |closures| closures.hand_over(expired) - again)
    }
}

/// The alarms of one shard: tasks that share one closure, so none of them allocates.
pub(crate) struct ShardAlarms {
    expire: SharedClosure,
    /// While there are any, their bucket is queued, or a turn has it in hand. `None` once the part
    /// has gone.
    put_off: Mutex<Option<VecDeque<Key>>>,
}

impl ShardAlarms {
    fn new(expire: impl Fn(Key) + Send + Sync + 'static) -> Self {
        // So long that two alarms' counts of references never share a cache line. (Aligned, each
        // would take twice as much.)
        let padding = [0u64; 12];
        let expire = Arc::new(move |key| {
            let _ = &padding;
            expire(Key::from_bits(key));
        });
        ShardAlarms { expire, put_off: Mutex::new(Some(VecDeque::new())) }
    }

    /// Returns the task of one entry.
    fn task(&self, key: Key, runs_when_dropped: bool) -> Task {
        let (expire, key) = (Arc::clone(&self.expire), key.to_bits());
        if runs_when_dropped { Task::due(expire, key) } else { Task::shared(expire, key) }
    }

    /// Puts the alarm of a key off. Returns whether listeners have to be woken; `None` if no turn
    /// will come any more.
    fn put_off(&self, queue: &DelayQueue, shard: u64, key: Key) -> Option<bool> {
        let mut keys = self.put_off.lock();
        let Some(keys) = &mut *keys else { return Some(false) };
        if queue.is_stopped() {
            return None;
        }
        keys.push_back(key);
        if keys.len() > 1 {
            return Some(false);
        }
        Some(queue.offer(Expiration { tick: 0, start: 0, bucket: OUTSIDE, shard }))
    }

    /// Takes out alarms that were put off, to be handed over again. Returns whether there are more.
    fn take(&self, out: &mut Vec<Task>) -> bool {
        let mut keys = self.put_off.lock();
        let Some(keys) = &mut *keys else { return false };
        let batch = keys.len().min(BATCH);
        out.extend(keys.drain(..batch).map(|key| self.task(key, false)));
        if keys.is_empty() {
            *keys = VecDeque::new(); // There may have been very many.
        }
        !keys.is_empty()
    }

    /// Forgets what was put off, now and later: the part has gone, and its number on the driver may
    /// be given to another owner.
    fn end(&self) {
        *self.put_off.lock() = None;
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;

    #[test]
    fn names_that_have_gone_leave_no_memory_behind() {
        let (alarm, queue) = (ShardAlarms::new(|_| ()), DelayQueue::default());
        for number in 0..1000 {
            assert!(alarm.put_off(&queue, 0, Key::from_bits(number)).is_some());
        }
        let mut tasks = Vec::new();
        while alarm.take(&mut tasks) {}
        let room = alarm.put_off.lock().as_ref().map(VecDeque::capacity);
        assert_eq!((tasks.len(), room), (1000, Some(0)));
    }
}
