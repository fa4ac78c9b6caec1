//! Parked requests: the operation waits in a purgatory, its connection waits for the answer.

use std::hash::Hash;
use tickwheel::When;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tokio::sync::oneshot;

/// Parks an operation until it answers. It is cancelled if this future is dropped, because the
/// client has gone. `None` if it was taken out by a shutdown.
pub(crate) async fn park<K, O, R>(
    purgatory: &Purgatory<K, O>,
    operation: O,
    timeout: impl Into<When>,
    keys: &[K],
    answer: oneshot::Receiver<R>,
) -> Option<R>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    let _parked = match purgatory.try_complete_else_watch(operation, timeout, keys) {
        Ok(watch) => watch.pending().map(Pending::cancel_on_drop),
        // As many wait as may, or it waits for nothing: the answer is what there is.
        Err(refused) => {
            refused.into_operation().on_complete();
            None
        }
    };
    answer.await.ok()
}
