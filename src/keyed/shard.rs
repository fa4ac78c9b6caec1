//! A shard of keyed timers: its keys, their tasks and deadlines, and the wheels that contain them.
//!
//! A key's value is stored in a core, and an index finds its place there. This is plain data, which
//! its [owner](crate::keyed::shards) keeps behind a lock.
//!
//! An expired key stays until its alarm arrives through the executor. Meanwhile it is *handed*, and
//! filed nowhere. Until the alarm arrives, the key can be cancelled, replaced and moved like any
//! other.
//!
//! Invariants, checked by [`Shard::assert_invariants`]: those of the core, where exactly the keys
//! that are not handed are filed; and every key is found by its hash.

use crate::store::key::Key;
use crate::store::key_index::KeyIndex;
use crate::store::key_table::ShortHash;
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::Wakes;
use crate::timer::entry::TimerEntry;
use crate::timer::error::AddError;
use crate::timer::owner::Queued;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Core;
use crate::wheel::wheels::Wheels;
use std::borrow::Borrow;
use std::mem;
use std::time::Instant;

/// A shard of keyed timers; see the [module](self).
#[derive(Debug)]
pub(crate) struct Shard<K, T> {
    pub(crate) core: Core<Item<K, T>>,
    index: KeyIndex,
    /// Set by a shutdown of the timer: from then on nothing can be added and nothing is filed.
    pub(crate) closed: bool,
}

/// The value of a key.
#[derive(Debug)]
pub(crate) struct Item<K, T> {
    pub(crate) key: K,
    pub(crate) task: T,
    hash: ShortHash,
    is_handed: bool,
}

impl<K: Eq, T> Shard<K, T> {
    pub(crate) fn new(context: &TimerContext, wheels: Wheels) -> Self {
        let core = Core::new(context.time.ticks, wheels);
        Shard { core, index: KeyIndex::new(), closed: false }
    }

