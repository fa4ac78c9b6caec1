//! The keys: a source whose entries are found by their keys.
//!
//! A key, its task and its deadline are an entry of a shard's wheel; an index in the shard finds it
//! there. An expired key leaves at the flush: from then on the closure that is called with the
//! key and its task is a task of the timer of closures, on its way through the executor.
//!
//! # Locks
//! A key's `Eq` may run under a shard's lock, and what a caller does with an entry or in a closure;
//! no task runs there, and neither tasks nor keys are dropped.

use crate::engine::context::Limit;
use crate::engine::pool::Shards;
use crate::engine::reaper::Engine;
use crate::engine::shard::{AnyShard, Extra, Shard, ShardGuard, ShardState};
use crate::engine::source::Source;
use crate::engine::turn::Turn;
use crate::store::table::{KeyTable, ShortHash, shard_of, shards_for};
use crate::sync::{Mutex, parallelism};
use crate::timer::Timer;
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::tasks::Tasks;
use crate::wheel::tick::Due;
use std::borrow::Borrow;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Slots of each wheel: few, because there are many shards, and a deadline is seldom near.
const WHEEL_SIZE: usize = 64;

/// The number of keys that are taken out under one hold of a lock.
const BATCH: usize = 64;

/// What is kept of a key.
#[derive(Debug)]
pub(crate) struct Keyed<K, T> {
    pub(crate) key: K,
    pub(crate) task: T,
    hash: ShortHash,
}

/// The entries of a shard by their keys: where they are in the shard's slab.
pub(crate) type Index = KeyTable<u32>;
impl Extra for Index {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

pub(crate) type KeyShard<K, T> = Shard<Keyed<K, T>, Index>;
pub(crate) type KeyState<K, T> = ShardState<Keyed<K, T>, Index>;
pub(crate) type KeyGuard<'a, K, T> = ShardGuard<'a, Keyed<K, T>, Index>;

/// What is called with each key and task that expires. Returns what is to be added again.
pub(crate) type OnExpired<K, T> = Arc<dyn Fn(K, T) -> Option<Kept<K, T>> + Send + Sync>;

/// A key that is to be added again, with its hash.
pub(crate) struct Kept<K, T> {
    pub(crate) hash: u64,
    pub(crate) key: K,
    pub(crate) entry: TimerEntry<T>,
}

/// The keys of a keyed timer; see the [module](self).
pub(crate) struct Keys<K: Eq + Send + 'static, T: Send + 'static> {
    pub(crate) shards: Shards<Keyed<K, T>, Index>,
    on_expired: OnExpired<K, T>,
    /// Whose executor calls that. Weakly: a call that is under way when the timer ends must not
    /// keep the executor alive.
    closures: Weak<Tasks<Task>>,
    /// A buffer for what a flush takes out, unless a turn has it.
    spare: Mutex<Vec<Task>>,
}

// The closure is called with no lock held.
impl<K: Eq + Send + 'static, T: Send + 'static> UnwindSafe for Keys<K, T> {}
impl<K: Eq + Send + 'static, T: Send + 'static> RefUnwindSafe for Keys<K, T> {}

/// What the clones of a keyed timer own together: it ends with the last of them.
pub(crate) struct KeysOwner<K: Eq + Send + 'static, T: Send + 'static> {
    timer: Timer,
    number: u32,
    pub(crate) keys: Arc<Keys<K, T>>,
}

impl<K: Eq + Send + 'static, T: Send + 'static> KeysOwner<K, T> {
    pub(crate) fn new(timer: Timer, on_expired: OnExpired<K, T>) -> Arc<Self> {
        let engine: &Engine = &timer.base.engine;
        // In virtual time no hash decides an order, unless the timer has several shards itself. In
        // models threads meet in several.
        let is_manual = engine.context.time.clock.as_manual().is_some() && !cfg!(tickwheel_model);
        let is_single = is_manual && timer.base.layout.shards == 1;
        let count = if is_single { 1 } else { shards_for(parallelism()) };
        let closures = Arc::downgrade(&timer.base.closures);
        let make = |number| {
            let shards = Shards::new(&engine.context, number, count, WHEEL_SIZE);
            Arc::new(Keys { shards, on_expired, closures, spare: Mutex::new(Vec::new()) })
        };
        let (number, keys) = engine.sources.register(&engine.context, count, make);
        Arc::new(KeysOwner { timer, number, keys })
    }
}

impl<K: Eq + Send + 'static, T: Send + 'static> Drop for KeysOwner<K, T> {
    fn drop(&mut self) {
        let Engine { sources, context, .. } = &*self.timer.base.engine;
        sources.remove(context, self.number);
        drop(self.keys.cancel_all());
    }
}

impl<K: Eq + Send + 'static, T: Send + 'static> Source for Keys<K, T> {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        let Some(shard) = self.shards.get(ordinal) else { return Some(0) };
        let mut tasks = mem::take(&mut *self.spare.lock());
        let flushed = shard.flush(turn, |state, flush| {
            let ShardState { wheel, extra: index, .. } = state;
            wheel.flush(flush, |at, Keyed { key, task, hash }| {
                index.remove(hash, |index| *index == at.index);
                tasks.push(self.task(key, task));
            });
        });
        let closures = self.closures.upgrade();
        let count = closures.map_or(0, |closures| closures.hand_over(turn, &mut tasks));
        *self.spare.lock() = tasks;
        flushed.then_some(count)
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.get(ordinal).map(|shard| &**shard as &dyn AnyShard)
    }

