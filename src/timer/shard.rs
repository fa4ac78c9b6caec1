//! The shard: a core behind its lock, and everything that the handle of a timer needs.
//!
//! A handle refers to its shard without counting the reference, so a shard is never freed. When its
//! timer is dropped, the shard is emptied and waits in the [pool](crate::timer::pool) for the next
//! timer. Handles of the old timer stay harmless, because its keys are never issued again.
//!
//! # Locks
//! Under a shard's lock the delay queue's lock may be taken, but never another shard's. No user
//! code runs under it: tasks leave it by value and are dropped or run outside, and the clock is one
//! of the crate's own.

use crate::store::key::Key;
use crate::sync::{MutexGuard, thread_number};
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::Wakes;
use crate::timer::entry::When;
use crate::timer::shard_lock::ShardLock;
use crate::wheel::bucket::BucketId;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Core;
use crate::wheel::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// Padded, so that two shards' locks never share a cache line.
pub(crate) struct Shard<T>(pub(crate) CachePadded<ShardLock<State<T>>>);

pub(crate) struct State<T> {
    pub(crate) core: Core<T>,
    /// The part that belongs to the timer; `None` while the shard has none.
    context: Option<Arc<TimerContext>>,
    /// Set by shutdown: from then on nothing can be added.
    closed: bool,
    /// The thread that added last, and the number of calls by other threads since the shard was
    /// last crowded.
    owner: u32,
    strangers: u32,
}

/// The number of calls by other threads that make a shard crowded. The owning thread then changes
/// to the other shard of its pair.
const CROWD: u32 = 64;

/// The reason why an entry was not added.
pub(crate) enum Refusal {
    Full,
    Closed,
}

/// The key of an entry, whether the shard is crowded, and whom to wake; or the task that was not
/// added.
pub(crate) type Added<T> = Result<(Key, bool, Wakes), (Refusal, T)>;

/// How a deadline may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    To,
    /// Only to a later deadline.
    Extend,
}

impl<T> Shard<T> {
    /// Creates a shard without a timer.
    pub(crate) fn new() -> Self {
        let core = Core::idle();
        let state = State { core, context: None, closed: true, owner: 0, strangers: 0 };
        Shard(CachePadded::new(ShardLock::new(state)))
    }

    /// Begins to serve a timer; the shard must have none.
    pub(crate) fn serve(&self, context: Arc<TimerContext>, wheels: Wheels) {
        let mut state = self.lock();
        drop(state.core.restart(Core::new(context.time.ticks, wheels)));
        state.context = Some(context);
        state.closed = false;
    }

