//! The cell: one shard behind its lock, and everything that a timeout's handle needs.
//!
//! # Locks
//! Under a cell's lock the gate's lock may be taken, never another cell's. No user code runs under
//! it: tasks leave it by value and are dropped or run outside, and the clock is one of ours.

use crate::bucket::{BucketId, Reference};
use crate::clock::Time;
use crate::delay_queue::Expiration;
use crate::entry::When;
use crate::gate::{Gate, Wakes};
use crate::limit::Limit;
use crate::shard::{Shard, Trimmed};
use crate::slab::Key;
use crate::sync::{Mutex, MutexGuard, thread_number};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// What all cells of a timer share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) time: Time,
    pub(crate) gate: Arc<Gate>,
    pub(crate) limit: Option<Limit>,
}

#[derive(Debug)]
pub(crate) struct Cell<T> {
    common: Arc<Common>,
    /// Padded, so that two cells' locks never share a cache line.
    state: CachePadded<Mutex<State<T>>>,
}

#[derive(Debug)]
pub(crate) struct State<T> {
    pub(crate) shard: Shard<T>,
    /// Set by shutdown: from then on nothing comes in.
    pub(crate) closed: bool,
    /// The thread that added last, and how many other threads' calls came since it was last
    /// crowded.
    owner: u32,
    strangers: u32,
}

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
    pub(crate) fn new(common: Arc<Common>, shard: Shard<T>) -> Self {
        let state = State { shard, closed: false, owner: 0, strangers: 0 };
        Cell { common, state: CachePadded::new(Mutex::new(state)) }
    }

    pub(crate) fn common(&self) -> &Common {
        &self.common
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Adds a task. Returns its key, and whether the cell is crowded; the task comes back in `Err`.
    #[inline]
    pub(crate) fn add(&self, when: When, task: T) -> Result<(Key, bool), (Refusal, T)> {
        let Common { time, limit, .. } = &*self.common;
        let (now, deadline) = resolve(time, when);
        let tick = time.ticks.ceil(deadline);
        if limit.as_ref().is_some_and(|limit| !limit.acquire()) {
            return Err((Refusal::Full, task));
        }
        let mut state = self.lock();
        if state.closed {
            self.release_permits(1);
            return Err((Refusal::Closed, task));
        }
        let (key, reference) = state.shard.insert(deadline, tick, task);
        let has_passed = now.is_some_and(|now| deadline <= now);
        let wakes = if !has_passed && state.shard.wheels.join_far(reference, tick) {
            Wakes::Nobody
        } else {
            self.file(&mut state, reference, tick, now, deadline)
        };
        let crowded = state.note_owner();
        drop(state);
        self.common.gate.wake(wakes);
        Ok((key, crowded))
    }

    /// Files an entry that opens a far bucket or is due soon.
    ///
    /// Its deadline may have passed: then it need not wait for the next tick. And if it opens a far
    /// bucket while nothing is due, the wheels' time leaps to the present first: it lags behind
    /// after an idle spell, and the entry may not be far at all.
    fn file(
        &self,
        state: &mut State<T>,
        reference: Reference,
        tick: u64,
        now: Option<u64>,
        deadline: u64,
    ) -> Wakes {
        let Common { time, gate, .. } = &*self.common;
        let now = now.unwrap_or_else(|| time.now());
        let present = time.ticks.floor(now);
        let wheels = &mut state.shard.wheels;
        let mut wakes = Wakes::Nobody;
        let arm = |expiration| wakes = gate.offer(expiration);
        if deadline <= now {
            wheels.file_elapsed(reference, arm);
        } else {
            if wheels.is_far(tick) && gate.is_quiet(present) {
                wheels.leap(present);
            }
            wheels.file(reference, tick, arm);
        }
        wakes
    }

    /// Takes a task out. `seen` runs under the lock if it was still pending.
    #[inline]
    pub(crate) fn cancel(&self, key: Key, seen: impl FnOnce()) -> Option<T> {
        let mut state = self.lock();
        state.note_caller();
        let task = state.shard.cancel(key)?;
        // Both under the lock: who finds the timer gone finds its permit free.
        seen();
        self.release_permits(1);
        Some(task)
    }

    /// Moves the deadline of a pending task; whether it was still pending.
    pub(crate) fn reschedule(&self, key: Key, when: When, how: Move) -> bool {
        let (now, deadline) = resolve(&self.common.time, when);
        let mut state = self.lock();
        state.note_caller();
        let old = match state.shard.deadline(key) {
            // A closed shard is being drained: nothing moves any more.
            Some(old) if !state.closed => old,
            _ => return false,
        };
        if deadline >= old || how == Move::Extend {
            state.shard.extend(key, deadline);
            return true;
        }
        let tick = self.common.time.ticks.ceil(deadline);
        let reference = state.shard.move_up(key, deadline, tick);
        let wakes = self.file(&mut state, reference, tick, now, deadline);
        drop(state);
        self.common.gate.wake(wakes);
        true
    }

    pub(crate) fn deadline(&self, key: Key) -> Option<u64> {
        self.lock().shard.deadline(key)
    }

    /// Flushes a batch of a polled bucket, and tells the gate. Returns how many tasks expired.
    pub(crate) fn flush(
        &self,
        expiration: Expiration,
        now: u64,
        armed: &mut Vec<Expiration>,
        expired: &mut Vec<T>,
    ) -> usize {
        let before = expired.len();
        let mut state = self.lock();
        let arm = |expiration| armed.push(expiration);
        let unfinished = state.shard.flush(expiration, now, arm, |task| expired.push(task));
        let wakes = self.common.gate.flushed(armed.drain(..), unfinished);
        drop(state);
        self.common.gate.wake(wakes);
        let count = expired.len() - before;
        self.release_permits(count);
        count
    }

    /// Takes a bucket that is empty, or holds only what was cancelled, out of the delay queue;
    /// whether it was. Without it, somebody would wake up for nothing.
    pub(crate) fn forget_if_empty(&self, expiration: Expiration) -> bool {
        loop {
            let mut state = self.lock();
            match state.shard.trim(expiration.bucket) {
                Trimmed::Empty => {
                    self.common.gate.remove(expiration);
                    return true;
                }
                Trimmed::Live => return false,
                Trimmed::Unknown => {}
            }
        }
    }

    /// Closes the cell and takes everything out that is pending, in small batches.
    pub(crate) fn drain(&self, mut out: impl FnMut(u64, T)) {
        self.lock().closed = true;
        let mut cursor = 0;
        let mut batch = Vec::new();
        loop {
            let more = self.lock().shard.drain(&mut cursor, |deadline, task| {
                batch.push((deadline, task));
            });
            self.release_permits(batch.len());
            batch.drain(..).for_each(|(deadline, task)| out(deadline, task));
            if !more {
                return;
            }
        }
    }

    pub(crate) fn assert_invariants(&self, is_queued: impl FnMut(u32, BucketId) -> usize) {
        self.lock().shard.assert_invariants(is_queued);
    }

    fn release_permits(&self, permits: usize) {
        if let Some(limit) = &self.common.limit {
            limit.release(permits);
        }
    }
}

impl<T> State<T> {
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

/// The present, if it had to be read or is cheap to read, and the deadline.
#[inline]
fn resolve(time: &Time, when: When) -> (Option<u64>, u64) {
    match when {
        When::After(delay) => {
            let now = time.now();
            (Some(now), time.deadline_after(now, delay))
        }
        When::At(instant) => (time.cheap_now(), time.deadline_at(instant)),
    }
}
