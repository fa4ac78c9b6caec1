//! Delayed operations that futures wait for. They use plain wakers and need no runtime.

use crate::engine::clock::When;
use crate::engine::report::catch_panic;
use crate::purgatory::{CancelPendingOnDrop, DelayedOperation, Pending, Purgatory, WatchError};
use crate::sync::HotMutex;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The operation type of a purgatory that futures wait on: see [`Purgatory::wait`].
pub struct FutureOperation {
    condition: Box<dyn FnMut() -> bool + Send>,
    /// Dropped after the condition, even if its drop panics: a woken task finds the operation gone.
    end: End,
}

struct End {
    /// How the operation has ended so far. Published on drop, because an expiry begins as a
    /// completion.
    waited: Waited,
    shared: Arc<HotMutex<Outcome>>,
}

/// How a [`Wait`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// The condition held, at the start or at a trigger, or `force_complete_all` completed the
    /// operation.
    Completed,
    /// The timeout passed.
    Expired,
    /// The operation was taken out by `cancel_for_key`, `cancel_all` or `shutdown`, or dropped with
    /// the last clone of its purgatory, or its condition panicked.
    Cancelled,
}

/// The state that an operation and its future share.
#[derive(Debug, Default)]
struct Outcome {
    waited: Option<Waited>,
    waker: Option<Waker>,
}

impl DelayedOperation for FutureOperation {
    fn try_complete(&mut self) -> bool {
        (self.condition)()
    }

    fn on_complete(&mut self) {
        self.end.waited = Waited::Completed;
    }

    fn on_expiration(&mut self) {
        self.end.waited = Waited::Expired;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut outcome = self.shared.lock();
        outcome.waited = Some(self.waited);
        let waker = outcome.waker.take();
        drop(outcome);
        // Not under the lock, because a waker is foreign code. A second panic would end the
        // process.
        if let Some(waker) = waker {
            catch_panic(|| waker.wake());
        }
    }
}

/// A future that is ready when its operation has completed, expired or been cancelled.
///
/// Dropping it cancels the operation. The operation waits from the moment at which
/// [`Purgatory::wait`] returns, even before the future is first polled.
#[must_use = "dropped at once, it cancels at once"]
pub struct Wait<K: Eq + Clone + 'static> {
    shared: Arc<HotMutex<Outcome>>,
    /// Dropped after the waker.
    _pending: Option<CancelPendingOnDrop<K, FutureOperation>>,
}

impl<K, S> Purgatory<K, FutureOperation, S>
where
    K: Hash + Eq + Clone + 'static,
    S: BuildHasher,
{
    /// Waits until `condition` holds, for at most `timeout`. Checks the condition at once, and
    /// again whenever one of the `keys` is triggered.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    /// use tickwheel::purgatory::{FutureOperation, Purgatory, Waited};
    ///
    /// # pollster::block_on(async {
    /// let timer = Timer::builder().start()?;
    /// let purgatory: Purgatory<&str, FutureOperation> = Purgatory::new(&timer);
    /// let end = Arc::new(AtomicU64::new(0));
    ///
    /// // A consumer that waits for 100 bytes of a partition.
    /// let seen = Arc::clone(&end);
    /// let enough = move || seen.load(Ordering::Acquire) >= 100;
    /// let fetch = purgatory.wait(enough, Duration::from_secs(30), &["orders-0"])?;
    ///
    /// // A producer, on another thread.
    /// let producer = purgatory.clone();
    /// std::thread::spawn(move || {
    ///     end.store(120, Ordering::Release);
    ///     producer.check_and_complete(&"orders-0");
    /// });
    ///
    /// assert_eq!(fetch.await, Waited::Completed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// A condition that takes something, such as an item of a queue, should leave it where its
    /// owner finds it. If the future is dropped meanwhile, nothing reports that the item was taken.
    ///
    /// A wait that begins in an operation's callback is not ready before that callback has
    /// returned: do not block on it there. After a `shutdown` of the timer a wait no longer times
    /// out: shut the purgatory down to end it.
    ///
    /// # Errors
    /// Those of [`try_complete_else_watch`](Self::try_complete_else_watch).
    pub fn wait(
        &self,
        condition: impl FnMut() -> bool + Send + 'static,
        timeout: impl Into<When>,
        keys: &[K],
    ) -> Result<Wait<K>, WatchError<FutureOperation>> {
        let shared = Arc::new(HotMutex::new(Outcome::default()));
        let operation = FutureOperation {
            condition: Box::new(condition),
            end: End {
                waited: Waited::Cancelled,
                shared: Arc::clone(&shared),
            },
        };
        let watch = self.try_complete_else_watch(operation, timeout, keys)?;
        Ok(Wait {
            shared,
            _pending: watch.pending().map(Pending::cancel_on_drop),
        })
    }
}

impl<K: Eq + Clone> Future for Wait<K> {
    type Output = Waited;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Waited> {
        // Neither the clone of the new waker nor the drop of the former runs under the lock.
        let waker = context.waker().clone();
        let mut outcome = self.shared.lock();
        if let Some(waited) = outcome.waited {
            return Poll::Ready(waited);
        }
        let former = outcome.waker.replace(waker);
        drop(outcome);
        catch_panic(|| drop(former));
        Poll::Pending
    }
}

impl<K: Eq + Clone> Drop for Wait<K> {
    fn drop(&mut self) {
        // Nothing waits any more, so no waker has to be woken.
        let waker = self.shared.lock().waker.take();
        catch_panic(|| drop(waker));
    }
}

impl fmt::Debug for FutureOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureOperation")
            .field("waited", &self.end.waited)
            .finish_non_exhaustive()
    }
}

impl<K: Eq + Clone> fmt::Debug for Wait<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").finish_non_exhaustive()
    }
}
