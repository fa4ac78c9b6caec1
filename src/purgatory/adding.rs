//! How an operation is added: watched on its keys, and checked once more.

use crate::purgatory::error::WatchError;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::{OperationRef, Served, condition};
use crate::purgatory::place::Places;
use crate::purgatory::registry::Home;
use crate::purgatory::state::EndedBy;
use crate::store::key::Key;
use crate::timer::Timer;
use crate::timer::entry::{TimerEntry, When};
use crate::timer::error::AddError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

impl<'a, K, O> OperationRef<'a, K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, of which the first has this `hash` and is at `home`, and
    /// checks it once more. Returns its key, unless that completed it.
    pub(crate) fn watch(
        home: &'a Arc<Home<K, O>>,
        timer: &Timer,
        mut operation: O,
        when: When,
        keys: &[K],
        hash: u64,
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<Key>, WatchError<O>> {
        let (mut key, mut places) = (None, Places::of(keys.len()));
        // Contained only to leave nothing behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            Self::enter(home, keys, hash, hash_of, &mut key, &mut places);
        }));
        let Some(key) = key else { return Err(WatchError::Shutdown(operation)) };
        let hold = OperationRef { home, key };
        if let Err(panic) = entered {
            hold.end_unsettled(operation, places, EndedBy::Withdrawn);
            resume_unwind(panic);
        }
        if let Some(fate) = condition(&mut operation) {
            let fate = if fate == EndedBy::Triggered { EndedBy::AtOnce } else { fate };
            let ended = hold.end_unsettled(operation, places, fate);
            return ended.watched(key, WatchError::Shutdown);
        }
        match timer.add(TimerEntry::new(when, home.alarm.task(key))) {
            Ok(timeout) => {
                let mut shard = home.shard();
                shard.settle(key, Some(timeout), places);
                let next = shard.release(key, operation, true);
                drop(shard);
                let served = hold.serve(next);
                if let Served::Ended(_) = served {
                    // It may have ended after it was let go of, when it was to have a handle.
                    home.shard().forget_handle(key);
                }
                served.watched(key, WatchError::Shutdown)
            }
            Err(error) => {
                let withdrawn = hold.end_unsettled(operation, places, EndedBy::Withdrawn);
                withdrawn.watched(
                    key,
                    match error {
                        AddError::Full(_) => WatchError::Full,
                        AddError::Shutdown(_) => WatchError::Shutdown,
                    },
                )
            }
        }
    }

    /// Makes a record, but not after shutdown, and an entry for each key. Also after a panic what
    /// was made stands in `made` and `places`.
    fn enter(
        home: &Home<K, O>,
        keys: &[K],
        hash: u64,
        hash_of: impl Fn(&K) -> u64,
        made: &mut Option<Key>,
        places: &mut Places,
    ) {
        let mut shard = home.shard();
        let Some(id) = shard.begin() else { return };
        *made = Some(id.key);
        places.set(0, shard.watch(hash, &keys[0], id));
        drop(shard);
        for (number, key) in keys.iter().enumerate().skip(1) {
            let hash = hash_of(key);
            places.set(number, home.registry.shard_of(hash).watch(hash, key, id));
        }
    }

    fn end_unsettled(&self, operation: O, places: Places, wants: EndedBy) -> Served<O> {
        self.home.shard().settle(self.key, None, places);
        self.end(operation, wants)
    }
}

impl<O> Served<O> {
    /// What became of an operation that was added.
    fn watched(
        self,
        key: Key,
        refusal: fn(O) -> WatchError<O>,
    ) -> Result<Option<Key>, WatchError<O>> {
        match self {
            Served::Waits => Ok(Some(key)),
            Served::Ended(_) => Ok(None),
            Served::Withdrawn(operation) => Err(refusal(operation)),
        }
    }
}
