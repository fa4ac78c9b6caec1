//! A delayed operation in the purgatory: the user's operation, its state word, its entries among
//! the watchers, its timeout.
//!
//! Whoever [claims](crate::purgatory::state) it holds it: checks it, or ends it. To end it is to
//! take it out of all its keys and of the timer first, then to call its code, then to drop it.

use crate::purgatory::entries::Place;
use crate::purgatory::error::WatchError;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::registry::{Count, Home};
use crate::purgatory::state::{Cause, Claim, Duty, State};
use crate::report::contain;
use crate::sync::Mutex;
use crate::{AddError, Task, Timeout, TimerEntry, When};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// What a purgatory's operations share.
pub(crate) type Shared<K, O> = Home<K, Arc<Delayed<K, O>>>;

#[derive(Debug)]
pub(crate) struct Delayed<K, O> {
    state: State,
    /// Locked by its holder only, so nobody ever waits for it: it is what the compiler sees of the
    /// state word.
    slot: Mutex<Slot<K, O>>,
}

/// Filled while the operation is watched. Then empty, so that a handle that is kept keeps neither
/// the purgatory's memory nor the timer.
struct Slot<K, O> {
    home: Option<Arc<Shared<K, O>>>,
    operation: Option<O>,
    timeout: Option<Timeout>,
    /// The operation's last entry.
    place: Place,
}

/// How it stands with an operation when its holder has seen to all requests.
enum Served<K, O> {
    /// Somebody else may hold it now.
    Waits,
    Completed(Cause),
    /// It was left to its holder to let it go: here it is, still in its keys and the timer.
    Cancelled(Slot<K, O>),
    Panicked,
}

impl<K, O> Delayed<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, and checks it once more. `None` if that completed it.
    pub(crate) fn watch(
        home: &Arc<Shared<K, O>>,
        mut operation: O,
        when: When,
        keys: &[K],
        hash: impl Fn(&K) -> u64,
    ) -> Result<Option<Arc<Self>>, WatchError<O>> {
        let slot = Mutex::new(Slot::EMPTY);
        let delayed = Arc::new(Delayed { state: State::adding(), slot });
        let registry = &*home.registry;
        let mut place = Place::NONE;
        let withdraw = |place| {
            let _ = delayed.state.finish();
            registry.unwatch(place, Count::Neither);
        };
        // Contained only to leave nothing behind when a key's `Hash`, `Eq` or `Clone` panics.
        let watched = catch_unwind(AssertUnwindSafe(|| {
            keys.iter().all(|key| {
                let next = registry.watch(hash(key), key, Arc::clone(&delayed), place);
                place = next.unwrap_or(place);
                next.is_some()
            })
        }));
        if !matches!(watched, Ok(true)) {
            withdraw(place);
            watched.unwrap_or_else(|panic| resume_unwind(panic));
            return Err(WatchError::Shutdown(operation));
        }
        match contain(|| operation.try_complete()) {
            Some(false) => {}
            Some(true) => {
                if delayed.state.finish() == Duty::Cancel {
                    registry.unwatch(place, Count::Neither);
                    return Err(WatchError::Shutdown(operation));
                }
                registry.unwatch(place, Count::AtOnce);
                home.conclude(operation, O::on_complete);
                return Ok(None);
            }
            None => {
                registry.count_panic();
                withdraw(place);
                home.conclude(operation, |_| ());
                return Ok(None);
            }
        }
        let timeout = match registry.timer.add(TimerEntry::new(when, delayed.task())) {
            Ok(timeout) => Some(timeout),
            Err(error) => {
                withdraw(place);
                return Err(match error {
                    AddError::Full(_) => WatchError::Full(operation),
                    AddError::Shutdown(_) => WatchError::Shutdown(operation),
                });
            }
        };
        let (home, operation) = (Some(Arc::clone(home)), Some(operation));
        *delayed.slot.lock() = Slot { home, operation, timeout, place };
        let duty = delayed.state.release();
        match Self::serve(&delayed, duty) {
            Served::Waits => Ok(Some(delayed)),
            Served::Completed(_) | Served::Panicked => Ok(None),
            Served::Cancelled(slot) => {
                let operation = slot.leave(Count::Neither).map(|(_, operation)| operation);
                operation.map_or(Ok(None), |operation| Err(WatchError::Shutdown(operation)))
            }
        }
    }

    fn task(self: &Arc<Self>) -> Task {
        Task::from(Waker::from(Arc::clone(self)))
    }

    /// A trigger: checks the condition. Whether this call completed the operation.
    pub(crate) fn check(self: Arc<Self>) -> bool {
        if self.state.trigger() != Claim::Won {
            return false;
        }
        match Self::serve(&self, Duty::CheckAgain) {
            Served::Completed(cause) => cause == Cause::Triggered,
            Served::Waits | Served::Panicked => false,
            Served::Cancelled(slot) => {
                slot.end(Count::Cancelled, O::on_cancellation);
                false
            }
        }
    }

    /// The holder sees to its duties until it has none.
    fn serve(this: &Arc<Self>, mut duty: Duty) -> Served<K, O> {
        loop {
            duty = match duty {
                Duty::None => return Served::Waits,
                Duty::CheckAgain => {
                    let mut slot = this.slot.lock();
                    let operation = slot.operation.as_mut();
                    let holds = contain(|| operation.is_some_and(O::try_complete));
                    if holds == Some(false) {
                        drop(slot);
                        this.state.release()
                    } else {
                        let taken = mem::replace(&mut *slot, Slot::EMPTY);
                        drop(slot);
                        let duty = if holds.is_none() { State::abandon } else { State::finish };
                        return taken.finished(duty(&this.state), holds.is_none());
                    }
                }
                Duty::Expire => match this.expire_again() {
                    Some(timeout) => {
                        this.slot.lock().timeout = Some(timeout);
                        this.state.release()
                    }
                    // Nobody else will expire it, so it is done here; unless somebody was promised
                    // something else meanwhile.
                    None => match this.state.finish() {
                        Duty::Complete(Cause::Triggered) => {
                            this.take().end(Count::Expired, expire);
                            return Served::Completed(Cause::Forced);
                        }
                        promised => promised,
                    },
                },
                Duty::Complete(_) | Duty::Cancel => return this.take().finished(duty, false),
            }
        }
    }

    /// Has the executor expire the operation, whose time is up, once more; if the timer takes it.
    fn expire_again(self: &Arc<Self>) -> Option<Timeout> {
        let home = self.slot.lock().home.clone()?;
        home.registry.timer.add(TimerEntry::after(Duration::ZERO, self.task())).ok()
    }

    /// Completes the operation, unless its fate is sealed. Whether this call did, or made its
    /// holder do so.
    pub(crate) fn force(&self) -> bool {
        let claim = self.state.force();
        if claim == Claim::Won {
            self.take().end(Count::Forced, O::on_complete);
        }
        claim != Claim::Lost
    }

    /// Takes the operation back, or makes its holder let it go.
    pub(crate) fn cancel(&self) -> (Claim, Option<O>) {
        self.cancelled(self.state.cancel())
    }

    /// As `cancel`, but leaves an operation alone that is still being added.
    pub(crate) fn cancel_unless_adding(&self) -> (Claim, Option<O>) {
        self.cancelled(self.state.cancel_unless_adding())
    }

    fn cancelled(&self, claim: Claim) -> (Claim, Option<O>) {
        if claim != Claim::Won {
            return (claim, None);
        }
        (claim, self.take().leave(Count::Cancelled).map(|(_, operation)| operation))
    }

    fn take(&self) -> Slot<K, O> {
        mem::replace(&mut *self.slot.lock(), Slot::EMPTY)
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }
}

