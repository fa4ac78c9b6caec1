//! Adds an operation: watches it on its keys, and checks it once more.

use crate::purgatory::error::WatchError;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::{OperationRef, Served};
use crate::purgatory::operations::Operations;
use crate::purgatory::place::Places;
use crate::purgatory::state::EndedBy;
use crate::timer::context::TimerContext;
use crate::timer::entry::When;
use crate::timer::owner::Set;
use crate::timer::shard::Refusal;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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
