//! The cell: one shard behind its lock, and everything that a timeout's handle needs.
//!
//! A handle refers to its cell without counting the reference, so a cell is never freed: when its
//! timer is dropped it is emptied, and waits in the [pool](crate::pool) for the next timer. Handles
//! of the old timer stay harmless, because its keys are never given out again.
//!
//! # Locks
//! Under a cell's lock the gate's lock may be taken, never another cell's. No user code runs under
//! it: tasks leave it by value and are dropped or run outside, and the clock is one of ours.

use crate::bucket::BucketId;
use crate::common::Common;
use crate::delay_queue::Expiration;
use crate::entry::When;
use crate::gate::{Gate, Wakes};
use crate::key::Key;
use crate::shard::{Shard, Trimmed};
use crate::sync::{Mutex, MutexGuard, thread_number};
use crate::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// Padded, so that two cells' locks never share a cache line.
#[derive(Debug)]
pub(crate) struct Cell<T>(CachePadded<Mutex<State<T>>>);

#[derive(Debug)]
pub(crate) struct State<T> {
    pub(crate) shard: Shard<T>,
    /// What belongs to the timer; `None` while the cell has none.
    common: Option<Arc<Common>>,
    /// Set by shutdown: from then on nothing comes in.
    closed: bool,
    /// The thread that added last, and how many other threads' calls came since it was last
    /// crowded.
    owner: u32,
    strangers: u32,
}

/// How often a lock is tried before it counts as taken: about as long as a call holds it. In models
/// nobody is quicker for trying again.
const TRIES: usize = if cfg!(tickwheel_model) { 1 } else { 32 };

/// Calls of other threads that make a cell crowded: the owner goes to the pair's other cell then.
const CROWD: u32 = 64;

/// Why an entry was not added.
pub(crate) enum Refusal {
    Full,
    Closed,
}

/// Moves of a deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    To,
    /// Only to a later one.
    Extend,
}

impl<T> Cell<T> {
    /// A cell without a timer.
    pub(crate) fn new() -> Self {
        let shard = Shard::idle();
        let state = State { shard, common: None, closed: true, owner: 0, strangers: 0 };
        Cell(CachePadded::new(Mutex::new(state)))
    }

    /// Lets the cell, which has no timer, begin to serve one.
    pub(crate) fn serve(&self, common: Arc<Common>, wheels: Wheels) {
        let mut state = self.lock();
        drop(state.shard.restart(Shard::new(common.time.ticks, wheels)));
        state.common = Some(common);
        state.closed = false;
    }

