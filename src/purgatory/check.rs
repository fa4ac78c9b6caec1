//! The check: what is done with one operation, from its adding to its end. A reference names it.
//!
//! Ending an operation means taking it out of its core first, so that no other thread finds it,
//! then removing it from all its keys, then calling its code, and then dropping it.
//!
//! # Nesting
//! A check may trigger other keys, whose operations' checks may trigger others, and so on. Beyond a
//! few levels a trigger makes no checks itself, but leaves them to the executor. After a shutdown
//! of the timer there is no executor, so a check that triggers its own operation would be repeated
//! for ever. So such a trigger is ignored then, unless it comes from another thread.

use crate::engine::clock::When;
use crate::engine::owner::{Owned, Set};
use crate::engine::shard::{Body, Refusal, Times};
use crate::purgatory::operation::{DelayedOperation, WatchError};
use crate::purgatory::operations::{Operations, Record};
use crate::purgatory::state::{Claim, EndedBy, Errand, Next, OperationState};
use crate::purgatory::wait_queue::Id;
use crate::purgatory::watchers::Spots;
use crate::store::slab::Key;
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::part::Alarmed;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A reference to an operation, which stays harmless after the operation has ended.
pub(crate) struct OperationRef<K: 'static, O: 'static> {
    pub(crate) set: &'static Set<Operations<K, O>>,
    pub(crate) id: Id,
}

/// How an operation ended after its holder has served all requests; `None` if it waits, and another
/// thread may hold it now. One that is withdrawn from the thread that adds it comes back.
type Served<O> = Result<Option<EndedBy>, O>;

