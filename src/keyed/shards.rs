//! The shards of keyed timers: the keys, and the alarms in the timer that refer to them.
//!
//! # Locks
//! Each shard has one. The timer's may be taken under it. No task runs or is dropped under it.

use crate::key::Key;
use crate::key_map::{KeyMap, shard_of, shards_for};
use crate::sync::{Mutex, MutexGuard, parallelism};
use crate::{AddError, SharedClosure, Task, Timeout, Timer, TimerEntry, When};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// Dropped with the last clone: alarms refer to the shards only.
pub(crate) struct Shared<K: Eq, T> {
    timer: Timer,
    shards: Arc<Shards<K, T>>,
    /// One for each shard: the timer's tasks share it, and differ in the name of what they expire.
    alarms: Box<[SharedClosure]>,
}

pub(crate) type PaddedMap<K, T> = CachePadded<Mutex<KeyMap<K, Slot<T>>>>;

struct Shards<K, T> {
    /// Their number is a power of two. Padded, so that two locks never share a cache line.
    shards: Box<[PaddedMap<K, T>]>,
    expired: Box<dyn Fn(K, T) + Send + Sync>,
}

/// What a key has.
pub(crate) struct Slot<T> {
    pub(crate) task: T,
    /// `None` only while it is made.
    pub(crate) alarm: Option<Timeout>,
}

impl<K, T> Shared<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    pub(crate) fn new(timer: Timer, expired: impl Fn(K, T) + Send + Sync + 'static) -> Self {
        let shards = (0..shards_for(parallelism()))
            .map(|_| CachePadded::new(Mutex::new(KeyMap::new())))
            .collect();
        let shards = Arc::new(Shards { shards, expired: Box::new(expired) });
        let alarm = |shard| -> SharedClosure {
            // Padded, so that two shards' counts of references never share a cache line.
            let shards = CachePadded::new(Arc::clone(&shards));
            Arc::new(move |name| shards.expire(shard, Key::from_bits(name)))
        };
        let alarms = (0..shards.shards.len()).map(alarm).collect();
        Shared { timer, shards, alarms }
    }

    pub(crate) fn shard(&self, hash: u64) -> MutexGuard<'_, KeyMap<K, Slot<T>>> {
        let shards = self.all();
        shards[shard_of(hash, shards.len())].lock()
    }

    pub(crate) fn all(&self) -> &[PaddedMap<K, T>] {
        &self.shards.shards
    }

    /// Adds the alarm of a key to the timer.
    pub(crate) fn alarm(
        &self,
        hash: u64,
        name: Key,
        when: When,
    ) -> Result<Timeout, AddError<Task>> {
        let alarm = &self.alarms[shard_of(hash, self.alarms.len())];
        self.timer.add(TimerEntry::new(when, Task::shared(Arc::clone(alarm), name.to_bits())))
    }
}

impl<K: Eq, T> Shards<K, T> {
    /// What the key's alarm does. One that was on its way when its key was scheduled anew finds
    /// nothing: that has another name.
    fn expire(&self, shard: usize, name: Key) {
        let mut map = self.shards[shard].lock();
        let index = map.find_named(name);
        let expired = index.and_then(|index| map.remove(index));
        drop(map);
        if let Some((key, slot)) = expired {
            (self.expired)(key, slot.task);
        }
    }
}

impl<K: Eq, T> Shared<K, T> {
    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for shard in &self.shards.shards {
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
    pub(crate) fn cancel(self) -> T {
        if let Some(alarm) = self.alarm {
            drop(alarm.cancel());
        }
        self.task
    }
}

impl<K: Eq, T> Drop for Shared<K, T> {
    fn drop(&mut self) {
        drop(self.cancel_all());
    }
}
