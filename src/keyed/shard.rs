//! A shard's keys, and the source that consists of these shards.
//!
//! A key, its task and its deadline are an entry of a shard's wheel; an index finds it. An expired
//! key leaves at the flush, as a task of the timer of closures.
//!
//! A key's `Eq` and the caller's closures may run under a shard's lock. No task runs there, and
//! neither tasks nor keys are dropped.

use crate::engine::pool::Shards;
use crate::engine::shard::{AnyShard, Extra, Limit, Shard, ShardGuard, ShardState};
use crate::engine::source::{Source, Turn};
use crate::table::{KeyTable, shard_of};
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::registered::Closures;
use crate::wheel::tick::{Due, Nanos};
use std::borrow::Borrow;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct Keyed<K, T> {
    pub(crate) key: K,
    pub(crate) task: T,
    hash: u32,
}

/// Where the keys are in the shard's slab.
pub(crate) type Index = KeyTable<u32>;
/// Loses its keys under the lock under which the wheel loses them.
impl Extra for Index {}

pub(crate) type KeyState<K, T> = ShardState<Keyed<K, T>, Index>;
pub(crate) type KeyGuard<'a, K, T> = ShardGuard<'a, Keyed<K, T>, Index>;

/// Called with each expired key and task, and with the keys, to add it again.
pub(crate) type OnExpired<K, T> = Box<dyn Fn(&Keys<K, T>, K, T) + Send + Sync>;

/// The keys of a keyed timer; see the [module](self).
pub(crate) struct Keys<K: 'static, T: 'static> {
    pub(crate) shards: Shards<Keyed<K, T>, Index>,
    pub(crate) closures: Closures,
    pub(crate) on_expired: OnExpired<K, T>,
}

impl<K: Send + 'static, T: Send + 'static> Source for Keys<K, T> {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        self.closures
            .flush(&self.shards.set[ordinal], turn, |state, flush, tasks| {
                state.flush(flush, |index, at, Keyed { key, task, hash }| {
                    index.remove(hash, |index| *index == at.index);
                    let keys = Arc::clone(&self);
                    tasks.push(Task::new(move || (keys.on_expired)(&keys, key, task)));
                });
            })
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.any(ordinal)
    }

    fn clear(&self) {
        drop(self.cancel_all());
    }

    fn assert_invariants(&self) {
        self.shards
            .set
            .iter()
            .for_each(|shard| shard.lock().assert_invariants(|_| true));
    }
}

impl<K: 'static, T: 'static> Keys<K, T> {
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> &Shard<Keyed<K, T>, Index> {
        &self.shards.set[shard_of(hash, self.shards.set.len())]
    }

    /// Adds an expired key again, even if the timer is full, unless the key is there or its keyed
    /// timer has gone.
    pub(crate) fn keep(&self, hash: u64, key: K, entry: TimerEntry<T>)
    where
        K: Eq,
    {
        let due = self.shards.context.time.due(entry.when());
        // Declared last, so released first: a rejected key is dropped without the lock.
        let mut state = self.of(hash).lock();
        if state.find(hash, &key).is_none() && state.admit(Limit::Exceed).is_ok() {
            state.add_key(hash, due, key, entry.into_task());
            Shard::unlock(state);
        }
    }

    /// Removes all keys.
    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let mut all = Vec::new();
        // The list of all is moved as it grows, in time proportional to it: not under a lock.
        self.cancel_if(|_, _| true, |cancelled| all.extend(cancelled));
        all
    }

    /// Removes the keys for which `is_unwanted` returns true, one chunk of a slab at a time, so
    /// that no lock is held for long. Hands each chunk's keys to `out` with no lock held.
    pub(crate) fn cancel_if(
        &self,
        mut is_unwanted: impl FnMut(&mut KeyState<K, T>, u32) -> bool,
        mut out: impl FnMut(Vec<(K, T)>),
    ) {
        for shard in self.shards.set.iter() {
            for chunk in 0.. {
                // Declared before the lock, so dropped after it if `is_unwanted` panics.
                let mut cancelled = Vec::new();
                let Some(mut state) = shard.lock_chunk(chunk) else {
                    break;
                };
                let keys: Vec<_> = state.keys_of(chunk).collect();
                for at in keys {
                    if is_unwanted(&mut state, at.index) {
                        cancelled.extend(state.cancel_key(at.index));
                    }
                }
                drop(state);
                out(cancelled);
            }
        }
    }
}

impl<K, T> KeyState<K, T> {
    #[inline]
    pub(crate) fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        self.extra
            .find(hash as u32, |index| self.at(*index).key.borrow() == key)
            .copied()
    }

    /// Adds a task for a key, or replaces its task at `found`. Takes the key only if it is new: no
    /// key is dropped under the lock.
    #[inline]
    pub(crate) fn put(
        &mut self,
        hash: u64,
        found: Option<u32>,
        due: Due,
        key: &mut Option<K>,
        entry: TimerEntry<T>,
    ) -> Result<Option<T>, AddError<T>> {
        if let Some(index) = found.filter(|_| !self.is_closed()) {
            self.move_to(index, due);
            return Ok(Some(mem::replace(
                &mut self.at_mut(index).task,
                entry.into_task(),
            )));
        }
        if let Err(refusal) = self.admit(Limit::Keep) {
            // If the shard is closed, also for a key that is there.
            return Err(AddError::of(refusal, entry));
        }
        self.add_key(
            hash,
            due,
            key.take().expect("it is there until then"),
            entry.into_task(),
        );
        Ok(None)
    }

    #[inline]
    pub(crate) fn is_due(&self, index: u32, present: Nanos) -> bool {
        self.deadline_at(index) <= present
    }

    /// Adds a key that was admitted, and is not present.
    #[inline]
    pub(crate) fn add_key(&mut self, hash: u64, due: Due, key: K, task: T) {
        let hash = hash as u32;
        let added = self.add(due, Keyed { key, task, hash });
        self.extra.insert(hash, added.index);
    }

    #[inline]
    pub(crate) fn deadline(&self, index: u32) -> Option<Instant> {
        self.instant_of(self.deadline_at(index))
    }

    /// Removes a key before it expires.
    pub(crate) fn cancel_key(&mut self, index: u32) -> Option<(K, T)> {
        let Keyed { key, task, hash } = self.cancel_at(index)?;
        self.extra.remove(hash, |other| *other == index);
        Some((key, task))
    }

    /// Removes a key with a single lookup in the index.
    #[inline]
    pub(crate) fn take<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<(K, T)>
    where
        K: Borrow<Q>,
    {
        let (index, wheel) = self.split();
        let found = index.remove(hash as u32, |at| wheel.at(*at).key.borrow() == key)?;
        let Keyed { key, task, .. } = self.cancel_at(found)?;
        Some((key, task))
    }

    pub(crate) fn assert_keys(&self)
    where
        K: Eq,
    {
        for (_, own) in self.extra.0.iter() {
            let item = self.at(*own);
            let is_meant = |other: &u32| self.at(*other).key == item.key;
            assert_eq!(
                self.extra.find(item.hash, is_meant),
                Some(own),
                "found by its key"
            );
        }
        assert_eq!(self.extra.0.len(), self.len(), "every key is found");
    }
}
