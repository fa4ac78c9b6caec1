//! The entry of a key: looks at a key and changes it in one step.

use crate::engine::clock::When;
use crate::engine::context::TimerContext;
use crate::engine::owner::Shards;
use crate::engine::shard::{Body, Holding, Shard};
use crate::keyed::keys::Keys;
use crate::sync::MutexGuard;
use crate::timer::entry::{IntoTask, TimerEntry};
use crate::timer::error::AddError;
use std::fmt;
use std::mem;
use std::time::Instant;

/// A view into one key of a keyed timer, as returned by
/// [`KeyedTimer::entry`](crate::keyed::KeyedTimer::entry).
///
/// An entry holds the lock of the key's shard, so other threads that use keys of that shard wait
/// until it is dropped, and keys of that shard do not expire. An executor waits as well, if a
/// closure has returned a key of that shard to be kept. So do not wait under an entry for anything
/// that the timer runs. Keep an entry only briefly, and do not use the keyed timer meanwhile: the
/// call would wait for its own thread, which is a panic in debug builds. Of other timers, and of
/// its own, only `add` and `cancel` may be called; so a waker that these wake
/// ([`Listener`](crate::Listener)) must not advance the timer either.
#[derive(Debug)]
pub enum Entry<'a, K: Eq, T> {
    /// The key has a task.
    Occupied(OccupiedEntry<'a, K, T>),
    /// The key has no task.
    Vacant(VacantEntry<'a, K, T>),
}

/// A key that has a task.
pub struct OccupiedEntry<'a, K: Eq, T> {
    pub(crate) held: Held<'a, K, T>,
    pub(crate) index: u32,
}

/// A key that has no task.
pub struct VacantEntry<'a, K: Eq, T> {
    /// With the key.
    pub(crate) held: Held<'a, K, T>,
    pub(crate) hash: u64,
}

/// A shard under its lock, for as long as the user likes. Loops and futures, whose waking is the
/// user's code, are woken when the lock is released.
pub(crate) struct Held<'a, K: Eq, T> {
    context: &'a TimerContext,
    /// `None` only while it is dropped.
    body: Option<MutexGuard<'a, Body<Keys<K, T>>>>,
    /// `None` when the lock is released.
    holding: Option<Holding>,
    /// The key that the caller has passed, unless the shard has it: to be dropped when the lock is
    /// released.
    pub(crate) key: Option<K>,
}

impl<'a, K: Eq + 'static, T: 'static> Held<'a, K, T> {
    #[inline]
    pub(crate) fn new(shards: &'a Shards<Keys<K, T>>, hash: u64) -> Self {
        let holding = Some(shards.begin_holding());
        let body = Some(shards.of(hash).lock());
        Held { context: &shards.context, body, holding, key: None }
    }
}

impl<K: Eq, T> Held<'_, K, T> {
    #[inline]
    fn see(&self) -> &Body<Keys<K, T>> {
        self.body.as_ref().expect("it is there until this is dropped")
    }

    #[inline]
    pub(crate) fn body(&mut self) -> &mut Body<Keys<K, T>> {
        self.body.as_mut().expect("it is there until this is dropped")
    }
}

impl<K: Eq, T> Drop for Held<'_, K, T> {
    #[inline]
    fn drop(&mut self) {
        let released = self.body.take().map(Shard::release);
        drop(self.holding.take());
        drop(released);
        self.context.discard(self.key.take());
    }
}

impl<K: Eq, T> OccupiedEntry<'_, K, T> {
    /// Returns a reference to the task.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.held.see().core.at(self.index).task
    }

    /// Returns a mutable reference to the task.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.held.body().core.at_mut(self.index).task
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
        let (_, deadline) = self.held.context.resolve(when.into());
        let index = self.index;
        self.held.body().core.extend(index, deadline);
    }

    /// Moves the deadline, earlier or later.
    pub fn reschedule(&mut self, when: impl Into<When>) {
        let (times, index) = (self.held.context.resolve(when.into()), self.index);
        self.held.body().move_to(index, times);
        self.held.body().go_on_holding();
    }

    /// Takes the task back: it does not expire, and the key is removed.
    pub fn cancel(mut self) -> T {
        let (context, index) = (self.held.context, self.index);
        let cancelled = self.held.body().cancel(index);
        drop(self); // The drop of a key needs no lock.
        let (key, task) = cancelled.expect("nobody else took it meanwhile");
        context.discard(key);
        task
    }
}

impl<K: Eq, T> VacantEntry<'_, K, T> {
    /// Returns a reference to the key.
    #[must_use]
    pub fn key(&self) -> &K {
        self.held.key.as_ref().expect("it is there until the task is added")
    }

    /// Adds a task for the key, which expires at `when`.
    ///
    /// # Errors
    /// [`AddError`], with the task inside, if the timer is full or was shut down.
    pub fn add(self, when: impl Into<When>, task: impl IntoTask<T>) -> Result<(), AddError<T>> {
        let entry = TimerEntry::new(when, task);
        let VacantEntry { mut held, hash } = self;
        let key = held.key.take().expect("it is there until the task is added");
        let times = held.context.resolve(entry.when());
        let added = held.body().add_key(hash, (key, entry), times);
        added.map_err(|(key, error)| {
            held.key = Some(key);
            error
        })
    }
}

impl<K: Eq, T> fmt::Debug for OccupiedEntry<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupiedEntry").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

impl<K: Eq, T> fmt::Debug for VacantEntry<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VacantEntry").finish_non_exhaustive()
    }
}