impl<K, O> Slot<K, O> {
    const EMPTY: Self = Slot { home: None, operation: None, timeout: None, place: Place::NONE };
}

/// Of an operation that is finished.
impl<K, O> Slot<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Ends it as its former holder's `duty` is; if it `panicked`, it is only dropped.
    fn finished(self, duty: Duty, panicked: bool) -> Served<K, O> {
        match duty {
            _ if panicked => {
                if let Some((home, operation)) = self.leave(Count::Neither) {
                    home.registry.count_panic();
                    home.conclude(operation, |_| ());
                }
                Served::Panicked
            }
            Duty::Complete(cause) => {
                let count = match cause {
                    Cause::Triggered => Count::Triggered,
                    Cause::Forced => Count::Forced,
                };
                self.end(count, O::on_complete);
                Served::Completed(cause)
            }
            _ => Served::Cancelled(self),
        }
    }

    /// Takes it out of its keys and of the timer.
    fn leave(self, count: Count) -> Option<(Arc<Shared<K, O>>, O)> {
        let Slot { home, operation, timeout, place } = self;
        let home = home?;
        home.registry.unwatch(place, count);
        if let Some(timeout) = timeout {
            drop(timeout.cancel());
        }
        Some((home, operation?))
    }

    /// The same; then calls the code with which it ends, and drops it.
    fn end(self, count: Count, code: impl FnOnce(&mut O) + 'static) {
        if let Some((home, operation)) = self.leave(count) {
            home.conclude(operation, code);
        }
    }
}

fn expire<O: DelayedOperation>(operation: &mut O) {
    operation.on_complete();
    operation.on_expiration();
}

/// The timer's task: a waker costs no allocation.
impl<K, O> Wake for Delayed<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn wake(self: Arc<Self>) {
        if self.state.expire() == Claim::Won {
            self.take().end(Count::Expired, expire);
        }
    }
}

impl<K, O> std::fmt::Debug for Slot<K, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
