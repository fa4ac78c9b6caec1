//! The check: what is done with one operation, from its adding to its end.
//!
//! Ending an operation means taking it out of its wheel first, so that no other thread finds it,
//! then removing it from all its keys, then calling its code, and then dropping it.

use crate::engine::clock::When;
use crate::engine::context::Refusal;
use crate::engine::shard::AnyShard;
use crate::purgatory::agenda::{Turn, take_turn};
use crate::purgatory::operation::{DelayedOperation, WatchError};
use crate::purgatory::operations::{Added, OperationSet, OperationShard, OperationsState, Panics};
use crate::purgatory::state::{Claim, EndedBy, Next};
use crate::purgatory::wait_queue::{Id, WaitQueue};
use crate::purgatory::watchers::Spots;
use crate::store::table::ShortHash;
use crate::wheel::tick::Due;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// How often a thread checks an operation before it lets go of it. In models, once for itself and
/// once for the triggers that arrive during that.
const MAX_CHECKS: u32 = if cfg!(tickwheel_model) { 2 } else { 8 };

/// A call that may run the code of a purgatory's operations.
pub(crate) struct Call<'a, K: 'static, O: 'static> {
    pub(crate) set: OperationSet<K, O>,
    pub(crate) panics: &'a Arc<Panics>,
    pub(crate) turn: &'a Turn<'a>,
}

/// How an operation ended after its holder has served all requests; `None` if it waits, and another
/// thread may hold it now. One that is withdrawn from the thread that adds it comes back.
type Served<O> = Result<Option<EndedBy>, O>;

