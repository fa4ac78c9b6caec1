//! A delayed operation in the purgatory: the user's operation, its state word, its entries among
//! the watchers, its timeout.
//!
//! Whoever [claims](crate::purgatory::state) it holds it: checks it, or ends it. To end it is to
//! take it out of all its keys and of the timer first, then to call its code, then to drop it.

use crate::purgatory::callbacks::contain;
use crate::purgatory::entries::Place;
use crate::purgatory::error::WatchError;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::registry::{Count, Home};
use crate::purgatory::state::{Cause, Claim, Duty, State};
use crate::sync::Mutex;
use crate::{AddError, Task, Timeout, Timer, TimerEntry};
use std::mem;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// What a purgatory's operations share.
pub(crate) type Shared<K, O> = Home<K, Arc<Delayed<K, O>>>;

#[derive(Debug)]
pub(crate) struct Delayed<K, O> {
    home: Arc<Shared<K, O>>,
    state: State,
    /// Locked by its holder only, so nobody ever waits for it: it is what the compiler sees of the
    /// state word.
    slot: Mutex<Slot<O>>,
}

/// Filled while the operation is watched.
struct Slot<O> {
    operation: Option<O>,
    timeout: Option<Timeout>,
    /// The operation's last entry.
    place: Place,
}

/// How it stands with an operation when its holder has seen to all requests.
enum Served<O> {
    /// Somebody else may hold it now.
    Waits,
    Completed(Cause),
    /// It was left to its holder to let it go.
    Cancelled(O),
    Panicked,
}

impl<K, O> Delayed<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, and checks it once more. `None` if that
    /// completed it.
    pub(crate) fn watch(
        home: &Arc<Shared<K, O>>,
        timer: &Timer,
        mut operation: O,
        timeout: Duration,
        keys: &[K],
        hash: impl Fn(&K) -> u64,
    ) -> Result<Option<Arc<Self>>, WatchError<O>> {
        let (home, slot) = (Arc::clone(home), Mutex::new(Slot::EMPTY));
        let delayed = Arc::new(Delayed { home, state: State::adding(), slot });
        let registry = &*delayed.home.registry;
        let mut place = Place::NONE;
        for key in keys {
            match registry.watch(hash(key), key, Arc::clone(&delayed), place) {
                Some(next) => place = next,
                None => return Err(WatchError::Shutdown(delayed.withdraw(operation, place))),
            }
        }
        match contain(|| operation.try_complete()) {
            Some(false) => {}
            Some(true) => {
                if delayed.state.finish() == Duty::Cancel {
                    return Err(WatchError::Shutdown(delayed.withdraw(operation, place)));
                }
                registry.unwatch(place, Count::AtOnce);
                delayed.home.conclude(operation, O::on_complete);
                return Ok(None);
            }
            None => {
                registry.count_panic();
                let operation = delayed.withdraw(operation, place);
                delayed.home.conclude(operation, |_| ());
                return Ok(None);
            }
        }
        let timeout = match timer.add(TimerEntry::after(timeout, delayed.task())) {
            Ok(timeout) => timeout,
            Err(error) => {
                let operation = delayed.withdraw(operation, place);
                return Err(match error {
                    AddError::Full(_) => WatchError::Full(operation),
                    AddError::Shutdown(_) => WatchError::Shutdown(operation),
                });
            }
        };
        *delayed.slot.lock() = Slot { operation: Some(operation), timeout: Some(timeout), place };
        let duty = delayed.state.release();
        match Self::serve(&delayed, duty) {
            Served::Waits => Ok(Some(delayed)),
            Served::Completed(_) | Served::Panicked => Ok(None),
            Served::Cancelled(operation) => Err(WatchError::Shutdown(operation)),
        }
    }

    /// Ends the adding of an operation that is not accepted.
    fn withdraw(&self, operation: O, place: Place) -> O {
        let _ = self.state.finish();
        self.home.registry.unwatch(place, Count::Neither);
        operation
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
            Served::Cancelled(operation) => {
                self.home.conclude(operation, O::on_cancellation);
                false
            }
        }
    }

    /// The holder sees to its duties until it has none.
    fn serve(this: &Arc<Self>, mut duty: Duty) -> Served<O> {
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
                        let slot = slot.take();
                        return this.finished(this.state.finish(), slot, holds.is_none());
                    }
                }
                Duty::Expire => match this.home.registry.hand_over(this.task()) {
                    Some(timeout) => {
                        this.slot.lock().timeout = Some(timeout);
                        this.state.release()
                    }
                    // Nobody else will expire it, so it is done here.
                    None => match this.state.finish() {
                        Duty::Complete(Cause::Triggered) => {
                            this.end(Count::Expired, expire);
                            return Served::Completed(Cause::Forced);
                        }
                        duty => duty,
                    },
                },
                Duty::Complete(_) | Duty::Cancel => {
                    let slot = this.slot.lock().take();
                    return this.finished(duty, slot, false);
                }
            }
        }
    }

    /// The holder has finished the operation: ends it as its `duty` is. Not if it `panicked`: then
    /// it is only dropped.
    fn finished(&self, duty: Duty, slot: Slot<O>, panicked: bool) -> Served<O> {
        let count = match duty {
            _ if panicked => Count::Neither,
            Duty::Complete(Cause::Triggered) => Count::Triggered,
            Duty::Complete(Cause::Forced) => Count::Forced,
            _ => Count::Cancelled,
        };
        let Some(operation) = self.leave(slot, count) else { return Served::Waits };
        match duty {
            _ if panicked => {
                self.home.registry.count_panic();
                self.home.conclude(operation, |_| ());
                Served::Panicked
            }
            Duty::Complete(cause) => {
                self.home.conclude(operation, O::on_complete);
                Served::Completed(cause)
            }
            _ => Served::Cancelled(operation),
        }
    }

    /// Completes the operation, unless its fate is sealed. Whether this call did, or made its
    /// holder do so.
    pub(crate) fn force(&self) -> bool {
        let claim = self.state.force();
        if claim == Claim::Won {
            self.end(Count::Forced, O::on_complete);
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
        let operation = if claim == Claim::Won { self.take(Count::Cancelled) } else { None };
        (claim, operation)
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Ends a finished operation.
    fn end(&self, count: Count, code: impl FnOnce(&mut O) + 'static) {
        if let Some(operation) = self.take(count) {
            self.home.conclude(operation, code);
        }
    }

    /// Takes a finished operation out of its keys and of the timer.
    fn take(&self, count: Count) -> Option<O> {
        let slot = self.slot.lock().take();
        self.leave(slot, count)
    }

    fn leave(&self, slot: Slot<O>, count: Count) -> Option<O> {
        let Slot { operation, timeout, place } = slot;
        self.home.registry.unwatch(place, count);
        if let Some(timeout) = timeout {
            drop(timeout.cancel());
        }
        operation
    }
}

impl<O> Slot<O> {
    const EMPTY: Self = Slot { operation: None, timeout: None, place: Place::NONE };

    fn take(&mut self) -> Self {
        mem::replace(self, Self::EMPTY)
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
            self.end(Count::Expired, expire);
        }
    }
}

impl<O> std::fmt::Debug for Slot<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
