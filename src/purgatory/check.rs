//! The check: what is done with one operation, from its adding to its end. A reference names it.
//!
//! Ending an operation means removing it from all its keys and from the wheels first, then calling
//! its code, and then dropping it.
//!
//! # Adding
//! Adds an operation: watches it on its keys, and checks it once more.

use crate::engine::clock::When;
use crate::engine::context::TimerContext;
use crate::engine::owner::{Owned, Set};
use crate::engine::shard::{Body, Refusal};
use crate::purgatory::nesting::{check_again, is_checked_again};
use crate::purgatory::operation::{DelayedOperation, WatchError};
use crate::purgatory::operations::{Ended, Operations, Record};
use crate::purgatory::state::{Claim, EndedBy, Errand, Next, Request};
use crate::purgatory::wait_queue::{Id, Places};
use crate::store::slab::Key;
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::part::Alarmed;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// A reference to an operation, which stays harmless after the operation has ended.
pub(crate) struct OperationRef<K: 'static, O: 'static> {
    pub(crate) set: &'static Set<Operations<K, O>>,
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
        self.set.of(self.id).with(|body| self.trigger_in(body))
    }

    #[inline]
    fn trigger_in(&self, body: &mut Body<Operations<K, O>>) -> Option<O> {
        if self.is_in_vain(body) { None } else { body.trigger(self.id.key) }
    }

    /// Returns whether a trigger by this thread comes from a repeated check of this same operation,
    /// and no executor is left.
    #[inline]
    fn is_in_vain(&self, body: &Body<Operations<K, O>>) -> bool {
        body.closed && is_checked_again(self.address(), self.id)
    }

    /// Returns an address that tells the operation's purgatory from others.
    fn address(&self) -> usize {
        std::ptr::from_ref(self.set).addr()
    }

    /// Checks the condition of an operation that was triggered. Returns whether this call completed
    /// it. If the operation continues to wait, and the operation `next` is in the same shard,
    /// triggers `next` under the same lock and returns it too.
    #[inline]
    pub(crate) fn check(&self, mut operation: O, next: Option<Id>) -> (bool, Option<O>) {
        if let Some(ended_by) = self.condition(&mut operation) {
            return (was_triggered(&self.end(operation, ended_by)), None);
        }
        let (then, triggered) = self.set.of(self.id).with(|body| {
            let then = body.release(self.id.key, operation, true);
            let waits = matches!(then, Next::LetGo(None));
            let next = next.filter(|next| next.shard == self.id.shard && waits);
            let next = next.map(|id| OperationRef { set: self.set, id });
            (then, next.and_then(|next| next.trigger_in(body)))
        });
        (was_triggered(&self.serve(then)), triggered)
    }

    /// Leaves a check to the executor, for a trigger that is nested too deep. If no executor takes
    /// it, makes it all the same. Returns whether that completed the operation.
    #[cold]
    pub(crate) fn leave_check(&self) -> bool {
        let shard = self.set.of(self.id);
        let is_left = shard.with(|body| !self.is_in_vain(body) && body.hand_on(self.id.key));
        let refused = if is_left { self.hand_on_check() } else { None };
        refused.is_some_and(|operation| self.check(operation, None).0)
    }

    /// Makes a check that was handed to the executor and has arrived.
    fn arrive(&self) {
        let operation = self.set.of(self.id).with(|body| body.arrive(self.id.key));
        operation.map(|operation| self.check(operation, None));
    }

    /// Serves the requests that are left after the condition was found false. Checks once for the
    /// triggers that arrived during the check. Later triggers are left to the executor: otherwise
    /// this thread could go on serving them without end.
    #[inline]
    pub(crate) fn serve(&self, next: Next<O>) -> Served<O> {
        if let Next::LetGo(None) = next { Served::Waits } else { self.serve_others(next) }
    }

    #[cold]
    fn serve_others(&self, mut next: Next<O>) -> Served<O> {
        loop {
            let (request, mut operation) = match next {
                Next::Keep(request, operation) => (request, operation),
                Next::LetGo(None) => return Served::Waits,
                Next::LetGo(Some(Errand::Expire)) => {
                    // The timer was shut down, so no other thread will make the check.
                    self.expire();
                    return Served::Ended(EndedBy::Expired);
                }
                Next::LetGo(Some(Errand::Check)) => match self.hand_on_check() {
                    Some(operation) => (Request::CheckAgain, operation),
                    None => return Served::Waits,
                },
            };
            let fate = match request {
                Request::CheckAgain => {
                    check_again(self.address(), self.id, || self.condition(&mut operation))
                }
                Request::End => Some(EndedBy::Cancelled),
            };
            if let Some(fate) = fate {
                return self.end(operation, fate);
            }
            next = self.set.of(self.id).with(|body| body.release(self.id.key, operation, false));
        }
    }

    /// Has the executor check the operation, which no thread holds any more. Returns the operation
    /// if the timer accepts no more tasks: then this thread makes the checks, for as long as they
    /// are asked for.
    fn hand_on_check(&self) -> Option<O> {
        let executor = self.set.of(self.id).with(|body| body.content.executor.upgrade())?;
        let check = HandedCheck(*self);
        let check = Task::new(move || drop(check));
        let check = TimerEntry::new(When::After(Duration::ZERO), check);
        // Each operation has at most one, and a full timer is no reason to serve without bound.
        let Err(refused) = executor.add_beyond_limit(check) else { return None };
        let operation = self.set.of(self.id).with(|body| body.arrive(self.id.key));
        drop(refused); // This drop finds that it has arrived.
        operation
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    pub(crate) fn end(&self, operation: O, wants: EndedBy) -> Served<O> {
        let (shard, mut places) = (self.set.of(self.id), Places::NONE);
        let ended_by = shard.with(|body| body.finish(self.id.key, wants, &mut places));
        self.set.leave(&places);
        match ended_by {
            EndedBy::AtOnce | EndedBy::Triggered | EndedBy::Forced => {
                self.conclude(operation, O::on_complete);
            }
            EndedBy::Expired => self.conclude(operation, expire),
            EndedBy::Cancelled => self.conclude(operation, O::on_cancellation),
            EndedBy::Panicked => {
                self.set.count_panic(self.id);
                self.conclude(operation, |_| ());
            }
            EndedBy::Withdrawn => return Served::Withdrawn(operation),
        }
        Served::Ended(ended_by)
    }

    #[inline]
    fn conclude(&self, operation: O, code: impl FnOnce(&mut O) + 'static) {
        self.set.conclude(self.id, operation, code);
    }

    /// Completes the operation, unless its end is decided. Returns whether this call completed it,
    /// or made its holder complete it.
    pub(crate) fn force(&self) -> bool {
        match self.claim(EndedBy::Forced) {
            Claim::Won(operation) => self.conclude(operation, O::on_complete),
            Claim::Deferred => {}
            Claim::Lost => return false,
        }
        true
    }

    /// Expires the operation, or makes its holder expire it, unless its end is decided.
    fn expire(&self) {
        if let Claim::Won(operation) = self.claim(EndedBy::Expired) {
            self.conclude(operation, expire);
        }
    }

    /// Takes the operation back, or makes its holder let it go.
    pub(crate) fn cancel(&self) -> Claim<O> {
        self.claim(EndedBy::Cancelled)
    }

    /// Cancels like `cancel`, but skips an operation that is still being added.
    pub(crate) fn cancel_unless_adding(&self) -> Option<O> {
        let claimed = self.set.of(self.id).with(|body| body.cancel_unless_adding(self.id.key));
        self.unwatched(claimed).won()
    }

    fn claim(&self, wants: EndedBy) -> Claim<O> {
        self.unwatched(self.set.of(self.id).with(|body| body.claim(self.id.key, wants)))
    }

    /// Removes an operation that was won from all its keys.
    fn unwatched(&self, claimed: Claim<Ended<O>>) -> Claim<O> {
        claimed.map(|Ended { operation, places }| {
            self.set.leave(&places);
            operation
        })
    }

    /// Checks the operation. Returns how the check ends it, or `None` if its condition is false.
    #[inline]
    pub(crate) fn condition(&self, operation: &mut O) -> Option<EndedBy> {
        match self.set.catch_panic(self.id, || operation.try_complete()) {
            Some(false) => None,
            Some(true) => Some(EndedBy::Triggered),
            None => Some(EndedBy::Panicked),
        }
    }

    /// Returns whether the operation waits and its end is undecided.
    pub(crate) fn is_pending(&self) -> bool {
        self.set.of(self.id).with(|body| body.is_pending(self.id.key))
    }
}