    /// Frees what the cell holds for its timer, which has been drained. Whether it may serve
    /// another one: not if too many of its keys are used up.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.lock();
        state.common = None;
        let former = state.shard.restart(Shard::idle());
        let is_reusable = !state.shard.is_worn();
        drop(state);
        drop(former); // Handles that were kept need not wait for that.
        is_reusable
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock()
    }

    /// Adds a task. Returns its key, and whether the cell is crowded; the task comes back in `Err`.
    #[inline]
    pub(crate) fn add(
        &self,
        common: &Common,
        when: When,
        task: T,
    ) -> Result<(Key, bool), (Refusal, T)> {
        if common.limit.as_ref().is_some_and(|limit| !limit.acquire()) {
            return Err((Refusal::Full, task));
        }
        self.add_permitted(common, when, task)
    }

    /// The same, and never refused for want of a permit.
    pub(crate) fn add_beyond_limit(
        &self,
        common: &Common,
        when: When,
        task: T,
    ) -> Result<(Key, bool), (Refusal, T)> {
        if let Some(limit) = &common.limit {
            limit.overdraw();
        }
        self.add_permitted(common, when, task)
    }

    /// Adds a task that has its permit.
    #[inline]
    fn add_permitted(
        &self,
        common: &Common,
        when: When,
        task: T,
    ) -> Result<(Key, bool), (Refusal, T)> {
        let (now, deadline) = common.resolve(when);
        let tick = common.time.ticks.ceil(deadline);
        let mut state = self.lock();
        if state.closed {
            common.release_permits(1);
            return Err((Refusal::Closed, task));
        }
        let (key, reference) = state.shard.insert(deadline, tick, task);
        let has_passed = now.is_some_and(|now| deadline <= now);
        let wakes = if !has_passed && state.shard.wheels.join_far(reference, tick) {
            Wakes::Nobody
        } else {
            common.file(&mut state.shard, reference, tick, now, deadline)
        };
        let crowded = state.note_owner();
        drop(state);
        common.gate.wake(wakes);
        Ok((key, crowded))
    }

    /// Takes a task out. `seen` runs under the lock if it was still pending.
    #[inline]
    pub(crate) fn cancel(&self, key: Key, seen: impl FnOnce()) -> Option<T> {
        let mut state = self.lock();
        state.note_caller();
        let task = state.shard.cancel(key)?;
        // Both under the lock: who finds the timer gone finds its permit free.
        seen();
        if let Some(common) = &state.common {
            common.release_permits(1);
        }
        Some(task)
    }

    /// Gives a pending timer another task: its former one, or the new one if it is not pending.
    pub(crate) fn replace(&self, key: Key, task: T) -> Result<T, T> {
        let mut state = self.lock();
        state.note_caller();
        match state.shard.task_mut(key) {
            Some(former) => Ok(mem::replace(former, task)),
            None => Err(task),
        }
    }

    /// Moves the deadline of a pending task; whether it was still pending.
    pub(crate) fn reschedule(&self, key: Key, when: When, how: Move) -> bool {
        let mut state = self.lock();
        state.note_caller();
        // A closed shard is being drained: nothing moves any more.
        let State { shard, common: Some(common), closed: false, .. } = &mut *state else {
            return false;
        };
        let Some(old) = shard.deadline(key) else { return false };
        let (now, deadline) = common.resolve(when);
        if deadline >= old || how == Move::Extend {
            shard.extend(key, deadline);
            return true;
        }
        let tick = common.time.ticks.ceil(deadline);
        let reference = shard.move_up(key, deadline, tick);
        let wakes = common.file(shard, reference, tick, now, deadline);
        if wakes != Wakes::Nobody {
            let common = Arc::clone(common);
            drop(state);
            common.gate.wake(wakes);
        }
        true
    }

    pub(crate) fn is_pending(&self, key: Key) -> bool {
        self.lock().shard.deadline(key).is_some()
    }

    pub(crate) fn deadline(&self, key: Key) -> Option<Instant> {
        let state = self.lock();
        let deadline = state.shard.deadline(key)?;
        state.common.as_ref().map(|common| common.time.instant_of(deadline))
    }

    /// The lock, unless somebody keeps it for longer than a call takes: then its holder waits for
    /// a core, and so would whoever waited for it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State<T>>> {
        (0..TRIES).find_map(|_| {
            let state = self.0.try_lock();
            if state.is_none() {
                std::hint::spin_loop();
            }
            state
        })
    }

    /// Takes a bucket that holds only what was cancelled out of the delay queue, where it came
    /// first. Without it, somebody would wake up for nothing. Bounded work; what it found.
    pub(crate) fn forget_if_empty(&self, gate: &Gate, expiration: Expiration) -> Trimmed {
        // If somebody is at work there, it is not worth waiting for.
        let Some(mut state) = self.try_lock() else { return Trimmed::Live };
        let trimmed = state.shard.trim(expiration.bucket);
        if trimmed == Trimmed::Empty && gate.take(expiration) {
            state.shard.wheels.disarm_if_empty(expiration.bucket);
        }
        trimmed
    }

    /// Closes the cell and takes everything out that is pending, in small batches.
    pub(crate) fn drain(&self, common: &Common, mut out: impl FnMut(u64, T)) {
        self.lock().closed = true;
        let mut cursor = 0;
        let mut batch = Vec::new();
        loop {
            let more = self.lock().shard.drain(&mut cursor, |deadline, task| {
                batch.push((deadline, task));
            });
            common.release_permits(batch.len());
            batch.drain(..).for_each(|(deadline, task)| out(deadline, task));
            if !more {
                return;
            }
        }
    }

    pub(crate) fn assert_invariants(&self, is_queued: impl FnMut(u32, BucketId) -> usize) {
        self.lock().shard.assert_invariants(is_queued);
    }
}

impl<T> State<T> {
    /// Flushes a batch of a bucket that was polled under this lock, and tells the gate. Returns
    /// whom to wake when the lock is released.
    pub(crate) fn flush(
        &mut self,
        common: &Common,
        expiration: Expiration,
        now: u64,
        armed: &mut Vec<Expiration>,
        expired: &mut Vec<T>,
    ) -> Wakes {
        let before = expired.len();
        let arm = |expiration| armed.push(expiration);
        let unfinished = self.shard.flush(expiration, now, arm, |task| expired.push(task));
        // Under the lock: who finds the timer gone finds its permit free.
        common.release_permits(expired.len() - before);
        common.gate.flushed(armed.drain(..), unfinished)
    }

    /// Notes that the calling thread adds here. Whether too many others came meanwhile.
    #[inline]
    fn note_owner(&mut self) -> bool {
        self.owner = thread_number();
        let crowded = self.strangers >= CROWD;
        if crowded {
            self.strangers = 0;
        }
        crowded
    }

    #[inline]
    fn note_caller(&mut self) {
        if self.owner != thread_number() {
            self.strangers = self.strangers.saturating_add(1);
        }
    }
}