impl<K, O> OperationRef<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, and checks it once more. Returns its reference, unless
    /// that check ended it.
    pub(crate) fn watch(
        set: &'static Set<Operations<K, O>>,
        mut operation: O,
        times: Times,
        keys: &[K],
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<Self>, WatchError<O>> {
        let mut spots = Spots::of(keys.len());
        let mut begun = Err(Refusal::Closed);
        // Caught only so that nothing is left behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            for (number, key) in keys.iter().enumerate() {
                let hash = hash_of(key);
                set.of_key(hash).with(|body| {
                    if number == 0 {
                        begun = body.begin(times.1);
                    }
                    if let Ok(id) = begun {
                        spots.set(number, body.content.watchers.push(hash, key, id));
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
                    Refusal::Full => WatchError::Full(operation.into()),
                    Refusal::Closed => WatchError::Shutdown(operation.into()),
                });
            }
        };
        let added = OperationRef { set, id };
        let ended_by = match &entered {
            Ok(()) => added.condition(&mut operation, EndedBy::AtOnce),
            Err(_) => Some(EndedBy::Withdrawn),
        };
        let served = match ended_by {
            None => added.serve(
                set.of(id)
                    .with(|body| body.release(id.key, operation, true, Some((spots, times.0)))),
            ),
            Some(ended_by) => {
                set.of(id).with(|body| body.settle(id.key, spots));
                added.end(operation, ended_by)
            }
        };
        if let Err(panic) = entered {
            resume_unwind(panic);
        }
        let ended_by = served.map_err(|operation| WatchError::Shutdown(operation.into()))?;
        Ok(ended_by.is_none().then_some(added))
    }

    /// Takes the operation out to check it, for a trigger, unless another thread holds it.
    #[inline]
    pub(crate) fn trigger(&self) -> Option<O> {
        self.set.of(self.id).with(|body| self.trigger_in(body))
    }

    #[inline]
    fn trigger_in(&self, body: &mut Body<Operations<K, O>>) -> Option<O> {
        if self.is_in_vain(body) {
            return None;
        }
        body.hand_out(self.id.key, OperationState::trigger)
    }

    /// Returns whether a trigger by this thread comes from a repeated check of this same operation,
    /// and no executor is left.
    #[inline]
    fn is_in_vain(&self, body: &Body<Operations<K, O>>) -> bool {
        body.closed && self.is_checked_again()
    }

    #[cold]
    fn is_checked_again(&self) -> bool {
        CHECKED_AGAIN.try_with(|own| own.borrow().contains(&self.name())).unwrap_or(false)
    }

    /// Returns the name of the operation, with an address that tells its purgatory from others.
    fn name(&self) -> (usize, Id) {
        (std::ptr::from_ref(self.set).addr(), self.id)
    }

    /// Checks the condition of an operation that was triggered. Returns whether this call completed
    /// it. If the operation continues to wait, and the operation `next` is in the same shard,
    /// triggers `next` under the same lock and returns it too.
    #[inline]
    pub(crate) fn check(&self, mut operation: O, next: Option<Id>) -> (bool, Option<O>) {
        if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
            return (was_triggered(self.end(operation, ended_by)), None);
        }
        let (then, triggered) = self.set.of(self.id).with(|body| {
            let then = body.release(self.id.key, operation, true, None);
            let waits = matches!(then, Next::LetGo(None));
            let next = next.filter(|next| next.shard == self.id.shard && waits);
            let next = next.map(|id| OperationRef { set: self.set, id });
            (then, next.and_then(|next| next.trigger_in(body)))
        });
        (was_triggered(self.serve(then)), triggered)
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

    /// Takes the operation out for a check that was handed to the executor and has arrived.
    fn arrive(&self) -> Option<O> {
        self.set.of(self.id).with(|body| body.hand_out(self.id.key, OperationState::arrive))
    }

    /// Serves the requests that are left after the condition was found false. Checks once for the
    /// triggers that arrived during the check. Later triggers are left to the executor: otherwise
    /// this thread could go on serving them without end.
    #[inline]
    fn serve(&self, next: Next<O>) -> Served<O> {
        if let Next::LetGo(None) = next { Ok(None) } else { self.serve_others(next) }
    }

    #[cold]
    fn serve_others(&self, mut next: Next<O>) -> Served<O> {
        loop {
            let mut operation = match next {
                Next::CheckAgain(operation) => operation,
                Next::End(operation) => return self.end(operation, EndedBy::Cancelled),
                Next::LetGo(None) => return Ok(None),
                Next::LetGo(Some(Errand::Expire)) => {
                    // The timer was shut down, so no other thread will make the check.
                    self.end_idle(EndedBy::Expired);
                    return Ok(Some(EndedBy::Expired));
                }
                Next::LetGo(Some(Errand::Check)) => match self.hand_on_check() {
                    Some(operation) => operation,
                    None => return Ok(None),
                },
            };
            // A thread at its end may have no storage any more.
            let noted = CHECKED_AGAIN.try_with(|own| own.borrow_mut().push(self.name())).is_ok();
            let checked = self.condition(&mut operation, EndedBy::Triggered);
            if noted {
                let _ = CHECKED_AGAIN.try_with(|own| own.borrow_mut().pop());
            }
            if let Some(ended_by) = checked {
                return self.end(operation, ended_by);
            }
            let shard = self.set.of(self.id);
            next = shard.with(|body| body.release(self.id.key, operation, false, None));
        }
    }

    /// Has the executor check the operation, which no thread holds any more. Returns the operation
    /// if the timer accepts no more tasks: then this thread makes the checks, for as long as they
    /// are asked for.
    fn hand_on_check(&self) -> Option<O> {
        let homes = self.set.of(self.id).with(|body| body.content.homes.upgrade())?;
        let this = OperationRef { ..*self };
        // Made when the task is dropped, whether it ran or not. So no trigger is lost with a task
        // that an executor refuses, or that a shutdown of the timer returns.
        let check =
            OnDrop(move || drop(this.arrive().map(|operation| this.check(operation, None))));
        let check = Task::new(move || drop(check));
        let check = TimerEntry::new(When::After(Duration::ZERO), check);
        // Each operation has at most one, and a full timer is no reason to serve without bound.
        let Err(refused) = homes.add_beyond_limit(check) else { return None };
        let operation = self.arrive();
        drop(refused); // This drop finds that it has arrived.
        operation
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    fn end(&self, operation: O, wants: EndedBy) -> Served<O> {
        let (shard, mut spots) = (self.set.of(self.id), Spots::NONE);
        let ended_by = shard.with(|body| body.finish(self.id.key, wants, &mut spots));
        self.set.leave(&spots);
        if ended_by == EndedBy::Withdrawn {
            return Err(operation);
        }
        self.set.conclude(self.id, operation, ended_by);
        Ok(Some(ended_by))
    }

    /// Ends the operation and calls its code, or makes its holder do so, unless its end is decided.
    pub(crate) fn end_idle(&self, wants: EndedBy) -> Claim {
        self.claim(wants).map(|operation| self.set.conclude(self.id, operation, wants))
    }

    /// Takes the operation out to cancel it, but skips an operation that is still being added.
    pub(crate) fn cancel_unless_adding(&self) -> Option<O> {
        let claimed = self.set.of(self.id).with(|body| body.cancel_unless_adding(self.id.key));
        self.unwatched(claimed).won()
    }

    /// Takes the operation out to end it, or makes its holder end it, unless its end is decided.
    pub(crate) fn claim(&self, wants: EndedBy) -> Claim<O> {
        self.unwatched(self.set.of(self.id).with(|body| body.claim(self.id.key, wants)))
    }

    /// Removes an operation that was won from all its keys.
    fn unwatched(&self, claimed: Claim<(O, Spots)>) -> Claim<O> {
        claimed.map(|(operation, spots)| {
            self.set.leave(&spots);
            operation
        })
    }

    /// Checks the operation. Returns how the check ends it: by what it `is` if its condition holds;
    /// `None` if its condition is false.
    #[inline]
    fn condition(&self, operation: &mut O, is: EndedBy) -> Option<EndedBy> {
        match self.set.catch_panic(self.id, || operation.try_complete()) {
            Some(false) => None,
            Some(true) => Some(is),
            None => Some(EndedBy::Panicked),
        }
    }

    /// Extends the operation's deadline, unless its time is up or its end is decided.
    pub(crate) fn touch(&self, when: When) -> bool {
        self.set.of(self.id).with(|body| body.touch(self.id.key, when))
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
        record.is_filed = false;
    }

    fn alarm(owned: &Arc<Owned<Self>>, ordinal: usize, key: Key) {
        let Some(mut body) = owned.lock_for_alarm(ordinal, key) else { return };
        let claimed = body.claim(key, EndedBy::Expired);
        drop(body);
        let operation =
            OperationRef { set: owned.shards.set, id: Id { shard: ordinal as u16, key } };
        operation
            .unwatched(claimed)
            .map(|expired| operation.set.conclude(operation.id, expired, EndedBy::Expired));
    }

    /// Drops what is waiting, without calling its code.
    fn end(owned: &Owned<Self>) {
        let set = owned.shards.set;
        let nobody = set.nobody();
        for operation in shutdown(set) {
            set.conclude(nobody, operation, EndedBy::Withdrawn);
        }
    }
}

