//! The check: the life of one operation, from adding it to its end.
//!
//! An end takes the operation out of its wheel first, so that no other thread finds it. Then it
//! removes the operation from its keys, calls its code, and drops it.

use crate::engine::shard::Refusal;
use crate::purgatory::agenda::Nesting;
use crate::purgatory::operation::{DelayedOperation, WatchError};
use crate::purgatory::shard::{Added, LockedShard, OperationSet, Panics, leave, with_shard};
use crate::purgatory::state::{EndedBy, Next};
use crate::purgatory::watchers::{Id, Spots};
use crate::table::shard_of;
use crate::wheel::tick::Due;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// How often a thread checks an operation before it lets go of it. In models, once for itself and
/// once for later triggers.
const MAX_CHECKS: u32 = if cfg!(tickwheel_model) { 2 } else { 8 };

/// A call that may run the code of a purgatory's operations.
pub(crate) struct Call<'a, K: 'static, O: 'static> {
    pub(crate) set: OperationSet<K, O>,
    pub(crate) panics: &'a Arc<Panics>,
    pub(crate) nesting: &'a Nesting<'a>,
}

/// How an operation ended; `None` if it waits. `Err` returns an operation that is withdrawn from
/// the adding thread.
type Served<O> = Result<Option<EndedBy>, O>;

impl<K: Eq + Clone, O: DelayedOperation> Call<'_, K, O> {
    /// Watches an operation on its keys, and checks it once more. Returns its name, unless that
    /// check ended it.
    pub(crate) fn watch(
        &self,
        operation: O,
        due: Due,
        keys: &[K],
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<Id>, WatchError<O>> {
        let mut added = Added::new(due, keys.len());
        let mut begun = Err(Refusal::Closed);
        // Leaves nothing behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            for (number, key) in keys.iter().enumerate() {
                let hash = hash_of(key);
                self.set[shard_of(hash, self.set.len())].with_lock(|state| {
                    if number == 0 {
                        begun = state.begin(&mut added);
                    }
                    if let Ok(id) = begun {
                        added
                            .spots
                            .set(number, state.extra.watchers.push(hash, key, id));
                    }
                });
                if begun.is_err() {
                    return;
                }
            }
        }));
        if let Err(panic) = entered {
            if let Ok(id) = begun {
                drop(self.end(id, operation, EndedBy::Withdrawn, Some(&mut added)));
            }
            resume_unwind(panic);
        }
        let id = match begun {
            Ok(id) => id,
            Err(Refusal::Full) => return Err(WatchError::Full(operation.into())),
            Err(Refusal::Closed) => return Err(WatchError::Shutdown(operation.into())),
        };
        match self.check(id, operation, EndedBy::AtOnce, Some(&mut added), |_| ()) {
            Ok(ended_by) => Ok(ended_by.is_none().then_some(id)),
            Err(operation) => Err(WatchError::Shutdown(operation.into())),
        }
    }

    /// Checks the operations that no other thread holds. Returns how many this completed.
    pub(crate) fn check_all(&self, batch: &[Id]) -> usize {
        let mut completed = 0;
        let mut taken = None;
        for (number, &id) in batch.iter().enumerate() {
            let trigger = |state: &mut LockedShard<K, O>| state.operation(id.key)?.trigger();
            let held = taken.take().or_else(|| with_shard(self.set, id, trigger));
            let Some(held) = held else { continue };
            // Takes the next operation under the same lock, if it is in the same shard.
            let next = batch.get(number + 1).filter(|next| next.shard == id.shard);
            let served = self.check(id, held, EndedBy::Triggered, None, |state| {
                taken = next.and_then(|next| state.operation(next.key)?.trigger());
            });
            completed += usize::from(matches!(served, Ok(Some(EndedBy::Triggered))));
        }
        completed
    }

    /// Checks an operation that this thread holds, and serves later requests. If the condition
    /// holds at the first check, the operation ends as `by`. Calls `on_let_go` under the lock under
    /// which it lets go of the operation.
    #[inline]
    pub(crate) fn check(
        &self,
        id: Id,
        mut operation: O,
        mut by: EndedBy,
        mut added: Option<&mut Added>,
        mut on_let_go: impl FnMut(&mut LockedShard<K, O>),
    ) -> Served<O> {
        for checks in 1.. {
            if let Some(ended_by) = self.condition(&mut operation, by) {
                return self.end(id, operation, ended_by, added);
            }
            let next = with_shard(self.set, id, |state| {
                let may_check = checks < MAX_CHECKS;
                let next = state.let_go(id.key, operation, may_check, added.as_deref_mut());
                if let Next::LetGo { .. } = next {
                    on_let_go(state);
                }
                next
            });
            match next {
                Next::LetGo { .. } => break,
                Next::End(operation, ended_by) => return self.end(id, operation, ended_by, added),
                Next::CheckAgain(again) => operation = again,
            }
            by = EndedBy::Triggered;
        }
        Ok(None)
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    fn end(&self, id: Id, operation: O, wants: EndedBy, added: Option<&mut Added>) -> Served<O> {
        let mut spots = Spots::NONE;
        let ended_by = with_shard(self.set, id, |state| {
            if let Some(added) = added {
                state.settle(id.key.index, added);
            }
            state.finish(id.key, wants, &mut spots)
        });
        leave(self.set, &spots);
        if ended_by == EndedBy::Withdrawn {
            return Err(operation);
        }
        self.panics.conclude(self.nesting, operation, ended_by);
        Ok(Some(ended_by))
    }

    /// Checks an operation. Returns how the check ends it: as `by` if the condition holds; `None`
    /// if the condition is false.
    #[inline]
    pub(crate) fn condition(&self, operation: &mut O, by: EndedBy) -> Option<EndedBy> {
        let holds = self
            .nesting
            .check(|| self.panics.catch(|| operation.try_complete()));
        match holds {
            Some(false) => None,
            Some(true) => Some(by),
            None => Some(EndedBy::Panicked),
        }
    }
}