    /// Frees the memory that the shard holds for its timer, which has been drained. Returns whether
    /// the shard may serve another timer: not if too many of its keys are used up.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.lock();
        state.context = None;
        let former = state.core.restart(Core::idle());
        let is_reusable = !state.core.is_worn();
        drop(state);
        drop(former); // Not under the lock: callers of old handles need not wait for it.
        is_reusable
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock()
    }

    /// Adds a task. Returns its key, whether the shard is crowded, and whom to wake; the task comes
    /// back in `Err`.
    #[inline]
    pub(crate) fn add(&self, context: &TimerContext, when: When, task: T) -> Added<T> {
        if context.limit.as_ref().is_some_and(|limit| !limit.acquire()) {
            return Err((Refusal::Full, task));
        }
        self.add_permitted(context, when, task)
    }

    /// Adds a task as [`add`](Self::add) does, but never refuses it for lack of a permit.
    pub(crate) fn add_beyond_limit(&self, context: &TimerContext, when: When, task: T) -> Added<T> {
        if let Some(limit) = &context.limit {
            limit.overdraw();
        }
        self.add_permitted(context, when, task)
    }

    /// Adds a task for which a permit was taken.
    #[inline]
    fn add_permitted(&self, context: &TimerContext, when: When, task: T) -> Added<T> {
        let (now, deadline) = context.resolve(when);
        let tick = context.time.ticks.ceil(deadline);
        let mut state = self.lock();
        if state.closed {
            context.release_permits(1);
            return Err((Refusal::Closed, task));
        }
        let (key, reference) = state.core.insert(deadline, tick, task);
        let wakes = context.file_new(&mut state.core, reference, tick, now, deadline);
        let crowded = state.note_owner();
        Ok((key, crowded, wakes))
    }

    /// Takes a task out. `seen` runs under the lock if it was still pending.
    #[inline]
    pub(crate) fn cancel(&self, key: Key, seen: impl FnOnce()) -> Option<T> {
        let mut state = self.lock();
        state.note_caller();
        let task = state.core.cancel(key)?;
        // Both under the lock: a thread that finds the timer gone also finds its permit free.
        seen();
        if let Some(context) = &state.context {
            context.release_permits(1);
        }
        Some(task)
    }

    /// Gives a pending timer another task. Returns the former one, or the new one as the error if
    /// the timer is not pending.
    pub(crate) fn replace(&self, key: Key, task: T) -> Result<T, T> {
        let mut state = self.lock();
        state.note_caller();
        match state.core.task_mut(key) {
            Some(former) => Ok(mem::replace(former, task)),
            None => Err(task),
        }
    }

    /// Moves the deadline of a pending task. Returns whom to wake, or `None` if it was not pending
    /// any more.
    pub(crate) fn reschedule(&self, key: Key, when: When, how: Move) -> Option<Wakes> {
        let mut state = self.lock();
        state.note_caller();
        // A closed shard is being drained: no deadline moves any more.
        let State { core, context: Some(context), closed: false, .. } = &mut *state else {
            return None;
        };
        let old = core.deadline(key)?;
        let (now, deadline) = context.resolve(when);
        if deadline >= old || how == Move::Extend {
            core.extend(key.index, deadline);
            return Some(Wakes::Nobody);
        }
        let tick = context.time.ticks.ceil(deadline);
        let reference = core.move_up(key.index, deadline, tick);
        Some(context.file(core, reference, tick, now, deadline))
    }

    /// Wakes those that wait for the shard's timer. If that has gone meanwhile, nobody does.
    pub(crate) fn wake(&self, wakes: Wakes) {
        if wakes != Wakes::Nobody {
            let context = self.lock().context.clone();
            context.iter().for_each(|context| context.wake(wakes));
        }
    }

    pub(crate) fn is_pending(&self, key: Key) -> bool {
        self.lock().core.deadline(key).is_some()
    }

    pub(crate) fn deadline(&self, key: Key) -> Option<Instant> {
        let state = self.lock();
        let deadline = state.core.deadline(key)?;
        state.context.as_ref().map(|context| context.time.instant_of(deadline))
    }

    /// Closes the shard: nothing can be added any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Closes the shard and takes all pending entries out, in small batches.
    pub(crate) fn drain(&self, context: &TimerContext, mut out: impl FnMut(u64, T)) {
        self.close();
        let mut cursor = 0;
        let mut batch = Vec::new();
        loop {
            let more = self.lock().core.drain(&mut cursor, |deadline, task| {
                batch.push((deadline, task));
            });
            context.release_permits(batch.len());
            batch.drain(..).for_each(|(deadline, task)| out(deadline, task));
            if !more {
                return;
            }
        }
    }

    pub(crate) fn assert_invariants(&self, is_queued: impl FnMut(u32, BucketId) -> usize) {
        self.lock().core.assert_invariants(is_queued, |_| true);
    }
}

impl<T> State<T> {
    /// Flushes a batch of a bucket that was polled under this lock, and tells the delay queue.
    /// Returns which sleepers to wake when the lock is released.
    pub(crate) fn flush(
        &mut self,
        context: &TimerContext,
        expiration: Expiration,
        now: u64,
        armed: &mut Vec<Expiration>,
        expired: &mut Vec<T>,
    ) -> Wakes {
        let before = expired.len();
        let arm = |expiration| armed.push(expiration);
        let unfinished = self.core.flush(expiration, now, arm, |task| expired.push(task));
        // Under the lock: a thread that finds the timer gone also finds its permit free.
        context.release_permits(expired.len() - before);
        context.delay_queue.flushed(armed.drain(..), unfinished)
    }

    /// Records that the calling thread adds here. Returns whether too many other threads came in
    /// between.
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
