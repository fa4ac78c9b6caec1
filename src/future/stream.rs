//! The stream: an interval's ticks, one after the other.

use crate::future::{Interval, SleepError};
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// With the feature `stream`: the ticks, each with the time at which it was due.
///
/// The stream has no end of its own. If the timer is full or was shut down, it yields the
/// [`SleepError`] and ends.
///
/// ```
/// use futures_core::Stream;
/// use std::{future, pin::Pin, time::Duration};
/// use tickwheel::Timer;
///
/// # pollster::block_on(async {
/// let timer = Timer::builder().start()?;
/// let mut interval = timer.interval(Duration::from_millis(1));
/// // What `next` of the usual extension traits does.
/// let tick = future::poll_fn(|context| Pin::new(&mut interval).poll_next(context)).await;
/// assert!(matches!(tick, Some(Ok(due)) if due <= timer.now()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// The page [`guide::runtimes`](crate::guide::runtimes#ticks-as-a-stream) shows it with such a
/// trait.
impl Stream for Interval {
    type Item = Result<Instant, SleepError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        let tick = ready!(self.poll_tick(context));
        self.has_failed = tick.is_err();
        Poll::Ready(Some(tick))
    }
}
