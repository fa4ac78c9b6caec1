//! A hold of an operation: what the thread does that checks it or ends it.
//!
//! To end it is to take it out of all its keys and of the timer first, then to call its code, then
//! to drop it.

use crate::purgatory::delayed::Content;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::registry::Home;
use crate::purgatory::state::{Claim, EndedBy, Errand, Next, Request};
use crate::store::key::Key;
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::report::catch_panic;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

pub(crate) struct OperationRef<'a, K, O> {
    pub(crate) home: &'a Arc<Home<K, O>>,
    pub(crate) key: Key,
}

/// How it stands with an operation when its holder has seen to everything.
pub(crate) enum Served<O> {
    /// Somebody else may hold it now.
    Waits,
    Ended(EndedBy),
    Withdrawn(O),
}

impl<K, O> OperationRef<'_, K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// A trigger: checks the condition. Whether this call completed the operation.
    pub(crate) fn check(&self) -> bool {
        let operation = self.home.shard().trigger(self.key);
        operation.is_some_and(|operation| self.check_held(operation))
    }

    /// The same for a check that was handed on and has arrived.
    pub(crate) fn arrive(&self) {
        let operation = self.home.shard().arrive(self.key);
        operation.map(|operation| self.check_held(operation));
    }

    fn check_held(&self, mut operation: O) -> bool {
        let served = match condition(&mut operation) {
            Some(fate) => self.end(operation, fate),
            None => {
                let next = self.home.shard().release(self.key, operation, true);
                self.serve(next)
            }
        };
        matches!(served, Served::Ended(EndedBy::Triggered))
    }

    /// Sees to what there is to do when the condition was found false. Checks once for those who
    /// came meanwhile: whoever comes after that would have this thread serve him as well, and so on
    /// without an end, so the executor does.
    pub(crate) fn serve(&self, mut next: (Next, Option<O>)) -> Served<O> {
        loop {
            let (duty, operation) = match next {
                (Next::Keep(duty), operation) => (duty, operation),
                (Next::LetGo(None), _) => return Served::Waits,
                (Next::LetGo(Some(Errand::Expire)), _) => return self.hand_on_expiry(),
                (Next::LetGo(Some(Errand::Check)), _) => {
                    (Request::CheckAgain, self.hand_on_check())
                }
            };
            let Some(mut operation) = operation else { return Served::Waits };
            let fate = match duty {
                Request::CheckAgain => condition(&mut operation),
                Request::End => Some(EndedBy::Cancelled),
            };
            if let Some(fate) = fate {
                return self.end(operation, fate);
            }
            next = self.home.shard().release(self.key, operation, false);
        }
    }

    /// Has the executor check the operation, which nobody holds any more. Hands it out if the timer
    /// takes nothing any more: then that is done here, for as long as somebody asks.
    fn hand_on_check(&self) -> Option<O> {
        let check = HandedCheck { home: Arc::downgrade(self.home), key: self.key };
        let entry = TimerEntry::new(Duration::ZERO, Task::from(Waker::from(Arc::new(check))));
        let timer = self.home.registry.timer.upgrade()?;
        // Each operation has one at most, and a full timer is no reason to serve without bound.
        let refused = timer.add_beyond_limit(entry).err()?;
        let operation = self.home.shard().arrive(self.key);
        drop(refused); // Which finds that it has arrived.
        operation
    }

    /// Has the executor expire the operation, whose time is up and which nobody holds any more. If
    /// the timer refuses it, nobody else will expire it, so that is done here.
    fn hand_on_expiry(&self) -> Served<O> {
        let timer = self.home.registry.timer.upgrade();
        let entry = TimerEntry::new(Duration::ZERO, self.home.alarm.task(self.key));
        if let Some(timeout) = timer.and_then(|timer| timer.add(entry).ok()) {
            let former = self.home.shard().set_timeout(self.key, timeout);
            drop(former.map(|timeout| timeout.cancel()));
        } else if let (_, Some(operation)) = self.claim(EndedBy::Expired) {
            self.home.conclude(operation, expire);
            return Served::Ended(EndedBy::Expired);
        }
        Served::Waits
    }

    /// Ends the operation as the holder `wants`, or as somebody else was promised.
    pub(crate) fn end(&self, operation: O, wants: EndedBy) -> Served<O> {
        let (fate, content) = self.home.shard().finish(self.key, wants);
        self.home.leave(content);
        match fate {
            EndedBy::AtOnce | EndedBy::Triggered | EndedBy::Forced => {
                self.home.conclude(operation, O::on_complete);
            }
            EndedBy::Expired => self.home.conclude(operation, expire),
            EndedBy::Cancelled => self.home.conclude(operation, O::on_cancellation),
            EndedBy::Panicked => {
                self.home.registry.count_panic();
                self.home.conclude(operation, |_| ());
            }
            EndedBy::Withdrawn => return Served::Withdrawn(operation),
        }
        Served::Ended(fate)
    }

    /// Completes the operation, unless its fate is sealed. Whether this call did, or made its
    /// holder do so.
    pub(crate) fn force(&self) -> bool {
        let (claim, operation) = self.claim(EndedBy::Forced);
        if let Some(operation) = operation {
            self.home.conclude(operation, O::on_complete);
        }
        claim != Claim::Lost
    }

    /// Takes the operation back, or makes its holder let it go.
    pub(crate) fn cancel(&self) -> (Claim, Option<O>) {
        self.claim(EndedBy::Cancelled)
    }

    /// As `cancel`, but leaves an operation alone that is still being added.
    pub(crate) fn cancel_unless_adding(&self) -> (Claim, Option<O>) {
        let claimed = self.home.shard().cancel_unless_adding(self.key);
        self.left(claimed)
    }

    fn claim(&self, fate: EndedBy) -> (Claim, Option<O>) {
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
    if let (_, Some(operation)) = (OperationRef { home, key }).claim(EndedBy::Expired) {
        home.conclude(operation, expire);
    }
}

/// A check on its way to the executor. It is made where this ends, run or not: so no trigger is
/// lost with a task that an executor refuses, or that a shutdown of the timer returns.
struct HandedCheck<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    home: Weak<Home<K, O>>,
    key: Key,
}

impl<K, O> Wake for HandedCheck<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn wake(self: Arc<Self>) {
        drop(self);
    }
}

impl<K, O> Drop for HandedCheck<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            OperationRef { home: &home, key: self.key }.arrive();
        }
    }
}

/// Checks an operation. How it ends by that, unless its condition is false.
pub(crate) fn condition<O: DelayedOperation>(operation: &mut O) -> Option<EndedBy> {
    match catch_panic(|| operation.try_complete()) {
        Some(false) => None,
        Some(true) => Some(EndedBy::Triggered),
        None => Some(EndedBy::Panicked),
    }
}

fn expire<O: DelayedOperation>(operation: &mut O) {
    operation.on_complete();
    operation.on_expiration();
}
