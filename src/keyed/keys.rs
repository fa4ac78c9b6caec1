//! The keys in a shard of keyed timers: their tasks and deadlines are the items of its core, and an
//! index finds them there.
//!
//! An expired key stays until its alarm arrives through the executor. Meanwhile it is *handed*, and
//! filed nowhere. Until the alarm arrives, the key can be cancelled, replaced and moved like any
//! other.
//!
//! # Locks
//! A key's `Eq` may run under a shard's lock, and what a caller does with an entry or in a closure;
//! no task runs there, and neither tasks nor keys are dropped.
//!
//! Invariants, checked by [`Body::assert_keys`] and, of the core, by the owner: every key is found
//! by its hash, and exactly the keys that are not handed are filed.

use crate::engine::owner::{Owned, Shards};
use crate::engine::report::{Contained, catch_panic};
use crate::engine::shard::{Body, Content, Holding, Shard, Times};
use crate::store::slab::Key;
use crate::store::table::{KeyTable, ShortHash, shard_of};
use crate::sync::{Mutex, MutexGuard};
use crate::timer::entry::TimerEntry;
use crate::timer::error::AddError;
use crate::timer::part::Alarmed;
use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// The number of keys that are taken out under one hold of a lock.
const BATCH: usize = 64;

/// The keys of a shard; see the [module](self).
pub(crate) struct Keys<K, T> {
    index: KeyTable<u32>,
    keys: PhantomData<(K, T)>,
}

/// What is kept of a key.
#[derive(Debug)]
pub(crate) struct Keyed<K, T> {
    pub(crate) key: K,
    pub(crate) task: T,
    hash: ShortHash,
    is_handed: bool,
}

impl<K, T> Content for Keys<K, T> {
    type Item = Keyed<K, T>;

    fn new() -> Self {
        Keys { index: KeyTable::new(), keys: PhantomData }
    }

    fn is_filed(item: &Keyed<K, T>) -> bool {
        !item.is_handed
    }
}

/// What is called with each key and task that expires, and with what has them.
pub(crate) type OnExpired<K, T> = Box<dyn Fn(&Arc<Owned<Keys<K, T>>>, K, T) + Send + Sync>;

/// What a keyed timer has once, for all its shards.
pub(crate) struct KeyedShared<K: Eq + 'static, T: 'static> {
    on_expired: Contained<OnExpired<K, T>>,
    /// Keys that are to be kept, by the ordinals of their shards, which other threads hold. For
    /// each there is an alarm, of [`NOBODY`], that adds the first of its shard.
    ///
    /// Their lock may be taken under a shard's.
    late: Mutex<BTreeMap<usize, VecDeque<Late<K, T>>>>,
}

/// A key that is to be added, with its hash and its task.
type Late<K, T> = (u64, (K, T), Times);

impl<K: Eq + 'static, T: 'static> KeyedShared<K, T> {
    pub(crate) fn new(on_expired: Contained<OnExpired<K, T>>) -> Self {
        KeyedShared { on_expired, late: Mutex::new(BTreeMap::new()) }
    }
}

impl<K: Eq + 'static, T: 'static> Drop for KeyedShared<K, T> {
    /// Drops what a closure has left that ran as the keyed timer ended.
    fn drop(&mut self) {
        let late = mem::take(&mut *self.late.lock());
        for (_, (key, task), _) in late.into_values().flatten() {
            catch_panic(|| drop(key));
            catch_panic(|| drop(task));
        }
    }
}

/// The name of no key.
const NOBODY: u64 = u64::MAX;

impl<K: Eq + 'static, T: 'static> Alarmed for Keys<K, T> {
    type Shared = KeyedShared<K, T>;

    fn flushed(item: &mut Keyed<K, T>, is_due: bool) -> bool {
        item.is_handed |= is_due;
        is_due
    }

    fn alarm(owned: &Arc<Owned<Self>>, ordinal: usize, key: Key) {
        if key.to_bits() == NOBODY {
            return owned.add_late(ordinal);
        }
        let Some(mut body) = owned.lock_for_alarm(ordinal, key) else { return };
        let expired = body.alarm(key, owned.shards.context.time.now());
        drop(Shard::release(body));
        if let Some((key, task)) = expired {
            (owned.beside.shared.on_expired)(owned, key, task);
        }
    }

    fn end(owned: &Owned<Self>) {
        owned.shards.set.close(); // A closure that is running may return a key to be kept.
        let late = mem::take(&mut *owned.beside.shared.late.lock());
        let late = late.into_values().flatten().map(|(_, kept, _)| kept);
        late.chain(owned.shards.cancel_all()).for_each(|left| owned.discard(left));
    }
}

