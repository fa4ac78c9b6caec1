//! A hold of an operation: what the thread does that adds it, checks it or ends it.
//!
//! To end it is to take it out of all its keys and of the timer first, then to call its code, then
//! to drop it.

use crate::key::Key;
use crate::purgatory::delayed::Content;
use crate::purgatory::error::WatchError;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::place::Places;
use crate::purgatory::registry::Home;
use crate::purgatory::state::{Claim, Duty, Fate};
use crate::report::contain;
use crate::{AddError, Timer, TimerEntry, When};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Hold<'a, K, O> {
    pub(crate) home: &'a Arc<Home<K, O>>,
    pub(crate) key: Key,
}

/// How it stands with an operation when its holder has seen to everything.
enum Served<O> {
    /// Somebody else may hold it now.
    Waits,
    Ended(Fate),
    Withdrawn(O),
}

impl<'a, K, O> Hold<'a, K, O>
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
        let hold = Hold { home, key };
        if let Err(panic) = entered {
            hold.end_unsettled(operation, places, Fate::Withdrawn);
            resume_unwind(panic);
        }
        let holds = contain(|| operation.try_complete());
        if holds != Some(false) {
            let fate = if holds.is_some() { Fate::AtOnce } else { Fate::Panicked };
            let ended = hold.end_unsettled(operation, places, fate);
            return ended.watched(key, WatchError::Shutdown);
        }
        match timer.add(TimerEntry::new(when, home.alarm.task(key))) {
            Ok(timeout) => {
                let mut shard = home.shard();
                shard.settle(key, Some(timeout), places);
                let unreleased = shard.release(key, operation);
                drop(shard);
                hold.serve(unreleased).watched(key, WatchError::Shutdown)
            }
            Err(error) => {
                let withdrawn = hold.end_unsettled(operation, places, Fate::Withdrawn);
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

    /// A trigger: checks the condition. Whether this call completed the operation.
    pub(crate) fn check(&self) -> bool {
        let Some(operation) = self.home.shard().trigger(self.key) else { return false };
        let served = self.serve(Some((Duty::CheckAgain, operation)));
        matches!(served, Served::Ended(Fate::Triggered))
    }

    /// Sees to what there is to do before the operation can be released.
    fn serve(&self, mut unreleased: Option<(Duty, O)>) -> Served<O> {
        while let Some((duty, mut operation)) = unreleased {
            let fate = match duty {
                Duty::CheckAgain => match contain(|| operation.try_complete()) {
                    Some(false) => None,
                    Some(true) => Some(Fate::Triggered),
                    None => Some(Fate::Panicked),
                },
                // If the timer refuses it, nobody else will expire it, so that is done here.
                Duty::Expire => (!self.expire_again()).then_some(Fate::Expired),
                Duty::End => Some(Fate::Cancelled),
            };
            if let Some(fate) = fate {
                return self.end(operation, fate);
            }
            unreleased = self.home.shard().release(self.key, operation);
        }
        Served::Waits
    }

    /// Has the executor expire the operation, whose time is up, once more; if the timer takes it.
    fn expire_again(&self) -> bool {
        let timer = self.home.registry.timer.upgrade();
        let entry = TimerEntry::new(Duration::ZERO, self.home.alarm.task(self.key));
        let Some(timeout) = timer.and_then(|timer| timer.add(entry).ok()) else { return false };
        self.home.shard().set_timeout(self.key, timeout);
        true
    }

    fn end_unsettled(&self, operation: O, places: Places, wants: Fate) -> Served<O> {
        self.home.shard().settle(self.key, None, places);
        self.end(operation, wants)
    }

    /// Ends the operation as the holder `wants`, or as somebody else was promised.
    fn end(&self, operation: O, wants: Fate) -> Served<O> {
        let (fate, content) = self.home.shard().finish(self.key, wants);
        self.home.leave(content);
        match fate {
            Fate::AtOnce | Fate::Triggered | Fate::Forced => {
                self.home.conclude(operation, O::on_complete);
            }
            Fate::Expired => self.home.conclude(operation, expire),
            Fate::Cancelled => self.home.conclude(operation, O::on_cancellation),
            Fate::Panicked => {
                self.home.registry.count_panic();
                self.home.conclude(operation, |_| ());
            }
            Fate::Withdrawn => return Served::Withdrawn(operation),
        }
        Served::Ended(fate)
    }

    /// Completes the operation, unless its fate is sealed. Whether this call did, or made its
    /// holder do so.
    pub(crate) fn force(&self) -> bool {
        let (claim, operation) = self.claim(Fate::Forced);
        if let Some(operation) = operation {
            self.home.conclude(operation, O::on_complete);
        }
        claim != Claim::Lost
    }

    /// Takes the operation back, or makes its holder let it go.
    pub(crate) fn cancel(&self) -> (Claim, Option<O>) {
        self.claim(Fate::Cancelled)
    }

    /// As `cancel`, but leaves an operation alone that is still being added.
    pub(crate) fn cancel_unless_adding(&self) -> (Claim, Option<O>) {
        let claimed = self.home.shard().cancel_unless_adding(self.key);
        self.left(claimed)
    }

    fn claim(&self, fate: Fate) -> (Claim, Option<O>) {
        let claimed = self.home.shard().claim(self.key, fate);
        self.left(claimed)
    }

    fn left(&self, (claim, content): (Claim, Option<Content<O>>)) -> (Claim, Option<O>) {
        (claim, content.and_then(|content| self.home.leave(content)))
    }
}

/// The alarm's code: the operation's time is up.
pub(crate) fn expire_at<K, O>(home: &Arc<Home<K, O>>, key: Key)
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    if let (_, Some(operation)) = (Hold { home, key }).claim(Fate::Expired) {
        home.conclude(operation, expire);
    }
}

fn expire<O: DelayedOperation>(operation: &mut O) {
    operation.on_complete();
    operation.on_expiration();
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
