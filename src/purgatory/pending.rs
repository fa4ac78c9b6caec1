//! The handle of an operation that is watched.

use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::OperationRef;
use crate::purgatory::state::Claim;
use std::fmt;

/// What became of an operation that was accepted:
/// [`Purgatory::try_complete_else_watch`](crate::purgatory::Purgatory::try_complete_else_watch).
#[derive(Debug)]
#[must_use = "tells whether the operation is completed already"]
pub enum Watch<K: 'static, O: 'static> {
    /// It is finished: the condition held at one of the checks, and `on_complete` was called (or
    /// will be, after the operation's callback that this was called from). Or a check panicked. Or
    /// its time was up before it was added, and the timer did not take it again.
    Completed,
    /// It is watched on all its keys. Dropping the handle changes nothing.
    Pending(Pending<K, O>),
}

impl<K, O> Watch<K, O> {
    /// Whether it was completed at once.
    pub fn is_completed(&self) -> bool {
        matches!(self, Watch::Completed)
    }

    /// The handle, if it is watched.
    pub fn pending(self) -> Option<Pending<K, O>> {
        match self {
            Watch::Completed => None,
            Watch::Pending(pending) => Some(pending),
        }
    }
}

/// The handle of an operation that is watched: completes or cancels it, and tells whether it waits.
///
/// Dropping it changes nothing and costs nothing: it takes no lock, and no count is kept. It may be
/// kept for as long as one likes, also beyond the purgatory: it keeps neither the operation nor the
/// timer alive, and it never touches another operation. It takes 24 bytes.
pub struct Pending<K: 'static, O: 'static>(pub(crate) OperationRef<K, O>);

/// Who won, as [`Pending::cancel`] answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the operation that was taken back is inside"]
pub enum Cancelled<O> {
    /// This call: here is the operation. None of its code was called.
    Returned(O),
    /// This call, unless the condition holds: another thread is checking the operation at this
    /// moment. If it finds the condition false, it will call
    /// [`on_cancellation`](DelayedOperation::on_cancellation) and drop the operation; but if it
    /// finds that it holds, it completes it.
    Deferred,
    /// Somebody else: it was finished already.
    Finished,
}

impl<O> Cancelled<O> {
    /// The operation, if this call got it.
    pub fn into_operation(self) -> Option<O> {
        match self {
            Cancelled::Returned(operation) => Some(operation),
            Cancelled::Deferred | Cancelled::Finished => None,
        }
    }
}

impl<K, O> Pending<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Returns whether the operation still waits: whether its end is open. Inside its `on_complete`
    /// it is not any more. How it ended, only its own callbacks tell.
    pub fn is_pending(&self) -> bool {
        self.0.is_pending()
    }

    /// Completes the operation, whether its condition holds or not. Whether this call did so: of
    /// all triggers, expiry, `force_complete` and `cancel` one wins.
    ///
    /// Calls `on_complete` before it returns; inside another operation's callback, after that has
    /// returned. If another thread is checking the operation at this moment, that one calls it, as
    /// soon as it has: nobody waits for it. It counts as forced also if that check finds that the
    /// condition holds.
    pub fn force_complete(&self) -> bool {
        self.0.force()
    }

    /// Takes the operation back, out of all its keys and the timer. Never waits.
    pub fn cancel(&self) -> Cancelled<O> {
        match self.0.cancel() {
            (_, Some(operation)) => Cancelled::Returned(operation),
            (Claim::Lost, None) => Cancelled::Finished,
            (Claim::Won | Claim::Deferred, None) => Cancelled::Deferred,
        }
    }

    /// Cancels the operation when the guard is dropped: for a request that nobody waits for once
    /// its connection, or the future that it belongs to, has gone.
    pub fn cancel_on_drop(self) -> CancelPendingOnDrop<K, O> {
        CancelPendingOnDrop(self)
    }
}

/// A [`Pending`] that cancels its operation when it is dropped. The operation is dropped with it,
/// without a call to its code; if it was finished already, nothing happens.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Timer;
/// use tickwheel::purgatory::{DelayedOperation, Purgatory};
///
/// struct Fetch;
///
/// impl DelayedOperation for Fetch {
///     fn try_complete(&mut self) -> bool {
///         false
///     }
///     fn on_complete(&mut self) {
///         unreachable!("the connection was closed before");
///     }
/// }
///
/// let timer = Timer::builder().start()?;
/// let fetches = Purgatory::new(&timer);
/// let watch = fetches.try_complete_else_watch(Fetch, Duration::MAX, &["orders-0"])?;
/// let connection = watch.pending().map(|pending| pending.cancel_on_drop());
/// assert_eq!(fetches.delayed(), 1);
/// drop(connection);
/// assert_eq!(fetches.delayed(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped at once, it cancels at once"]
pub struct CancelPendingOnDrop<K, O>(Pending<K, O>)
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation;

impl<K, O> Drop for CancelPendingOnDrop<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn drop(&mut self) {
        drop(self.0.cancel());
    }
}

impl<K, O> fmt::Debug for Pending<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
