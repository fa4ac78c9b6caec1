//! The shard: a lock, and behind it a body, in which an owner keeps entries.
//!
//! A timer, keyed timers and a purgatory are owners of shards, whose bodies differ in their
//! [content](Content). Here is what they have in common: who may add, where entries are filed, how
//! they are flushed, and that listeners are woken then.
//!
//! # Locks
//! Under a shard's lock the delay queue's lock may be taken, but never another shard's. No user
//! code runs under it, unless the documentation of the content says so; and the clock is one of the
//! crate's own.

use crate::store::key::Key;
use crate::sync::MutexGuard;
use crate::timer::context::TimerContext;
use crate::timer::shard_lock::ShardLock;
use crate::wheel::bucket::Reference;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::{Core, Trimmed};
use crate::wheel::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// What an owner keeps in a shard beside the core.
pub(crate) trait Content: Sized {
    /// The value of an entry.
    type Item;

    /// Creates the content of a shard that has this place among those of its owner.
    fn new(place: usize) -> Self;

    /// Returns whether nothing is left that belongs to the owner.
    fn is_empty(&self) -> bool;

    /// Returns whether an entry is filed, rather than held by its owner after a flush.
    fn is_filed(item: &Self::Item) -> bool;
}

/// Padded, so that two shards' locks never share a cache line.
pub(crate) struct Shard<C: Content>(pub(crate) CachePadded<ShardLock<Body<C>>>);

/// What is behind the lock of a shard.
pub(crate) struct Body<C: Content> {
    pub(crate) core: Core<C::Item>,
    /// That of the owner; `None` while the shard has none.
    context: Option<Arc<TimerContext>>,
    /// Set by a shutdown: from then on nothing can be added, and nothing moves.
    pub(crate) closed: bool,
    /// Whether listeners have to be woken when the lock is released, because of what was filed.
    owes: bool,
    pub(crate) content: C,
}

/// The reason why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

/// Whether an entry needs a permit where `max_pending` limits their number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    WithinLimit,
    /// For what cannot be refused: takes a permit even if all are taken.
    BeyondLimit,
}

/// The present, if it was read, and a deadline.
pub(crate) type Times = (Option<u64>, u64);

impl<C: Content> Shard<C> {
    /// Creates a shard without an owner.
    pub(crate) fn new(place: usize) -> Self {
        Shard(CachePadded::new(ShardLock::new(Body {
            core: Core::idle(),
            context: None,
            closed: true,
            owes: false,
            content: C::new(place),
        })))
    }

    /// Begins to serve an owner; the shard must be free.
    pub(crate) fn serve(&self, context: Arc<TimerContext>, wheels: Wheels, content: C) {
        let mut body = self.0.lock();
        drop(body.core.restart(Core::new(context.time.ticks, wheels)));
        (body.context, body.content, body.closed) = (Some(context), content, false);
    }

    /// Closes the shard, whose owner has gone, and frees what it holds for that owner, unless
    /// something is left of it.
    pub(crate) fn retire(&self, place: usize) {
        let mut body = self.0.lock();
        body.closed = true;
        if !body.is_free() {
            return;
        }
        let context = body.context.take();
        let content = std::mem::replace(&mut body.content, C::new(place));
        let core = body.core.restart(Core::idle());
        drop(body);
        drop((context, content, core)); // Not under the lock: callers of old handles need not wait.
    }

    /// Calls `act` with the body, under the lock. Wakes listeners afterwards.
    ///
    /// A guard that does this in its drop would cost 25 instructions more: it is not inlined.
    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Body<C>) -> R) -> R {
        let mut body = self.0.lock();
        let answer = act(&mut body);
        if body.owes {
            Self::wake(body);
        }
        answer
    }

    #[cold]
    fn wake(body: MutexGuard<'_, Body<C>>) {
        drop(Self::release(body));
    }

    /// Releases the lock, and returns the duty to wake.
    pub(crate) fn release(mut body: MutexGuard<'_, Body<C>>) -> Wakeup {
        let owes = std::mem::take(&mut body.owes);
        Wakeup(if owes { body.context.clone() } else { None })
    }
}

/// The duty to wake listeners, once no lock is held.
#[must_use = "dropped at once, it wakes at once"]
pub(crate) struct Wakeup(Option<Arc<TimerContext>>);

impl Drop for Wakeup {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.wake_listeners();
        }
    }
}

impl<C: Content> Body<C> {
    /// Returns the context of the owner, if the shard has one.
    pub(crate) fn context(&self) -> Option<&Arc<TimerContext>> {
        self.context.as_ref()
    }

    /// Returns whether the shard is closed, and nothing is left in it.
    pub(crate) fn is_free(&self) -> bool {
        self.closed && self.core.len() == 0 && self.content.is_empty()
    }