impl<K, O> Call<'_, K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, and checks it once more. Returns its reference, unless
    /// that check ended it.
    pub(crate) fn watch(
        &self,
        mut operation: O,
        due: Due,
        keys: &[K],
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<OperationRef<K, O>>, WatchError<O>> {
        let set = self.set;
        let mut spots = Spots::of(keys.len());
        let mut begun = Err(Refusal::Closed);
        // Caught only so that nothing is left behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            for (number, key) in keys.iter().enumerate() {
                let hash = hash_of(key);
                set.of_key(hash).with(|state| {
                    if number == 0 {
                        begun = state.begin(due);
                    }
                    if let Ok(id) = begun {
                        spots.set(number, state.extra.watchers.push(hash, key, id));
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
        let ended_by = match &entered {
            Ok(()) => self.condition(&mut operation, EndedBy::AtOnce),
            Err(_) => Some(EndedBy::Withdrawn),
        };
        let served = match ended_by {
            None => {
                let added = Some(Added { spots, due });
                let then = set
                    .of(id)
                    .with(|state| state.release_operation(id.key, operation, true, added));
                self.serve(id, then)
            }
            Some(ended_by) => {
                set.of(id).with(|state| state.settle(id.key, spots));
                self.end(id, operation, ended_by)
            }
        };
        if let Err(panic) = entered {
            resume_unwind(panic);
        }
        let ended_by = served.map_err(|operation| WatchError::Shutdown(operation.into()))?;
        Ok(ended_by.is_none().then_some(OperationRef { set, id }))
    }

    /// Checks those of some operations that no other thread holds. Returns how many this completed.
    pub(crate) fn check_all(&self, batch: &[Id]) -> usize {
        let (mut completed, mut taken) = (0, None);
        for (number, &id) in batch.iter().enumerate() {
            // It may have been taken along with the one before it.
            let held =
                taken.take().or_else(|| self.set.of(id).with(|state| state.hand_out(id.key)));
            let Some(held) = held else { continue };
            let (is_completed, next) = self.check(id, held, batch.get(number + 1).copied());
            completed += usize::from(is_completed);
            taken = next;
        }
        completed
    }

    /// Checks the condition of an operation that was triggered. Returns whether this call completed
    /// it. If the operation continues to wait, and the operation `next` is in the same shard,
    /// triggers `next` under the same lock and returns it too.
    #[inline]
    pub(crate) fn check(&self, id: Id, mut operation: O, next: Option<Id>) -> (bool, Option<O>) {
        if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
            return (was_triggered(self.end(id, operation, ended_by)), None);
        }
        let (then, triggered) = self.set.of(id).with(|state| {
            let then = state.release_operation(id.key, operation, true, None);
            let waits = matches!(then, Next::LetGo(_));
            let next = next.filter(|next| next.shard == id.shard && waits);
            (then, next.and_then(|next| state.hand_out(next.key)))
        });
        (was_triggered(self.serve(id, then)), triggered)
    }

    /// Serves the requests that are left after the condition was found false. Checks a few times
    /// for the triggers that arrive during checks, and leaves later ones to a task: otherwise this
    /// thread could go on serving others without end.
    #[inline]
    fn serve(&self, id: Id, next: Next<O>) -> Served<O> {
        if let Next::LetGo(_) = next { Ok(None) } else { self.serve_others(id, next) }
    }

    #[cold]
    fn serve_others(&self, id: Id, mut next: Next<O>) -> Served<O> {
        for checks in 2.. {
            let mut operation = match next {
                Next::CheckAgain(operation) => operation,
                Next::End(operation, ended_by) => return self.end(id, operation, ended_by),
                Next::LetGo(_) => break,
            };
            if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
                return self.end(id, operation, ended_by);
            }
            let may_check = checks < MAX_CHECKS;
            next = self
                .set
                .of(id)
                .with(|state| state.release_operation(id.key, operation, may_check, None));
        }
        Ok(None)
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    fn end(&self, id: Id, operation: O, wants: EndedBy) -> Served<O> {
        let (shard, mut spots) = (self.set.of(id), Spots::NONE);
        let ended_by = shard.with(|state| state.finish(id.key, wants, &mut spots));
        self.set.leave(&spots);
        if ended_by == EndedBy::Withdrawn {
            return Err(operation);
        }
        self.panics.conclude(self.turn, operation, ended_by);
        Ok(Some(ended_by))
    }

    /// Checks an operation. Returns how the check ends it: by what it `is` if its condition holds;
    /// `None` if its condition is false.
    #[inline]
    pub(crate) fn condition(&self, operation: &mut O, is: EndedBy) -> Option<EndedBy> {
        match self.turn.check(|| self.panics.catch(|| operation.try_complete())) {
            Some(false) => None,
            Some(true) => Some(is),
            None => Some(EndedBy::Panicked),
        }
    }
}

fn was_triggered<O>(served: Served<O>) -> bool {
    matches!(served, Ok(Some(EndedBy::Triggered)))
}

/// A reference to an operation, which stays harmless after the operation has ended.
pub(crate) struct OperationRef<K: 'static, O: 'static> {
    set: OperationSet<K, O>,
    id: Id,
}

impl<K, O> OperationRef<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Completes the operation, or makes its holder do so, unless its end is decided.
    pub(crate) fn force(&self) -> bool {
        match self.claim(EndedBy::Forced, OperationsState::panics) {
            Claim::Won((operation, panics)) => {
                take_turn(|turn| panics.conclude(turn, operation, EndedBy::Forced));
                true
            }
            Claim::Deferred => true,
            Claim::Lost => false,
        }
    }

    /// Takes the operation out to cancel it, or makes its holder do so, unless its end is decided.
    pub(crate) fn cancel(&self) -> Claim<O> {
        self.claim(EndedBy::Cancelled, |_| ()).map(|(operation, ())| operation)
    }

    /// Cancels the operation in the same way, and drops it.
    pub(crate) fn cancel_and_drop(&self) {
        if let Claim::Won((operation, panics)) =
            self.claim(EndedBy::Cancelled, OperationsState::panics)
        {
            panics.catch(|| drop(operation));
        }
    }

    /// Takes the operation out to end it, or makes its holder end it. Also returns what `see`
    /// returned, which is called under the lock.
    fn claim<R>(
        &self,
        wants: EndedBy,
        see: impl FnOnce(&OperationsState<K, O>) -> R,
    ) -> Claim<(O, R)> {
        let claimed = self.set.of(self.id).with(|state| {
            state.claim(self.id.key, wants).map(|(operation, spots)| (operation, spots, see(state)))
        });
        claimed.map(|(operation, spots, seen)| {
            self.set.leave(&spots);
            (operation, seen)
        })
    }

    /// Extends the operation's deadline, unless its time is up or its end is decided.
    pub(crate) fn touch(&self, when: When) -> bool {
        self.set.of(self.id).with(|state| state.touch(self.id.key, when))
    }

    /// Returns whether the operation waits and its end is undecided.
    pub(crate) fn is_pending(&self) -> bool {
        self.set.of(self.id).with(|state| state.is_pending(self.id.key))
    }
}

/// Closes the shards of a purgatory, and takes back what is waiting there.
pub(crate) fn shutdown<K, O>(set: OperationSet<K, O>) -> Vec<O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    set.0.iter().for_each(|shard| shard.close());
    let (mut pending, mut waiting) = (Vec::new(), Vec::new());
    for shard in set.0 {
        // Nothing can be added any more, and nothing moves, so these are all operations. They are
        // taken in parts, so that the lock is never held for long.
        for part in 0.. {
            let more = shard.with(|state| state.waiting(part, &mut waiting));
            let cancel = |id| OperationRef { set, id }.cancel().won();
            pending.extend(waiting.drain(..).filter_map(cancel));
            if !more {
                break;
            }
        }
    }
    pending
}

/// Calls `see` with the operations of a queue, a batch at a time and without any lock, until what
/// it returns adds up to `limit`. Returns the sum.
pub(crate) fn visit<K: Eq + Clone, O>(
    shard: &OperationShard<K, O>,
    hash: ShortHash,
    is_meant: impl Fn(&WaitQueue<K>) -> bool,
    limit: usize,
    mut see: impl FnMut(&[Id]) -> usize,
) -> usize {
    let (mut seen, mut batch) = (0, Vec::new());
    // No more are taken along than are still wanted, so each of them is seen, and no other.
    let mut visit = shard.with(|state| {
        let visit = state.extra.watchers.visit(hash, is_meant, limit, &mut batch);
        state.leave_out_ended(&mut batch);
        visit
    });
    loop {
        seen += see(&batch);
        batch.clear();
        let Some(unfinished) = visit.filter(|_| seen < limit) else { return seen };
        visit = shard.with(|state| {
            let visit = state.extra.watchers.resume(unfinished, limit - seen, &mut batch);
            state.leave_out_ended(&mut batch);
            visit
        });
    }
}
