//! The entry of a key: looks at a key and changes it in one step.

use crate::engine::clock::When;
use crate::engine::reaper::Holding;
use crate::engine::shard::{Shard, ShardState, TimerContext};
use crate::keyed::shard::{KeyGuard, KeyState, Keys};
use crate::timer::entry::{IntoTask, TimerEntry};
use crate::timer::error::AddError;
use crate::wheel::tick::Due;
use std::fmt;
use std::mem;
use std::time::Instant;

/// A view into one key of a keyed timer, returned by
/// [`KeyedTimer::entry`](crate::keyed::KeyedTimer::entry).
///
/// An entry holds the lock of the key's shard until it is dropped. Other threads that use the
/// shard's keys wait, and these keys do not expire. An executor also waits, if a closure has
/// returned a key of that shard to be kept.
///
/// - Keep an entry only briefly, and do not wait under it for anything that the timer runs.
/// - Do not use the keyed timer meanwhile: the call would wait for its own thread, forever.
/// - Do not advance a timer under an entry: it is a panic in debug builds.
/// - Call only `add` and `cancel` of the timer itself and of other timers. A waker that these wake
///   ([`Listener`](crate::Listener)) must not advance the timer either.
pub enum Entry<'a, K, T> {
    /// The key has a task.
    Occupied(OccupiedEntry<'a, K, T>),
    /// The key has no task, or one whose time is up.
    Vacant(VacantEntry<'a, K, T>),
}

/// A key that has a task.
pub struct OccupiedEntry<'a, K, T> {
    pub(crate) held: Held<'a, K, T>,
    pub(crate) index: u32,
}

/// A key that has no task, or one whose time is up.
pub struct VacantEntry<'a, K, T> {
    pub(crate) held: Held<'a, K, T>,
    pub(crate) hash: u64,
    /// The key's place, if it has a task whose time is up.
    pub(crate) found: Option<u32>,
}

/// A shard under its lock, for as long as the user likes. Releasing it offers its first entry to
/// the delay queue.
pub(crate) struct Held<'a, K, T> {
    _holding: Holding,
    /// `None` only during the drop.
    guard: Option<KeyGuard<'a, K, T>>,
    /// The caller's key, unless the shard has it: dropped without the lock.
    pub(crate) key: Option<K>,
    context: &'a TimerContext,
}

impl<'a, K, T> Held<'a, K, T> {
    #[inline]
    pub(crate) fn new(keys: &'a Keys<K, T>, hash: u64) -> Self {
        // In this order, and the other way round at the drop: a thread counts as a holder for as
        // long as it has the lock. A call that would wait for this very thread panics instead.
        let _holding = Holding::begin();
        let guard = Some(keys.of(hash).lock());
        Held {
            _holding,
            guard,
            key: None,
            context: &keys.shards.context,
        }
    }
}

impl<K, T> Held<'_, K, T> {
    #[inline]
    pub(crate) fn see(&self) -> &KeyState<K, T> {
        self.guard
            .as_ref()
            .expect("it is there until this is dropped")
    }

    #[inline]
    pub(crate) fn state(&mut self) -> &mut KeyState<K, T> {
        self.guard
            .as_mut()
            .expect("it is there until this is dropped")
    }
}

impl<K, T> Drop for Held<'_, K, T> {
    #[inline]
    fn drop(&mut self) {
        // Wakes listeners as well, with no lock held.
        self.guard.take().into_iter().for_each(Shard::unlock);
    }
}

impl<K, T> OccupiedEntry<'_, K, T> {
    /// Returns a reference to the key that has the task.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.held.see().at(self.index).key
    }

    /// Returns a reference to the task.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.held.see().at(self.index).task
    }

    /// Returns a mutable reference to the task.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.held.state().at_mut(self.index).task
    }

    /// Returns when the task expires; `None` if it never does.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.held.see().deadline(self.index)
    }

    /// Replaces the task, and returns the former one. The deadline stays.
    pub fn replace(&mut self, task: T) -> T {
        mem::replace(self.get_mut(), task)
    }

    /// Extends the deadline; it never moves to an earlier one.
    pub fn touch(&mut self, when: impl Into<When>) {
        self.moved(when.into(), ShardState::extend);
    }

    /// Brings the deadline forward; it never moves to a later one.
    pub fn hasten(&mut self, when: impl Into<When>) {
        self.moved(when.into(), ShardState::hasten);
    }

    /// Moves the deadline, earlier or later.
    pub fn reschedule(&mut self, when: impl Into<When>) {
        self.moved(when.into(), ShardState::move_to);
    }

    /// Removes the key and returns its task, which does not expire.
    pub fn cancel(mut self) -> T {
        let index = self.index;
        let cancelled = self.held.state().cancel_key(index);
        drop(self); // The drop of a key needs no lock.
        cancelled.expect("nobody else took it meanwhile").1
    }

    /// Calls `change` with the key's place and the new deadline, unless the timer was shut down.
    /// Returns whether it did.
    pub(crate) fn moved(
        &mut self,
        when: When,
        change: impl FnOnce(&mut KeyState<K, T>, u32, Due),
    ) -> bool {
        let due = self.held.context.time.due(when);
        let index = self.index;
        let state = self.held.state();
        let is_open = !state.is_closed();
        if is_open {
            change(state, index, due);
        }
        is_open
    }
}

impl<K, T> VacantEntry<'_, K, T> {
    /// Returns a reference to the key.
    #[must_use]
    pub fn key(&self) -> &K {
        self.held
            .key
            .as_ref()
            .expect("it is there until the task is added")
    }

    /// Adds a task for the key, which expires at `when`. Returns the task that it replaces, if the
    /// key has one whose time is up. The replaced task does not expire any more: if you add a key
    /// repeatedly and wait for its expiry, do its work now.
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down. The key is
    /// dropped.
    pub fn add(
        self,
        when: impl Into<When>,
        task: impl IntoTask<T>,
    ) -> Result<Option<T>, AddError<T>> {
        let entry = TimerEntry::new(when, task);
        let VacantEntry {
            mut held,
            hash,
            found,
        } = self;
        let due = held.context.time.due(entry.when());
        let mut key = held.key.take();
        let added = held.state().put(hash, found, due, &mut key, entry);
        held.key = key;
        added
    }
}

impl<K, T> fmt::Debug for Entry<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Occupied(entry) => f.debug_tuple("Occupied").field(entry).finish(),
            Entry::Vacant(entry) => f.debug_tuple("Vacant").field(entry).finish(),
        }
    }
}

impl<K, T> fmt::Debug for OccupiedEntry<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupiedEntry")
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

impl<K, T> fmt::Debug for VacantEntry<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VacantEntry").finish_non_exhaustive()
    }
}
