//! The entry of a key: looks at a key and changes it in one step.

use crate::keyed::locked::Locked;
use crate::keyed::shard::Shard;
use crate::keyed::shards::Shards;
use crate::timer::delay_queue::Wakes;
use crate::timer::entry::{TimerEntry, When};
use crate::timer::error::AddError;
use std::fmt;
use std::time::{Duration, Instant};

/// A view into one key of a keyed timer, as returned by
/// [`KeyedTimer::entry`](crate::keyed::KeyedTimer::entry).
///
/// An entry holds the lock of the key's shard, so other threads that use keys of that shard wait
/// until it is dropped, and keys of that shard do not expire. Keep it only briefly, and do not use
/// the keyed timer meanwhile: the call would wait for its own thread, which is a panic in debug
/// builds. Of other timers, and of its own, only `add` and `cancel` may be called; so a hook that
/// these call ([`on_earlier_expiration`](crate::TimerBuilder::on_earlier_expiration)) must not
/// advance the timer either.
#[derive(Debug)]
pub enum Entry<'a, K: Eq, T> {
    /// The key has a task.
    Occupied(OccupiedEntry<'a, K, T>),
    /// The key has no task.
    Vacant(VacantEntry<'a, K, T>),
}

/// A key that has a task.
pub struct OccupiedEntry<'a, K: Eq, T> {
    held: Held<'a, K, T>,
    index: u32,
}

/// A key that has no task.
pub struct VacantEntry<'a, K: Eq, T> {
    held: Held<'a, K, T>,
    hash: u64,
}

/// A shard under its lock, for as long as the user likes. So threads that sleep are woken at once;
/// loops and futures, whose waking is the user's code, are woken when the lock is released.
pub(crate) struct Held<'a, K: Eq, T> {
    shards: &'a Shards<K, T>,
    /// `None` only while it is dropped.
    shard: Option<Locked<'a, K, T>>,
    wakes: Wakes,
    /// The key that the caller has passed, unless the shard has it: to be dropped when the lock is
    /// released.
    pub(crate) key: Option<K>,
}

impl<'a, K: Eq, T> Held<'a, K, T> {
    #[inline]
    pub(crate) fn new(shards: &'a Shards<K, T>, hash: u64) -> Self {
        Held { shards, shard: Some(shards.lock_for(hash)), wakes: Wakes::Nobody, key: None }
    }

    #[inline]
    fn see(&self) -> &Shard<K, T> {
        self.shard.as_ref().expect("it is there until this is dropped")
    }

    #[inline]
    pub(crate) fn shard(&mut self) -> &mut Shard<K, T> {
        self.shard.as_mut().expect("it is there until this is dropped")
    }

    /// Wakes the threads that sleep, and notes whom else to wake, in addition to those that earlier
    /// changes named.
    fn note(&mut self, wakes: Wakes) {
        self.wakes = self.wakes.max(self.shards.context.wake_threads(wakes));
    }
}

impl<K: Eq, T> Drop for Held<'_, K, T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.shard.take());
        self.shards.context.wake(self.wakes);
        self.shards.context.discard(self.key.take());
    }
}

impl<'a, K: Eq, T> OccupiedEntry<'a, K, T> {
    #[inline]
    pub(crate) fn new(held: Held<'a, K, T>, index: u32) -> Self {
        OccupiedEntry { held, index }
    }

    /// Returns a reference to the task.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.held.see().core.at(self.index).task
    }

    /// Returns a mutable reference to the task.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.held.shard().core.at_mut(self.index).task
    }

    /// Returns when the task expires; `None` if it never does, because its deadline lies more than
    /// 584 years after the timer was built.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.held.see().deadline(&self.held.shards.context, self.index)
    }

    /// Replaces the task, and returns the former one. The deadline stays.
    pub fn replace(&mut self, task: T) -> T {
        self.held.shard().replace(self.index, task)
    }

    /// Extends the deadline to `delay` from now; it never moves to an earlier one.
    pub fn touch(&mut self, delay: Duration) {
        self.extend_to(When::After(delay));
    }

    /// Extends the deadline to `deadline`; it never moves to an earlier one.
    pub fn touch_at(&mut self, deadline: Instant) {
        self.extend_to(When::At(deadline));
    }

    /// Moves the deadline to `delay` from now, earlier or later.
    pub fn reschedule(&mut self, delay: Duration) {
        self.move_to(When::After(delay));
    }

    /// Moves the deadline to `deadline`, earlier or later.
    pub fn reschedule_at(&mut self, deadline: Instant) {
        self.move_to(When::At(deadline));
    }

    /// Takes the task back: it does not expire, and the key is removed.
    pub fn cancel(mut self) -> T {
        let (shards, index) = (self.held.shards, self.index);
        let cancelled = self.held.shard().cancel(&shards.context, index);
        drop(self); // The drop of a key needs no lock.
        shards.task_of(cancelled.expect("nobody else took it meanwhile"))
    }

    fn extend_to(&mut self, when: When) {
        let (_, deadline) = self.held.shards.context.resolve(when);
        let index = self.index;
        self.held.shard().core.extend(index, deadline);
    }

    fn move_to(&mut self, when: When) {
        let (shards, index) = (self.held.shards, self.index);
        let times = shards.context.resolve(when);
        let wakes = self.held.shard().move_to(&shards.context, index, times);
        self.held.note(wakes);
    }
}

impl<'a, K: Eq, T> VacantEntry<'a, K, T> {
    /// Creates the entry of the key that is in `held`.
    pub(crate) fn new(held: Held<'a, K, T>, hash: u64) -> Self {
        VacantEntry { held, hash }
    }

    /// Returns a reference to the key.
    #[must_use]
    pub fn key(&self) -> &K {
        self.held.key.as_ref().expect("it is there until this is scheduled")
    }

    /// Schedules a task for the key.
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down.
    pub fn schedule(self, entry: TimerEntry<T>) -> Result<(), AddError<T>> {
        let VacantEntry { mut held, hash } = self;
        let key = held.key.take().expect("it is there until this is scheduled");
        let context = &*held.shards.context;
        let times = context.resolve(entry.when());
        match held.shard().add(context, hash, (key, entry), times) {
            Ok(wakes) => {
                held.note(wakes);
                Ok(())
            }
            Err((key, error)) => {
                held.key = Some(key);
                Err(error)
            }
        }
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