/// Adds a key again that has expired, unless it is there by then. Waits for its shard no more than
/// an alarm does; afterwards the next turn tries again.
pub(crate) fn keep<K: Eq + 'static, T: 'static>(
    owned: &Owned<Keys<K, T>>,
    hash: u64,
    key_and_task: (K, T),
    times: Times,
) {
    let (ordinal, kept) = (shard_of(hash, owned.shards.set.len()), (hash, key_and_task, times));
    if let Some(body) = owned.shards.set.at(ordinal).lock_for_turn(true) {
        return owned.add_kept(body, kept);
    }
    let mut late = owned.beside.shared.late.lock();
    late.entry(ordinal).or_default().push_back(kept);
    drop(late);
    owned.add_late(ordinal);
}

impl<K: Eq + 'static, T: 'static> Owned<Keys<K, T>> {
    /// Adds the first key that waits for this shard, or puts that off. One at a time: a panic in
    /// its `Eq` costs no other key. After a shutdown it is left to `cancel_all`.
    fn add_late(&self, ordinal: usize) {
        let Some(body) = self.lock_for_alarm(ordinal, Key::from_bits(NOBODY)) else { return };
        let first = if body.closed { None } else { self.take_late(ordinal) };
        if let Some(first) = first {
            self.add_kept(body, first);
        }
    }

    fn add_kept(&self, body: MutexGuard<'_, Body<Keys<K, T>>>, (hash, kept, times): Late<K, T>) {
        let mut unused = Some(kept); // Outlives the lock.
        let mut body = body;
        let is_there = unused.as_ref().is_some_and(|(key, _)| body.find(hash, key).is_some());
        if !is_there && body.admit_beyond_limit().is_ok() {
            if let Some(kept) = unused.take() {
                body.insert_key(hash, kept, times);
            }
        }
        drop(Shard::release(body));
        unused.into_iter().for_each(|unused| self.discard(unused));
    }

    /// Takes the first key that waits for a shard.
    fn take_late(&self, ordinal: usize) -> Option<Late<K, T>> {
        let mut late = self.beside.shared.late.lock();
        let first = late.get_mut(&ordinal)?.pop_front();
        late.retain(|_, left| !left.is_empty());
        first
    }

    /// Takes out all keys, also those that wait for their shards and are not there again.
    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let mut all = Vec::new();
        for (ordinal, shard) in self.shards.set.iter().enumerate() {
            while let Some((hash, kept, _)) = self.take_late(ordinal) {
                // One whose `Eq` panics costs no other key.
                let is_there =
                    || self.shards.with(shard, |body| body.find(hash, &kept.0).is_some());
                match catch_panic(is_there) {
                    Some(true) => self.discard(kept),
                    _ => all.push(kept),
                }
            }
        }
        all.extend(self.shards.cancel_all());
        all
    }

    fn discard(&self, gone: (K, T)) {
        let task = self.shards.task_of(gone);
        self.shards.context.discard(task);
    }
}

impl<K: Eq + 'static, T: 'static> Shards<Keys<K, T>> {
    /// Returns the shard of the keys with this hash.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> &'static Shard<Keys<K, T>> {
        self.set.at(shard_of(hash, self.set.len()))
    }

    /// Notes that this thread is about to hold a shard of these.
    #[inline]
    pub(crate) fn begin_holding(&self) -> Holding {
        Holding::begin(self.set, &self.context)
    }

    /// Calls `act` with a shard of these.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        shard: &Shard<Keys<K, T>>,
        act: impl FnOnce(&mut Body<Keys<K, T>>) -> R,
    ) -> R {
        let holding = self.begin_holding();
        shard.with(|body| {
            let _until_released = holding;
            act(body)
        })
    }

    /// Calls `act` with one shard after the other.
    pub(crate) fn each<R>(
        &self,
        mut act: impl FnMut(&mut Body<Keys<K, T>>) -> R,
    ) -> impl Iterator<Item = R> {
        self.set.iter().map(move |shard| self.with(shard, &mut act))
    }

    /// Returns the task of a key that was taken out. No lock is held: the key is dropped here.
    pub(crate) fn task_of(&self, (key, task): (K, T)) -> T {
        self.context.discard(key);
        task
    }

    pub(crate) fn cancel_all(&self) -> Vec<(K, T)> {
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for shard in self.set.iter() {
            let mut after = None;
            // A few at a time, so that the lock is never held for long.
            loop {
                after = self.with(shard, |body| body.take_some(after, &mut batch));
                all.append(&mut batch);
                if after.is_none() {
                    break;
                }
            }
        }
        all
    }
}

