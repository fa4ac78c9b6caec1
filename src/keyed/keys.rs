//! The keys in a shard of keyed timers: their tasks and deadlines are the items of its core, and an
//! index finds them there.
//!
//! # Locks
//! A key's `Eq` may run under a shard's lock, and what a caller does with an entry or in a closure;
//! no task runs there, and neither tasks nor keys are dropped.
//!
//! Invariants, checked by [`Body::assert_keys`] and, of the core, by the owner: every key is found
//! by its hash, and filed.

use crate::engine::owner::{Owned, Shards};
use crate::engine::report::Contained;
use crate::engine::shard::{Body, Content, Holding, Shard, Times};
use crate::store::table::{KeyTable, ShortHash, shard_of};
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::part::Expiring;
use crate::wheel::bucket_queue::Expiration;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

/// The number of keys that expire or are taken out under one hold of a lock.
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
}

impl<K, T> Content for Keys<K, T> {
    type Item = Keyed<K, T>;

    fn new() -> Self {
        Keys { index: KeyTable::new(), keys: PhantomData }
    }

    fn is_filed(_: &Keyed<K, T>) -> bool {
        true
    }
}

/// Makes the task that expires a key. It was made where the compiler knew that keys may be sent.
pub(crate) struct Expiry<K, T>(Box<dyn Fn(K, T) -> Task + Send + Sync>);

impl<K: Send + 'static, T: Send + 'static> Expiry<K, T> {
    /// Creates one whose tasks call `expire`.
    pub(crate) fn new<F: Fn(K, T) + Send + Sync + 'static>(expire: Contained<F>) -> Self {
        let expire = Arc::new(expire);
        Expiry(Box::new(move |key, task| {
            let expire = Arc::clone(&expire);
            Task::new(move || expire(key, task))
        }))
    }
}

impl<K: Eq + 'static, T: 'static> Expiring for Keys<K, T> {
    type Shared = Expiry<K, T>;

    fn flush(
        Expiry(task_of): &Self::Shared,
        body: &mut Body<Self>,
        (expiration, now): (Expiration, u64),
        tasks: &mut Vec<Task>,
    ) {
        let Body { core, content: Keys { index, .. }, .. } = body;
        core.flush(expiration, (now, BATCH), |name, Keyed { key, task, hash }| {
            index.remove(hash, |other| *other == name.index);
            tasks.push(task_of(key, task));
        });
        body.release_permits(tasks.len());
    }

    fn end(owned: &Owned<Self>) {
        owned.shards.set.close(); // A closure that is running may return a key to be kept.
        owned.shards.cancel_all().into_iter().for_each(|left| owned.shards.discard(left));
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

    /// Adds a key again that has expired, unless it is there by then.
    pub(crate) fn keep(&self, hash: u64, key_and_task: (K, T), times: Times) {
        let mut unused = Some(key_and_task); // Outlives the lock.
        self.with(self.of(hash), |body| {
            let is_there = unused.as_ref().is_some_and(|(key, _)| body.find(hash, key).is_some());
            if !is_there && body.admit_beyond_limit().is_ok() {
                if let Some(kept) = unused.take() {
                    body.insert_key(hash, kept, times);
                }
            }
        });
        unused.into_iter().for_each(|unused| self.discard(unused));
    }

    fn discard(&self, gone: (K, T)) {
        let task = self.task_of(gone);
        self.context.discard(task);
    }

    /// Returns the task of a key that was taken out. No lock is held: the key is dropped here.
    pub(crate) fn task_of(&self, (key, task): (K, T)) -> T {
        self.context.discard(key);
        task
    }

    /// Takes all keys out.
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
        let item = Keyed { key, task, hash };
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
        if deadline >= self.core.deadline_at(index) {
            self.core.extend(index, deadline);
        } else {
            self.refile(index, times);
        }
    }

    /// Takes a key out before it expires.
    pub(crate) fn cancel(&mut self, index: u32) -> Option<(K, T)> {
        let item = self.core.cancel_at(index)?;
        self.content.index.remove(item.hash, |other| *other == index);
        self.release_permits(1);
        Some((item.key, item.task))
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