/// Closes the shards of a purgatory, and takes back what is waiting there.
pub(crate) fn shutdown<K, O>(set: &'static Set<Operations<K, O>>) -> Vec<O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    set.close();
    let (mut pending, mut waiting) = (Vec::new(), Vec::new());
    for shard in set.iter() {
        // Nothing can be added any more, and nothing moves, so these are all operations. They are
        // taken in parts, so that the lock is never held for long.
        for part in 0.. {
            let more = shard.with(|body| body.waiting(part, &mut waiting));
            let cancel = |id| OperationRef { set, id }.claim(EndedBy::Cancelled).won();
            pending.extend(waiting.drain(..).filter_map(cancel));
            if !more {
                break;
            }
        }
    }
    pending
}

fn was_triggered<O>(served: Served<O>) -> bool {
    matches!(served, Ok(Some(EndedBy::Triggered)))
}

/// Calls a closure when it is dropped.
pub(crate) struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    #[inline]
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The maximum nesting of triggers on one thread. It bounds the stack that they take.
const MAX_NESTED: u32 = if cfg!(tickwheel_model) { 1 } else { 8 };

crate::sync::thread_local! {
    static NESTED: Cell<u32> = const { Cell::new(0) };
    /// The operations, with the address of their shards, that this thread is checking again.
    static CHECKED_AGAIN: RefCell<Vec<(usize, Id)>> = const { RefCell::new(Vec::new()) };
}

/// Begins a trigger that may make checks, until what is returned is dropped. Returns `None` if it
/// is nested too deep.
#[inline]
pub(crate) fn begin_trigger() -> Option<OnDrop<impl Fn()>> {
    NESTED.with(|nested| {
        let level = nested.get();
        (level < MAX_NESTED).then(|| {
            nested.set(level + 1);
            OnDrop(|| NESTED.with(|nested| nested.set(nested.get() - 1)))
        })
    })
}
