//! Adds an operation: watches it on its keys, and checks it once more.

use crate::purgatory::error::WatchError;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::{OperationRef, Served};
use crate::purgatory::place::Places;
use crate::purgatory::shards::Shards;
use crate::purgatory::state::EndedBy;
use crate::timer::context::TimerContext;
use crate::timer::entry::When;
use crate::timer::shard::Refusal;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl<K, O> OperationRef<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, of which the first has this `hash`, and checks it once
    /// more. Returns its reference, unless that check ended it.
    pub(crate) fn watch(
        shards: &'static Shards<K, O>,
        context: &TimerContext,
        (mut operation, when): (O, When),
        keys: &[K],
        hash: u64,
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<Self>, WatchError<O>> {
        let (_, deadline) = context.resolve(when);
        let mut places = Places::of(keys.len());
        let mut home = shards.lock(shards.number_of(hash));
        let id = match home.begin(context, deadline) {
            Ok(id) => id,
            Err(Refusal::Full) => return Err(WatchError::Full(operation)),
            Err(Refusal::Closed) => return Err(WatchError::Shutdown(operation)),
        };
        // Caught only so that nothing is left behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            places.set(0, home.watchers.push(hash, &keys[0], id));
            drop(home);
            for (number, key) in keys.iter().enumerate().skip(1) {
                let hash = hash_of(key);
                let place = shards.lock(shards.number_of(hash)).watchers.push(hash, key, id);
                places.set(number, place);
            }
        }));
        let added = OperationRef { shards, id };
        let ended_by = match &entered {
            Ok(()) => added.condition(&mut operation),
            Err(_) => Some(EndedBy::Withdrawn),
        };
        let mut home = shards.lock(id.shard);
        home.settle(id.key, places);
        let served = match ended_by {
            None => {
                let (next, operation, wakes) = home.release(id.key, operation, true);
                shards.wake(home, wakes);
                added.serve((next, operation))
            }
            Some(ended_by) => {
                drop(home);
                let at_once = ended_by == EndedBy::Triggered;
                added.end(operation, if at_once { EndedBy::AtOnce } else { ended_by })
            }
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
