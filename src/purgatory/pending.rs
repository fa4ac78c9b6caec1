//! The handle of a watched operation.

use crate::engine::report::catch_panic;
use crate::purgatory::check::OperationRef;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::state::Claim;
use std::fmt;

/// What became of an operation that was accepted by
/// [`Purgatory::try_complete_else_watch`](crate::purgatory::Purgatory::try_complete_else_watch).
#[derive(Debug)]
#[must_use = "tells whether the operation is completed already"]
pub enum Watch<K: 'static, O: 'static> {
    /// The operation is finished. Its condition held at one of the checks, and `on_complete` was
    /// called (or will be, once the operation's callback that made this call returns). Or a check
    /// panicked. Or its time was up before it was fully added, and it has expired.
    Completed,
    /// The operation is watched on all its keys. Dropping the handle changes nothing.
    Pending(Pending<K, O>),
}

impl<K, O> Watch<K, O> {
    /// Returns whether the operation was finished at once.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, Watch::Completed)
    }

    /// Returns the handle, if the operation is watched.
    #[must_use]
    pub fn pending(self) -> Option<Pending<K, O>> {
        match self {
            Watch::Completed => None,
            Watch::Pending(pending) => Some(pending),
        }
    }
}

/// The handle of a watched operation: completes it, cancels it, or tells whether it is still
/// waiting.
///
/// Dropping it changes nothing and costs nothing: it takes no lock and decrements no count. It may
/// be kept for any length of time, even beyond the purgatory: it keeps neither the operation nor
/// the timer alive, and it never affects another operation. It takes 24 bytes.
pub struct Pending<K: 'static, O: 'static>(pub(crate) OperationRef<K, O>);

/// The result of [`Pending::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the operation that was taken back is inside"]
pub enum Cancelled<O> {
    /// This call cancelled the operation, which is inside. None of its code was called.
    Returned(O),
    /// This call cancelled the operation, unless its condition holds: another thread is checking it
    /// at this moment. If that thread finds the condition false, it calls
    /// [`on_cancellation`](DelayedOperation::on_cancellation) and drops the operation; if it finds
    /// that the condition holds, it completes the operation.
    Deferred,
    /// The operation had finished already.
    Finished,
}

impl<O> Cancelled<O> {
    /// Returns the operation, if this call took it back.
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
    /// Returns whether the operation is still waiting, with its end undecided. Inside its own
    /// `on_complete` it is not. Only the operation's own callbacks tell how it ended.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.0.is_pending()
    }

    /// Completes the operation, whether its condition holds or not. Returns whether this call did
    /// so: of all triggers, the expiry, `force_complete` and `cancel`, exactly one wins.
    ///
    /// `on_complete` is called before this returns; or, inside another operation's callback, after
    /// that callback has returned. If another thread is checking the operation at this moment, that
    /// thread calls `on_complete` when its check is done, and this call does not wait for it. The
    /// operation counts as forced even if that check finds that the condition holds.
    pub fn force_complete(&self) -> bool {
        self.0.force()
    }

    /// Takes the operation back, out of all its keys and the timer. Never waits for a check that is
    /// under way.
    pub fn cancel(&self) -> Cancelled<O> {
        match self.0.cancel() {
            Claim::Won(operation) => Cancelled::Returned(operation),
            Claim::Deferred => Cancelled::Deferred,
            Claim::Lost => Cancelled::Finished,
        }
    }

    /// Returns a guard that cancels the operation when it is dropped: for a request that is
    /// pointless once its connection, or the future that it belongs to, has gone.
    pub fn cancel_on_drop(self) -> CancelPendingOnDrop<K, O> {
        CancelPendingOnDrop(self)
    }
}

/// A [`Pending`] that cancels its operation when it is dropped. The operation is dropped with it,
/// without a call to its code. If another thread is checking the operation at that moment, that
/// thread decides instead, as for [`Cancelled::Deferred`]: it completes the operation if the
/// condition holds, and calls `on_cancellation` if not. If the operation has ended already, nothing
/// happens.
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
        catch_panic(|| drop(self.0.cancel()));
    }
}

impl<K, O> fmt::Debug for Pending<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