    fn assert_invariants(&self) {
        self.shards.iter().for_each(|shard| shard.lock().wheel.assert_invariants(|_| true));
    }
}

impl<K: Eq + Send + 'static, T: Send + 'static> Keys<K, T> {
    /// Returns the task that calls the closure for a key that has expired. The task does not own
    /// the keys: a key that is kept after the end of its keyed timer is dropped.
    fn task(self: &Arc<Self>, key: K, task: T) -> Task {
        let (on_expired, keys) = (Arc::clone(&self.on_expired), Arc::downgrade(self));
        Task::new(move || on_expired(key, task).into_iter().for_each(|kept| keep(&keys, kept)))
    }

    /// Returns the shard of the keys with this hash.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> &KeyShard<K, T> {
        &self.shards[shard_of(hash, self.shards.len())]
    }

    /// Takes out all keys, a few at a time, so that no lock is held for long.
    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let mut all = Vec::new();
        for shard in self.shards.iter() {
            let mut after = None;
            loop {
                after = shard.lock().take_some(after, &mut all);
                if after.is_none() {
                    break;
                }
            }
        }
        all
    }
}

/// Adds a key again that has expired, even if the timer is full, unless the key is there by now.
fn keep<K, T>(keys: &Weak<Keys<K, T>>, Kept { hash, key, entry }: Kept<K, T>)
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    let Some(keys) = keys.upgrade() else { return };
    let due = keys.shards.context.time.due(entry.when());
    let mut state = keys.of(hash).lock();
    // What is not added is dropped without the lock.
    let unused = match state.find(hash, &key) {
        Some(_) => (key, entry),
        None => match state.add_key(Limit::Exceed, hash, due, (key, entry)) {
            Ok(()) => return Shard::release(state),
            Err((key, error)) => (key, error.into_entry()),
        },
    };
    drop(state);
    drop(unused);
}

impl<K: Eq, T> KeyState<K, T> {
    /// Returns the index of a key, if the key is present.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let is_meant = |index: &u32| self.at(*index).key.borrow() == key;
        self.extra.find(ShortHash::of(hash), is_meant).copied()
    }

    /// Returns what is kept of the key at `index`; there must be one.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &Keyed<K, T> {
        &self.wheel.entries.at(index).item
    }

    /// Returns what is kept of the key at `index`; there must be one.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut Keyed<K, T> {
        &mut self.wheel.entries.at_mut(index).item
    }

    /// Adds a key that is not present. Returns it if it is refused: its caller drops it without the
    /// lock.
    #[inline]
    pub(crate) fn add_key(
        &mut self,
        limit: Limit,
        hash: u64,
        due: Due,
        (key, entry): (K, TimerEntry<T>),
    ) -> Result<(), (K, AddError<T>)> {
        if let Err(refusal) = self.admit(limit) {
            return Err((key, AddError::of(refusal, entry)));
        }
        let hash = ShortHash::of(hash);
        let added = self.add(due, Keyed { key, task: entry.into_task(), hash });
        self.extra.insert(hash, added.index);
        Ok(())
    }

    /// Returns when a key expires; `None` is never.
    #[inline]
    pub(crate) fn deadline(&self, index: u32) -> Option<Instant> {
        let deadline = self.wheel.entries.at(index).deadline();
        self.context()?.time.instant_or_never(deadline)
    }

    /// Takes a key out before it expires.
    pub(crate) fn cancel_key(&mut self, index: u32) -> Option<(K, T)> {
        let Keyed { key, task, hash } = self.wheel.cancel_at(index)?;
        self.extra.remove(hash, |other| *other == index);
        self.release_permits(1);
        Some((key, task))
    }

    /// Finds a key and takes it out, with a single lookup in the index.
    #[inline]
    pub(crate) fn take<Q>(&mut self, hash: u64, key: &Q) -> Option<(K, T)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let ShardState { wheel, extra: index, .. } = self;
        let is_meant = |index: &u32| wheel.entries.at(*index).item.key.borrow() == key;
        let found = index.remove(ShortHash::of(hash), is_meant)?;
        let Keyed { key, task, .. } = wheel.cancel_at(found)?;
        self.release_permits(1);
        Some((key, task))
    }

    /// Takes at most [`BATCH`] keys out, of those that come after what the last call returned.
    /// `None` is the end.
    fn take_some(&mut self, after: Option<u32>, out: &mut Vec<(K, T)>) -> Option<u32> {
        let indices = self.wheel.entries.last_indices(after, BATCH);
        out.extend(indices.iter().filter_map(|index| self.cancel_key(*index)));
        indices.last().copied()
    }

    /// Calls `visit` with each key of a chunk. Returns whether there is a chunk after it.
    pub(crate) fn visit(
        &self,
        chunk: usize,
        visit: &mut impl FnMut(&K, &T, Option<Instant>),
    ) -> bool {
        for (at, entry) in self.wheel.entries.of_chunk(chunk) {
            let Keyed { key, task, .. } = &entry.item;
            visit(key, task, self.deadline(at.index));
        }
        // mutants(<= *): one more chunk is asked for, and is empty.
        chunk.saturating_add(1) < self.wheel.entries.chunks()
    }

    /// Checks that every key is found by its hash.
    pub(crate) fn assert_keys(&self) {
        for (_, own) in self.extra.iter() {
            let item = self.at(*own);
            let is_meant = |other: &u32| self.at(*other).key == item.key;
            assert_eq!(self.extra.find(item.hash, is_meant), Some(own), "found by its key");
        }
        assert_eq!(self.extra.len(), self.wheel.len(), "every key is found");
    }
}
