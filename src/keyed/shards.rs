//! The shards of keyed timers: the keys, and the alarms in the timer that refer to them.
//!
//! A key's deadline stands beside its task, and is the truth. Its alarm in the timer never goes off
//! later: to extend a deadline is to write it down here, under one lock and without the timer. An
//! alarm that has gone off too early is set again.
//!
//! # Locks
//! Each shard has one. The timer's may be taken under it. No task runs or is dropped under it.

use crate::store::key::Key;
use crate::store::key_map::{KeyMap, shard_of, shards_for};
use crate::sync::{Mutex, MutexGuard, parallelism};
use crate::timer::Timer;
use crate::timer::alarm::Alarm;
use crate::timer::entry::{Task, TimerEntry, When};
use crate::timer::error::AddError;
use crate::timer::report::Contained;
use crate::timer::timeout::Timeout;
use crossbeam_utils::CachePadded;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// What the clones share besides: when it goes with the last one, all keys go. An alarm that is
/// under way may keep [`Shared`] a little longer.
pub(crate) struct Owner<K: Eq, T>(pub(crate) Arc<Shared<K, T>>);

/// Alarms refer to it weakly.
pub(crate) struct Shared<K: Eq, T> {
    timer: Timer,
    /// Their number is a power of two. Padded, so that two locks never share a cache line.
    shards: Box<[PaddedMap<K, T>]>,
    /// One for each shard: its tasks expire keys by name.
    alarms: Box<[Alarm]>,
    expired: Contained<Box<dyn Fn(K, T) + Send + Sync>>,
}

pub(crate) type PaddedMap<K, T> = CachePadded<Mutex<KeyMap<K, Slot<T>>>>;

/// What a key has.
pub(crate) struct Slot<T> {
    pub(crate) task: T,
    /// `None`: so far away that no `Instant` can tell.
    pub(crate) deadline: Option<Instant>,
    /// `None` only while it is made, or after a shutdown of the timer.
    pub(crate) alarm: Option<Timeout>,
}

impl<K, T> Shared<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    pub(crate) fn new(timer: Timer, expired: impl Fn(K, T) + Send + Sync + 'static) -> Arc<Self> {
        let count = shards_for(parallelism());
        let shards = (0..count).map(|_| CachePadded::new(Mutex::new(KeyMap::new()))).collect();
        Arc::new_cyclic(|shared: &Weak<Self>| {
            let alarm = |shard| Alarm::new(shared, move |shared, name| shared.expire(shard, name));
            let alarms = (0..count).map(alarm).collect();
            Shared { timer, shards, alarms, expired: Contained::new(Box::new(expired)) }
        })
    }

    /// When that is; `None` if it is so far away that no `Instant` can tell.
    pub(crate) fn deadline(&self, when: When) -> Option<Instant> {
        match when {
            When::After(delay) => self.timer.now().checked_add(delay),
            When::At(deadline) => Some(deadline),
        }
    }

    /// Adds the alarm of a key to the timer.
    pub(crate) fn alarm(
        &self,
        hash: u64,
        name: Key,
        deadline: Option<Instant>,
    ) -> Result<Timeout, AddError<Task>> {
        self.timer.add(self.alarm_at(shard_of(hash, self.alarms.len()), name, deadline))
    }

    fn alarm_at(&self, shard: usize, name: Key, deadline: Option<Instant>) -> TimerEntry {
        TimerEntry::new(When::at_or_never(deadline), self.alarms[shard].task(name))
    }

    /// What an alarm does. One that was on its way when its key was scheduled anew finds nothing:
    /// that has another name.
    fn expire(&self, shard: usize, name: Key) {
        let now = self.timer.now();
        let mut map = self.shards[shard].lock();
        let Some(index) = map.find_named(name) else { return };
        let slot = map.at_mut(index);
        if slot.deadline.is_none_or(|deadline| now < deadline) {
            // It gave its permit back when it went off, so it is not refused for want of one; and
            // after a shutdown nothing expires any more.
            let alarm = self.alarm_at(shard, name, slot.deadline);
            slot.alarm = self.timer.add_beyond_limit(alarm).ok();
            return;
        }
        let expired = map.remove(index);
        drop(map);
        if let Some((key, slot)) = expired {
            (self.expired)(key, slot.task);
        }
    }
}

impl<K: Eq, T> Shared<K, T> {
    pub(crate) fn shard(&self, hash: u64) -> MutexGuard<'_, KeyMap<K, Slot<T>>> {
        self.shards[shard_of(hash, self.shards.len())].lock()
    }

    pub(crate) fn all(&self) -> &[PaddedMap<K, T>] {
        &self.shards
    }

    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            // A few at a time, so that the lock is never held for long.
            loop {
                shard.lock().take_some(64, &mut batch);
                if batch.is_empty() {
                    break;
                }
                all.extend(batch.drain(..).map(|(key, slot)| (key, slot.cancel())));
            }
        }
        all
    }
}

impl<T> Slot<T> {
    /// Moves the deadline. To a later one that is only written down.
    pub(crate) fn move_to(&mut self, deadline: Option<Instant>) {
        if let (Some(deadline), Some(alarm)) = (deadline, &self.alarm) {
            if self.deadline.is_none_or(|former| deadline < former) {
                // An alarm that has gone off finds the deadline here.
                alarm.reschedule_at(deadline);
            }
        }
        self.deadline = deadline;
    }

    /// Moves the deadline, but not to an earlier one.
    pub(crate) fn extend_to(&mut self, deadline: Option<Instant>) {
        if let (Some(later), Some(former)) = (deadline, self.deadline) {
            self.deadline = Some(later.max(former));
        } else {
            self.deadline = None;
        }
    }

    pub(crate) fn cancel(self) -> T {
        if let Some(alarm) = self.alarm {
            drop(alarm.cancel());
        }
        self.task
    }
}

impl<K: Eq, T> Drop for Owner<K, T> {
    fn drop(&mut self) {
        self.0.cancel_all().into_iter().for_each(|key_and_task| {
            self.0.timer.catch_panic(|| drop(key_and_task));
        });
    }
}