impl<K: Eq, T> Body<Keys<K, T>> {
    /// Returns the index of a key, if the key is present.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let is_meant = |index: &u32| self.core.at(*index).key.borrow() == key;
        self.content.index.find(ShortHash::of(hash), is_meant).copied()
    }

    /// Adds a key that is not present. A key that is refused is dropped by the caller, without the
    /// lock.
    #[inline]
    pub(crate) fn add_key(
        &mut self,
        hash: u64,
        (key, entry): (K, TimerEntry<T>),
        times: Times,
    ) -> Result<(), (K, AddError<T>)> {
        if let Err(refusal) = self.admit() {
            return Err((key, AddError::of(refusal, entry)));
        }
        self.insert_key(hash, (key, entry.into_task()), times);
        Ok(())
    }

    /// Adds a key that is not present, and was admitted.
    #[inline]
    fn insert_key(&mut self, hash: u64, (key, task): (K, T), times: Times) {
        let (hash, (_, deadline)) = (ShortHash::of(hash), times);
        let tick = self.core.ticks.ceil(deadline);
        let item = Keyed { key, task, hash, is_handed: false };
        let (key, reference) = self.core.insert(deadline, tick, item);
        self.content.index.insert(hash, key.index);
        self.file_new(reference, tick, times);
    }

    /// Returns when a key expires; `None` is never.
    #[inline]
    pub(crate) fn deadline(&self, index: u32) -> Option<Instant> {
        self.instant(self.core.deadline_at(index))
    }

    #[inline]
    fn instant(&self, deadline: u64) -> Option<Instant> {
        self.context()?.time.instant_or_never(deadline)
    }

    /// Moves a key's deadline; a later one is only written down.
    pub(crate) fn move_to(&mut self, index: u32, times: Times) {
        let (_, deadline) = times;
        let is_handed = self.core.at(index).is_handed;
        if !is_handed && deadline >= self.core.deadline_at(index) {
            self.core.extend(index, deadline);
            return;
        }
        let is_filed = self.refile(index, times);
        self.core.at_mut(index).is_handed = !is_filed;
    }

    /// Takes a key out before it expires.
    pub(crate) fn cancel(&mut self, index: u32) -> Option<(K, T)> {
        let item = self.core.cancel_at(index)?;
        Some(self.removed(index, item))
    }

    /// Finds a key and takes it out, with a single lookup in the index.
    #[inline]
    pub(crate) fn take<Q>(&mut self, hash: u64, key: &Q) -> Option<(K, T)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Body { core, content, .. } = self;
        let is_meant = |index: &u32| core.at(*index).key.borrow() == key;
        let found = content.index.remove(ShortHash::of(hash), is_meant)?;
        let item = core.cancel_at(found)?;
        self.release_permits(1);
        Some((item.key, item.task))
    }

    /// Takes a key out for its alarm, at `now`, if it has expired and was not taken out before. A
    /// key that was extended may be filed again.
    fn alarm(&mut self, name: Key, now: u64) -> Option<(K, T)> {
        let (index, deadline) = (name.index, self.core.deadline(name)?);
        if now < deadline {
            if self.core.at(index).is_handed {
                self.move_to(index, (now, deadline));
            }
            return None;
        }
        let item = self.core.expire(index, now)?;
        Some(self.removed(index, item))
    }

    fn removed(&mut self, index: u32, item: Keyed<K, T>) -> (K, T) {
        self.content.index.remove(item.hash, |other| *other == index);
        self.release_permits(1);
        (item.key, item.task)
    }

    /// Takes at most [`BATCH`] keys out, of those that come after what the last call returned.
    /// `None` is the end.
    fn take_some(&mut self, after: Option<u32>, out: &mut Vec<(K, T)>) -> Option<u32> {
        let Body { core, content, .. } = self;
        let indices = core.entries.last_indices(after, BATCH);
        for index in &indices {
            let Some(item) = core.cancel_at(*index) else { continue };
            content.index.remove(item.hash, |other| other == index);
            out.push((item.key, item.task));
        }
        self.release_permits(out.len());
        indices.last().copied()
    }

    /// Calls `visit` with each key of a chunk. Returns whether there is a chunk after it.
    pub(crate) fn visit(
        &self,
        chunk: usize,
        visit: &mut impl FnMut(&K, &T, Option<Instant>),
    ) -> bool {
        for (_, entry) in self.core.entries.of_chunk(chunk) {
            let Keyed { key, task, .. } = &entry.item;
            visit(key, task, self.instant(entry.deadline.get()));
        }
        // mutants(<= *): one more chunk is asked for, and is empty.
        chunk.saturating_add(1) < self.core.entries.chunks()
    }

    /// Checks that every key is found by its hash.
    pub(crate) fn assert_keys(&self) {
        let Body { core, content: Keys { index, .. }, .. } = self;
        for (_, own) in index.iter() {
            let item = core.at(*own);
            let is_meant = |other: &u32| core.at(*other).key == item.key;
            assert_eq!(index.find(item.hash, is_meant), Some(own), "found by its key");
        }
        assert_eq!(index.len(), core.len(), "every key is found");
    }
}
