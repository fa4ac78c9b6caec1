//! Delayed operations: the trait that a purgatory's user implements, and the results of calls.

use crate::timer::error::Rejected;
use std::error::Error;
use std::fmt;

/// An operation that waits in a [`Purgatory`](crate::purgatory::Purgatory) until its condition
/// holds or its time is up: a fetch that waits for bytes, a produce that waits for its replicas.
///
/// ```
/// # use std::sync::{Arc, mpsc, atomic::{AtomicUsize, Ordering::Acquire}};
/// # use tickwheel::purgatory::DelayedOperation;
/// # struct Fetch { wanted: usize, available: Arc<AtomicUsize>, response: mpsc::Sender<usize> }
/// impl DelayedOperation for Fetch {
///     fn try_complete(&mut self) -> bool {
///         self.available.load(Acquire) >= self.wanted
///     }
///
///     // Called when there is enough, and when the time is up: the answer is what there is.
///     fn on_complete(&mut self) {
///         let _ = self.response.send(self.available.load(Acquire));
///     }
/// }
/// ```
///
/// The purgatory owns the operation, and calls its methods on the thread that triggers, adds or
/// expires it. No two methods ever run at the same time. Each operation ends exactly once. It is
/// completed, expires, or is returned by a `cancel`, by `shutdown` or in an error. The purgatory
/// drops an operation that it does not return.
///
/// No lock is held while a method runs: every method may use the purgatory and the timer. A panic
/// is contained, counted and reported; the operation is then dropped without further calls. A mutex
/// of yours that the method holds is poisoned.
pub trait DelayedOperation: Send + 'static {
    /// Returns whether the condition holds now. If it does, `on_complete` follows. Should be quick.
    ///
    /// `true` is final: the operation is completed, once, even if another thread cancels it, shuts
    /// the purgatory down or finds its time up at that moment. A check may therefore claim what the
    /// operation waits for, such as an item of a queue, and keep it for `on_complete`. A check that
    /// returns false or panics must not have taken anything.
    ///
    /// Called twice when the operation is watched, then once for each trigger of one of its keys
    /// (twice if the key was named twice). Triggers that arrive during a check share one more
    /// check, so a trigger [carries no event](crate::guide::purgatory#porting-a-list-of-waiters).
    /// [`check_and_complete`](crate::purgatory::Purgatory::check_and_complete) describes the
    /// limits, and triggers by a check.
    fn try_complete(&mut self) -> bool;

    /// Completes the operation, once: its condition held, it was forced, or its time is up. It is
    /// not told which: let `try_complete` store what it found. If the time is up, `try_complete`
    /// has never returned true.
    fn on_complete(&mut self);

    /// Reacts to the expiry of the operation. Called after `on_complete`, by the timer's executor
    /// or by the thread that was checking the operation then. Default: does nothing.
    fn on_expiration(&mut self) {}

    /// Reacts to a cancellation by another thread during a check, when the operation could not be
    /// returned; see [`Cancel::Deferred`]. Default: does nothing.
    fn on_cancellation(&mut self) {}
}

impl<O: DelayedOperation + ?Sized> DelayedOperation for Box<O> {
    fn try_complete(&mut self) -> bool {
        (**self).try_complete()
    }

    fn on_complete(&mut self) {
        (**self).on_complete();
    }

    fn on_expiration(&mut self) {
        (**self).on_expiration();
    }

    fn on_cancellation(&mut self) {
        (**self).on_cancellation();
    }
}

/// The error of
/// [`Purgatory::try_complete_else_watch`](crate::purgatory::Purgatory::try_complete_else_watch),
/// which returns the operation. The operation is watched nowhere and was not completed.
#[non_exhaustive]
pub enum WatchError<O> {
    /// The operation has no key, so nothing would ever trigger it.
    NoKeys(Rejected<O>),
    /// The timer already has as many pending timers as its `max_pending` allows.
    Full(Rejected<O>),
    /// The purgatory, or its timer, was shut down.
    Shutdown(Rejected<O>),
}

impl<O> WatchError<O> {
    /// Returns the operation that was not accepted.
    pub fn into_operation(self) -> O {
        match self {
            WatchError::NoKeys(operation)
            | WatchError::Full(operation)
            | WatchError::Shutdown(operation) => operation.into_inner(),
        }
    }

    fn text(&self) -> &'static str {
        match self {
            WatchError::NoKeys(_) => "the operation has no key",
            WatchError::Full(_) => "the timer is full",
            WatchError::Shutdown(_) => "the purgatory was shut down",
        }
    }
}

/// Leaves out the operation, which need not be `Debug`.
impl<O> fmt::Debug for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchError({})", self.text())
    }
}

impl<O> fmt::Display for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl<O> Error for WatchError<O> {}

/// The result of [`Pending::cancel`](crate::purgatory::Pending::cancel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the operation that was taken back is inside"]
pub enum Cancel<O> {
    /// This call cancelled the operation, which is inside, without calling its code.
    Cancelled(O),
    /// Another thread is checking the operation, and cancels it if its condition is false: it calls
    /// [`on_cancellation`](DelayedOperation::on_cancellation) and drops the operation. If the
    /// condition holds, that thread completes the operation. If the check panics, the operation is
    /// dropped.
    Deferred,
    /// The operation had finished already, or an earlier `cancel` or `force_complete` had decided
    /// its end while another thread was checking it.
    Finished,
}

impl<O> Cancel<O> {
    /// Returns the operation, if it is inside.
    pub fn into_operation(self) -> Option<O> {
        match self {
            Cancel::Cancelled(operation) => Some(operation),
            Cancel::Deferred | Cancel::Finished => None,
        }
    }
}

/// A purgatory's counters, returned by [`Purgatory::stats`](crate::purgatory::Purgatory::stats).
///
/// Every accepted operation is still delayed, was completed, expired or cancelled, or had a check
/// that panicked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries that are watched: an operation counts once for each of its keys.
    pub watched: usize,
    /// Operations that are waiting.
    pub delayed: usize,
    /// Operations that one of the two checks of `try_complete_else_watch` completed.
    pub completed_at_once: u64,
    /// Operations that a trigger completed.
    pub completed_by_trigger: u64,
    /// Operations that `force_complete` or `force_complete_all` completed.
    pub completed_by_force: u64,
    /// Operations whose time was up.
    pub expired: u64,
    /// Operations that were cancelled, or returned by `cancel_for_key`, `cancel_all` or
    /// `shutdown`. Does not count those that a shutdown returned to the adding thread.
    pub cancelled: u64,
    /// Panics of operations' code, which the timer's statistics do not count again.
    pub panicked: u64,
}

impl Stats {
    /// Returns how many operations were completed before their time was up.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed_at_once + self.completed_by_trigger + self.completed_by_force
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "delayed {}, watched {}", self.delayed, self.watched)?;
        writeln!(
            f,
            "completed {} at once, {} by trigger, {} by force",
            self.completed_at_once, self.completed_by_trigger, self.completed_by_force
        )?;
        let Stats {
            expired,
            cancelled,
            panicked,
            ..
        } = self;
        write!(
            f,
            "expired {expired}, cancelled {cancelled}, panicked {panicked}"
        )
    }
}