impl<K, O> Alarmed for Operations<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    type Shared = ();

    fn unfile(record: &mut Record<O>) {
        record.unfile();
    }

    fn alarm(owned: &Owned<Self>, place: usize, key: Key) {
        let Some(mut body) = owned.lock_for_alarm(place, key) else { return };
        let claimed = body.claim(key, EndedBy::Expired);
        drop(body);
        let operation = OperationRef { set: owned.shards.set, id: Id { shard: place as u16, key } };
        if let Claim::Won(expired) = operation.unwatched(claimed) {
            operation.conclude(expired, expire);
        }
    }

    /// Drops what is waiting, without calling its code.
    fn end(owned: &Owned<Self>) {
        let set = owned.shards.set;
        let nobody = set.nobody();
        let pending = shutdown(set).into_iter();
        pending.for_each(|operation| set.conclude(nobody, operation, |_| ()));
    }
}

/// Closes the shards of a purgatory, and takes back what is waiting there.
pub(crate) fn shutdown<K, O>(set: &'static Set<Operations<K, O>>) -> Vec<O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    set.iter().for_each(|shard| shard.with(|body| body.closed = true));
    let (mut pending, mut waiting) = (Vec::new(), Vec::new());
    for shard in set.iter() {
        // Nothing can be added any more, and nothing moves, so these are all operations. They are
        // taken in parts, so that the lock is never held for long.
        for part in 0.. {
            let more = shard.with(|body| body.waiting(part, &mut waiting));
            let cancel = |id| OperationRef { set, id }.cancel().won();
            pending.extend(waiting.drain(..).filter_map(cancel));
            if !more {
                break;
            }
        }
    }
    pending
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

impl<K, O> OperationRef<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, and checks it once more. Returns its reference, unless
    /// that check ended it.
    pub(crate) fn watch(
        set: &'static Set<Operations<K, O>>,
        context: &TimerContext,
        (mut operation, when): (O, When),
        keys: &[K],
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<Self>, WatchError<O>> {
        let (_, deadline) = context.resolve(when);
        let mut places = Places::of(keys.len());
        let mut begun = Err(Refusal::Closed);
        // Caught only so that nothing is left behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            for (number, key) in keys.iter().enumerate() {
                let hash = hash_of(key);
                set.of_key(hash).with(|body| {
                    if number == 0 {
                        begun = body.begin(deadline);
                    }
                    if let Ok(id) = begun {
                        places.set(number, body.content.watchers.push(hash, key, id));
                    }
                });
                if begun.is_err() {
                    return;
                }
            }
        }));
        let id = match begun {
            Ok(id) => id,
            Err(refusal) => {
                entered.unwrap_or_else(|panic| resume_unwind(panic));
                return Err(match refusal {
                    Refusal::Full => WatchError::Full(operation),
                    Refusal::Closed => WatchError::Shutdown(operation),
                });
            }
        };
        let added = OperationRef { set, id };
        let ended_by = match &entered {
            Ok(()) => added.condition(&mut operation),
            Err(_) => Some(EndedBy::Withdrawn),
        };
        let next = set.of(id).with(|body| {
            body.settle(id.key, places);
            match ended_by {
                None => Ok(body.release(id.key, operation, true)),
                Some(ended_by) => Err((operation, ended_by)),
            }
        });
        let served = match next {
            Ok(next) => added.serve(next),
            Err((operation, EndedBy::Triggered)) => added.end(operation, EndedBy::AtOnce),
            Err((operation, ended_by)) => added.end(operation, ended_by),
        };
        if let Err(panic) = entered {
            resume_unwind(panic);
        }
        match served {
            Served::Waits => Ok(Some(added)),
            Served::Ended(_) => Ok(None),
            Served::Withdrawn(operation) => Err(WatchError::Shutdown(operation)),
        }
    }
}