    /// Returns the index of a key, if the key is present.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let is_meant = |index| self.core.at(index).key.borrow() == key;
        self.index.find(ShortHash::of(hash), is_meant)
    }

    /// Adds a key that is not present. Returns which sleepers to wake; a key that is refused is
    /// dropped by the caller, without the lock.
    #[inline]
    pub(crate) fn add(
        &mut self,
        context: &TimerContext,
        hash: u64,
        (key, entry): (K, TimerEntry<T>),
        (now, deadline): (Option<u64>, u64),
    ) -> Result<Wakes, (K, AddError<T>)> {
        if self.closed {
            return Err((key, AddError::Shutdown(entry)));
        }
        if context.limit.as_ref().is_some_and(|limit| !limit.acquire()) {
            return Err((key, AddError::Full(entry)));
        }
        let hash = ShortHash::of(hash);
        let tick = context.time.ticks.ceil(deadline);
        let item = Item { key, task: entry.into_task(), hash, is_handed: false };
        let (key, reference) = self.core.insert(deadline, tick, item);
        self.index.insert(hash, key.index);
        Ok(context.file_new(&mut self.core, reference, tick, now, deadline))
    }

    #[inline]
    pub(crate) fn deadline(&self, context: &TimerContext, index: u32) -> Option<Instant> {
        context.time.instant_or_never(self.core.deadline_at(index))
    }

    /// Gives a key another task, and returns the former one.
    pub(crate) fn replace(&mut self, index: u32, task: T) -> T {
        mem::replace(&mut self.core.at_mut(index).task, task)
    }

    /// Moves a key's deadline; a later one is only written down. Returns which sleepers to wake.
    pub(crate) fn move_to(
        &mut self,
        context: &TimerContext,
        index: u32,
        (now, deadline): (Option<u64>, u64),
    ) -> Wakes {
        let is_handed = self.core.at(index).is_handed;
        if !is_handed && deadline >= self.core.deadline_at(index) {
            self.core.extend(index, deadline);
            return Wakes::Nobody;
        }
        let tick = context.time.ticks.ceil(deadline);
        let reference = self.core.move_up(index, deadline, tick);
        self.core.at_mut(index).is_handed = self.closed;
        if self.closed {
            return Wakes::Nobody;
        }
        context.file(&mut self.core, reference, tick, now, deadline)
    }

    /// Takes a key out before it expires.
    pub(crate) fn cancel(&mut self, context: &TimerContext, index: u32) -> Option<(K, T)> {
        let item = self.core.cancel_at(index)?;
        Some(self.removed(context, index, item))
    }

    /// Finds a key and takes it out, with a single lookup in the index.
    #[inline]
    pub(crate) fn take<Q>(&mut self, context: &TimerContext, hash: u64, key: &Q) -> Option<(K, T)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Shard { core, index, .. } = self;
        let is_meant = |index| core.at(index).key.borrow() == key;
        let found = index.take(ShortHash::of(hash), is_meant)?;
        let item = core.cancel_at(found)?;
        context.release_permits(1);
        Some((item.key, item.task))
    }

    /// Takes a key out for its alarm, at `now`, if it has expired and was not taken out before.
    /// Otherwise returns which sleepers to wake, because a key that was extended may be filed
    /// again.
    pub(crate) fn alarm(
        &mut self,
        context: &TimerContext,
        name: Key,
        now: u64,
    ) -> Result<(K, T), Wakes> {
        let Some(index) = self.core.find(name) else { return Err(Wakes::Nobody) };
        let deadline = self.core.deadline_at(index);
        if now < deadline {
            let is_handed = self.core.at(index).is_handed;
            let times = (Some(now), deadline);
            return Err(if is_handed {
                self.move_to(context, index, times)
            } else {
                Wakes::Nobody
            });
        }
        let item = self.core.expire(index, now).ok_or(Wakes::Nobody)?;
        Ok(self.removed(context, index, item))
    }

    fn removed(&mut self, context: &TimerContext, index: u32, item: Item<K, T>) -> (K, T) {
        self.index.remove(item.hash, index);
        // Under the lock: a thread that finds the key gone also finds its permit free.
        context.release_permits(1);
        (item.key, item.task)
    }

    /// Takes at most `limit` keys out, of those that come after what the last call returned. `None`
    /// is the end.
    pub(crate) fn take_some(
        &mut self,
        context: &TimerContext,
        after: Option<u32>,
        limit: usize,
        out: &mut Vec<(K, T)>,
    ) -> Option<u32> {
        let Shard { core, index, .. } = self;
        let last = core.take_some(after, limit, |place, item| {
            index.remove(item.hash, place);
            out.push((item.key, item.task));
        });
        context.release_permits(out.len());
        last
    }

    /// Calls `visit` with each key of a chunk. Returns whether there is a chunk after it.
    pub(crate) fn visit(
        &self,
        context: &TimerContext,
        chunk: usize,
        visit: &mut impl FnMut(&K, &T, Option<Instant>),
    ) -> bool {
        for (_, entry) in self.core.entries.of_chunk(chunk) {
            let Item { key, task, .. } = &entry.task;
            visit(key, task, context.time.instant_or_never(entry.deadline.get()));
        }
        // mutants(<= *): one more chunk is asked for, and is empty.
        chunk + 1 < self.core.entries.chunks()
    }

    /// Flushes a batch of a bucket that was polled under the shard's lock. Calls `hand` with the
    /// name of each expired key; after a shutdown no key expires any more. Returns which sleepers
    /// to wake.
    pub(crate) fn flush(
        &mut self,
        context: &TimerContext,
        due: (Expiration, u64),
        armed: &mut Vec<Expiration>,
        mut hand: impl FnMut(Key),
    ) -> Wakes {
        let closed = self.closed;
        context.flush_in_place(&mut self.core, due, armed, |name, item| {
            item.is_handed = true;
            if !closed {
                hand(name);
            }
        })
    }

    pub(crate) fn assert_invariants(&self, queued: Option<&Queued>) {
        if let Some(queued) = queued {
            let is_queued = |shard, id| queued.get(&(shard, id)).copied().unwrap_or(0);
            self.core.assert_invariants(is_queued, |item| !item.is_handed);
        }
        for index in self.index.iter() {
            let item = self.core.at(index);
            let is_meant = |other| self.core.at(other).key == item.key;
            assert_eq!(self.index.find(item.hash, is_meant), Some(index), "found by its key");
        }
        assert_eq!(self.index.len(), self.core.len(), "every key is found");
    }
}
