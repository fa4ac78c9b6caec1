//! The operation reference: identifies one operation, in order to check it or to end it.
//!
//! Ending an operation means removing it from all its keys and from the wheels first, then calling
//! its code, and then dropping it.

use crate::purgatory::nesting::{check_again, is_checked_again};
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::place::Id;
use crate::purgatory::shard::{Ended, Shard};
use crate::purgatory::shards::Shards;
use crate::purgatory::state::{Claim, EndedBy, Errand, Next, Request};
use crate::timer::entry::{Task, TimerEntry, When};
use std::time::Duration;

/// A reference to an operation, which stays harmless after the operation has ended.
pub(crate) struct OperationRef<K: 'static, O: 'static> {
    pub(crate) shards: &'static Shards<K, O>,
    pub(crate) id: Id,
}

/// What happened to an operation after its holder has served all requests.
pub(crate) enum Served<O> {
    /// The operation waits; another thread may hold it now.
    Waits,
    Ended(EndedBy),
    Withdrawn(O),
}

impl<K, O> OperationRef<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Takes the operation out to check it, for a trigger, unless another thread holds it.
    #[inline]
    pub(crate) fn trigger(&self) -> Option<O> {
        self.trigger_in(&mut self.shards.lock(self.id.shard))
    }

    #[inline]
    fn trigger_in(&self, shard: &mut Shard<K, O>) -> Option<O> {
        if self.is_in_vain(shard) { None } else { shard.trigger(self.id.key) }
    }

    /// Returns whether a trigger by this thread comes from a repeated check of this same operation,
    /// and no executor is left.
    #[inline]
    fn is_in_vain(&self, shard: &Shard<K, O>) -> bool {
        shard.closed && is_checked_again(self.address(), self.id)
    }

    /// Returns an address that tells the operation's purgatory from others.
    fn address(&self) -> usize {
        std::ptr::from_ref(self.shards).addr()
    }

    /// Checks the condition of an operation that was triggered. Returns whether this call completed
    /// it. If the operation continues to wait, and the operation `next` is in the same shard,
    /// triggers `next` under the same lock and returns it too.
    #[inline]
    pub(crate) fn check(&self, mut operation: O, next: Option<Id>) -> (bool, Option<O>) {
        if let Some(ended_by) = self.condition(&mut operation) {
            return (was_triggered(&self.end(operation, ended_by)), None);
        }
        let mut shard = self.shards.lock(self.id.shard);
        let (then, operation, wakes) = shard.release(self.id.key, operation, true);
        let next = next.filter(|next| next.shard == self.id.shard && then == Next::LetGo(None));
        let shards = self.shards;
        let triggered = next.and_then(|id| OperationRef { shards, id }.trigger_in(&mut shard));
        self.shards.wake(shard, wakes);
        (was_triggered(&self.serve((then, operation))), triggered)
    }

    /// Leaves a check to the executor, for a trigger that is nested too deep. If no executor takes
    /// it, makes it all the same. Returns whether that completed the operation.
    #[cold]
    pub(crate) fn leave_check(&self) -> bool {
        let mut shard = self.shards.lock(self.id.shard);
        let is_left = !self.is_in_vain(&shard) && shard.hand_on(self.id.key);
        drop(shard);
        let refused = if is_left { self.hand_on_check() } else { None };
        refused.is_some_and(|operation| self.check(operation, None).0)
    }

    /// Makes a check that was handed to the executor and has arrived.
    fn arrive(&self) {
        let operation = self.shards.lock(self.id.shard).arrive(self.id.key);
        operation.map(|operation| self.check(operation, None));
    }

    /// Lets go of the operation, whose condition is false, unless something else has to be done
    /// with it.
    fn release(&self, operation: O, may_check: bool) -> (Next, Option<O>) {
        let mut shard = self.shards.lock(self.id.shard);
        let (next, operation, wakes) = shard.release(self.id.key, operation, may_check);
        self.shards.wake(shard, wakes);
        (next, operation)
    }

    /// Serves the requests that are left after the condition was found false. Checks once for the
    /// triggers that arrived during the check. Later triggers are left to the executor: otherwise
    /// this thread could go on serving them without end.
    #[inline]
    pub(crate) fn serve(&self, next: (Next, Option<O>)) -> Served<O> {
        if next.0 == Next::LetGo(None) { Served::Waits } else { self.serve_others(next) }
    }

    #[cold]
    fn serve_others(&self, mut next: (Next, Option<O>)) -> Served<O> {
        loop {
            let (duty, operation) = match next {
                (Next::Keep(duty), operation) => (duty, operation),
                (Next::LetGo(None), _) => return Served::Waits,
                (Next::LetGo(Some(Errand::Expire)), _) => {
                    // The timer was shut down, so no other thread will make the check.
                    self.expire();
                    return Served::Ended(EndedBy::Expired);
                }
                (Next::LetGo(Some(Errand::Check)), _) => {
                    (Request::CheckAgain, self.hand_on_check())
                }
            };
            let Some(mut operation) = operation else { return Served::Waits };
            let fate = match duty {
                Request::CheckAgain => {
                    check_again(self.address(), self.id, || self.condition(&mut operation))
                }
                Request::End => Some(EndedBy::Cancelled),
            };
            if let Some(fate) = fate {
                return self.end(operation, fate);
            }
            next = self.release(operation, false);
        }
    }

    /// Has the executor check the operation, which no thread holds any more. Returns the operation
    /// if the timer accepts no more tasks: then this thread makes the checks, for as long as they
    /// are asked for.
    fn hand_on_check(&self) -> Option<O> {
        let service = self.shards.lock(self.id.shard).service.clone()?;
        let check = HandedCheck(*self);
        let check = Task::new(move || drop(check));
        let now = When::After(Duration::ZERO);
        // Each operation has at most one, and a full timer is no reason to serve without bound.
        let check = TimerEntry::new(now, check);
        let Err(refused) = service.closures.as_ref()?.add_beyond_limit(check) else { return None };
        let operation = self.shards.lock(self.id.shard).arrive(self.id.key);
        drop(refused); // This drop finds that it has arrived.
        operation
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    pub(crate) fn end(&self, operation: O, wants: EndedBy) -> Served<O> {
        let (ended_by, places) = self.shards.lock(self.id.shard).finish(self.id.key, wants);
        self.shards.leave(&places);
        match ended_by {
            EndedBy::AtOnce | EndedBy::Triggered | EndedBy::Forced => {
                self.conclude(operation, O::on_complete);
            }
            EndedBy::Expired => self.conclude(operation, expire),
            EndedBy::Cancelled => self.conclude(operation, O::on_cancellation),
            EndedBy::Panicked => {
                self.shards.count_panic(self.id);
                self.conclude(operation, |_| ());
            }
            EndedBy::Withdrawn => return Served::Withdrawn(operation),
        }
        Served::Ended(ended_by)
    }

    #[inline]
    fn conclude(&self, operation: O, code: impl FnOnce(&mut O) + 'static) {
        self.shards.conclude(self.id, operation, code);
    }

    /// Completes the operation, unless its end is decided. Returns whether this call completed it,
    /// or made its holder complete it.
    pub(crate) fn force(&self) -> bool {
        let (claim, operation) = self.claim(EndedBy::Forced);
        if let Some(operation) = operation {
            self.conclude(operation, O::on_complete);
        }
        claim != Claim::Lost
    }

    /// Expires the operation when its alarm goes off, or makes its holder expire it, unless its end
    /// is decided.
    pub(crate) fn expire(&self) {
        if let (_, Some(operation)) = self.claim(EndedBy::Expired) {
            self.conclude(operation, expire);
        }
    }

    /// Takes the operation back, or makes its holder let it go.
    pub(crate) fn cancel(&self) -> (Claim, Option<O>) {
        self.claim(EndedBy::Cancelled)
    }

    /// Cancels like `cancel`, but skips an operation that is still being added.
    pub(crate) fn cancel_unless_adding(&self) -> Option<O> {
        let claimed = self.shards.lock(self.id.shard).cancel_unless_adding(self.id.key);
        self.left(claimed).1
    }

    fn claim(&self, wants: EndedBy) -> (Claim, Option<O>) {
        let claimed = self.shards.lock(self.id.shard).claim(self.id.key, wants);
        self.left(claimed)
    }

    fn left(&self, (claim, ended): (Claim, Option<Ended<O>>)) -> (Claim, Option<O>) {
        let operation = ended.and_then(|ended| {
            self.shards.leave(&ended.places);
            ended.operation
        });
        (claim, operation)
    }

    /// Checks the operation. Returns how the check ends it, or `None` if its condition is false.
    #[inline]
    pub(crate) fn condition(&self, operation: &mut O) -> Option<EndedBy> {
        match self.shards.catch_panic(self.id, || operation.try_complete()) {
            Some(false) => None,
            Some(true) => Some(EndedBy::Triggered),
            None => Some(EndedBy::Panicked),
        }
    }

    /// Returns whether the operation waits and its end is undecided.
    pub(crate) fn is_pending(&self) -> bool {
        self.shards.lock(self.id.shard).is_pending(self.id.key)
    }
}

impl<K, O> Clone for OperationRef<K, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, O> Copy for OperationRef<K, O> {}

fn was_triggered<O>(served: &Served<O>) -> bool {
    matches!(served, Served::Ended(EndedBy::Triggered))
}

/// A check that is on its way to the executor. Dropping it makes the check, whether the task ran or
/// not. So no trigger is lost with a task that an executor refuses, or that a shutdown of the timer
/// returns.
struct HandedCheck<K, O>(OperationRef<K, O>)
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation;

impl<K, O> Drop for HandedCheck<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn drop(&mut self) {
        self.0.arrive();
    }
}

fn expire<O: DelayedOperation>(operation: &mut O) {
    operation.on_complete();
    operation.on_expiration();
}