    /// Takes a permit for another entry, unless the shard is closed or all permits are taken.
    #[inline]
    pub(crate) fn admit(&self, admission: Admission) -> Result<(), Refusal> {
        let Body { context: Some(context), closed: false, .. } = self else {
            return Err(Refusal::Closed);
        };
        match &context.limit {
            Some(limit) if admission == Admission::BeyondLimit => limit.overdraw(),
            Some(limit) if !limit.acquire() => return Err(Refusal::Full),
            _ => {}
        }
        Ok(())
    }

    /// Adds an item, and files it. An item that is refused comes back.
    #[inline]
    pub(crate) fn add(
        &mut self,
        item: C::Item,
        times: Times,
        admission: Admission,
    ) -> Result<Key, (Refusal, C::Item)> {
        if let Err(refusal) = self.admit(admission) {
            return Err((refusal, item));
        }
        let (_, deadline) = times;
        let tick = self.core.ticks.ceil(deadline);
        let (key, reference) = self.core.insert(deadline, tick, item);
        self.file_new(reference, tick, times);
        Ok(key)
    }

    /// Gives permits back, under the same lock under which their entries have gone: a thread that
    /// finds one gone also finds its permit free.
    #[inline]
    pub(crate) fn release_permits(&self, permits: usize) {
        if let Some(context) = &self.context {
            context.release_permits(permits);
        }
    }

    /// Files a new entry. If the entry belongs in an overflow bucket that is armed already, this
    /// need not read the clock.
    #[inline]
    pub(crate) fn file_new(&mut self, reference: Reference, tick: u64, (now, deadline): Times) {
        let has_passed = now.is_some_and(|now| deadline <= now);
        if has_passed || !self.core.wheels.join_far(reference, tick) {
            self.file(reference, tick, (now, deadline));
        }
    }

    /// Files an entry that opens a far bucket or is due soon, and notes whether listeners have to
    /// be woken.
    ///
    /// If its deadline has passed, the entry need not wait for the next tick. If the entry opens a
    /// far bucket while nothing is due, the wheels' time leaps to the present first: it lags behind
    /// after an idle period, and the entry may not be far away at all.
    pub(crate) fn file(&mut self, reference: Reference, tick: u64, (now, deadline): Times) {
        let Body { core, context: Some(context), owes, .. } = self else { return };
        let TimerContext { time, delay_queue, .. } = &**context;
        let now = now.unwrap_or_else(|| time.now());
        let present = time.ticks.floor(now);
        let wheels = &mut core.wheels;
        let arm = |expiration| *owes |= delay_queue.offer(expiration);
        if deadline <= now {
            wheels.file_elapsed(reference, tick, arm);
        } else {
            if wheels.is_far(tick) && delay_queue.is_quiet(present) {
                wheels.leap(present);
            }
            wheels.file(reference, tick, arm);
        }
    }

    /// Moves an entry to another deadline, and files it there unless the shard is closed. Returns
    /// whether it did.
    pub(crate) fn refile(&mut self, index: u32, times: Times) -> bool {
        let (_, deadline) = times;
        let tick = self.core.ticks.ceil(deadline);
        let reference = self.core.move_up(index, deadline, tick);
        if !self.closed {
            self.file(reference, tick, times);
        }
        !self.closed
    }

    /// Notes that the caller may go on holding the lock for any length of time.
    pub(crate) fn go_on_holding(&self) {
        if let Some(context) = self.context.as_ref().filter(|_| self.owes) {
            context.delay_queue.owe();
        }
    }

    /// Ends the flush of a bucket; see [`DelayQueue::flushed`].
    ///
    /// [`DelayQueue::flushed`]: crate::timer::delay_queue::DelayQueue::flushed
    pub(crate) fn flushed(&mut self, armed: &mut Vec<Expiration>, unfinished: Option<Expiration>) {
        if let Some(context) = &self.context {
            self.owes |= context.delay_queue.flushed(armed.drain(..), unfinished);
        }
    }

    /// Takes a bucket that holds only cancelled entries out of the delay queue, where it came
    /// first. Does bounded work, and returns what it found.
    pub(crate) fn forget_if_empty(&mut self, expiration: Expiration) -> Trimmed {
        let trimmed = self.core.trim(expiration.bucket);
        let Some(context) = &self.context else { return trimmed };
        if trimmed == Trimmed::Empty && context.delay_queue.take(expiration) {
            self.core.wheels.disarm_if_empty(expiration.bucket);
        }
        trimmed
    }

    /// Takes a batch of pending entries out, with their deadlines. Returns whether there may be
    /// more.
    pub(crate) fn drain(&mut self, cursor: &mut usize, out: &mut Vec<(u64, C::Item)>) -> bool {
        let more = self.core.drain(cursor, |deadline, item| out.push((deadline, item)));
        self.release_permits(out.len());
        more
    }
}
