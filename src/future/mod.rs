//! Futures on a timer, on plain wakers: no runtime is needed.

pub(crate) mod drive;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;

pub use crate::future::drive::Drive;
pub use crate::timer::error::SleepError;
pub use crate::timer::sleep::Sleep;

use crate::engine::clock::When;
use crate::periodic::MissedTick;
use crate::timer::Timer;
use pin_project_lite::pin_project;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// The error of a future under [`Timer::timeout`] that has no output.
///
/// The error does not say which limit it belongs to. Where limits nest, name each of them where it
/// is set:
///
/// ```
/// # use std::time::Duration;
/// # use tickwheel::Timer;
/// # use tickwheel::future::TimedError;
/// # pollster::block_on(async {
/// # let timer = Timer::builder().start()?;
/// # let connect = std::future::pending::<()>();
/// # let short = Duration::from_millis(1);
/// # let long = Duration::from_secs(3600);
/// let call = async {
///     let connected = timer.timeout(short, connect).await;
///     connected.map_err(|error| ("connect", error))
/// };
/// let answer = timer.timeout(long, call).await;
/// let answer = answer.map_err(|error| ("call", error)).and_then(|answer| answer);
/// assert_eq!(answer, Err(("connect", TimedError::Elapsed)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimedError {
    /// The time was up.
    Elapsed,
    /// The timer could not add the timeout.
    Sleep(SleepError),
}

/// Wakers are woken on the thread that advances the timer.
impl<T: 'static> Timer<T> {
    /// Returns a future that completes at `when`; a delay counts from this call.
    ///
    /// Its output is a [`SleepError`] if the timer is full or was shut down. Never blocks.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::Timer;
    /// # pollster::block_on(async {
    /// let timer = Timer::builder().start()?;
    /// timer.sleep(Duration::from_millis(10)).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn sleep(&self, when: impl Into<When>) -> Sleep {
        self.base.sleeps.sleep(when.into())
    }

    /// Limits the time of `future`. The returned future ends with the output of `future`, or with
    /// [`TimedError::Elapsed`] if there is none at `when`; a delay counts from this call. For
    /// limits within limits see [`TimedError`].
    ///
    /// If the timer is full or was shut down, the returned future ends with [`TimedError::Sleep`],
    /// unless `future` is ready. `future` is dropped then.
    ///
    /// Each poll polls `future` first, so an output that is ready in time is never lost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::Timer;
    /// # use tickwheel::future::TimedError;
    /// # pollster::block_on(async {
    /// let timer = Timer::builder().start()?;
    /// let millisecond = Duration::from_millis(1);
    /// let hour = Duration::from_secs(3600);
    /// assert_eq!(timer.timeout(hour, async { 7 }).await, Ok(7));
    /// let never = timer.timeout(millisecond, std::future::pending::<()>());
    /// assert_eq!(never.await, Err(TimedError::Elapsed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn timeout<F: Future>(&self, when: impl Into<When>, future: F) -> Timed<F> {
        Timed {
            sleep: self.sleep(when),
            future: Some(future),
        }
    }

    /// Returns an interval whose first tick is due at once, and each later tick a `period` after
    /// the previous one was due. Zero counts as a nanosecond. [`Interval::missed_tick`] sets what
    /// happens to missed ticks. A late tick does not delay the others, except with
    /// [`MissedTick::Delay`].
    #[must_use]
    pub fn interval(&self, period: Duration) -> Interval {
        self.interval_at(Duration::ZERO, period)
    }

    /// Returns an [`interval`](Self::interval) whose first tick is due at `first`; a delay counts
    /// from this call.
    #[must_use]
    pub fn interval_at(&self, first: impl Into<When>, period: Duration) -> Interval {
        Interval {
            sleep: self.sleep(first),
            period: period.max(Duration::from_nanos(1)),
            missed_tick: MissedTick::default(),
            #[cfg(feature = "stream")]
            has_failed: false,
        }
    }
}

pin_project! {
    /// A future whose time is limited; created by [`Timer::timeout`].
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Timed<F> {
        sleep: Sleep,
        // Dropped as soon as this is ready.
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = Result<F::Output, TimedError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut timed = self.project();
        let mut poll = |context: &mut Context<'_>| {
            timed
                .future
                .as_mut()
                .as_pin_mut()
                .map_or(Poll::Pending, |future| future.poll(context))
        };
        let mut polled = poll(context).map(Ok);
        if polled.is_pending() {
            let slept = ready!(Pin::new(&mut *timed.sleep).poll(context));
            let late = slept.map_or_else(TimedError::Sleep, |()| TimedError::Elapsed);
            // The future may have become ready in time since it was polled.
            polled = Poll::Ready(match poll(context) {
                Poll::Ready(output) => Ok(output),
                Poll::Pending => Err(late),
            });
        }
        timed.sleep.cancel();
        timed.future.set(None);
        polled
    }
}

/// A sequence of ticks at regular times; created by [`Timer::interval`].
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed_tick: MissedTick,
    /// Whether the stream has yielded an error, its last item.
    #[cfg(feature = "stream")]
    has_failed: bool,
}

impl Interval {
    /// Sets what happens to missed ticks. Default: [`MissedTick::Skip`]. A tick begins when it is
    /// returned.
    #[must_use]
    pub fn missed_tick(mut self, missed_tick: MissedTick) -> Self {
        self.missed_tick = missed_tick;
        self
    }

    /// Moves the next tick; later ticks are counted from it. An interval that is reset at each
    /// packet ticks only after a silence.
    pub fn reset(&mut self, when: impl Into<When>) {
        self.sleep.reset(when);
    }

    /// Changes the period, from the next tick on. Zero counts as a nanosecond.
    pub fn set_period(&mut self, period: Duration) {
        self.period = period.max(Duration::from_nanos(1));
    }

    /// Waits for the next tick and returns when it was due. Dropping the future loses no tick.
    ///
    /// # Errors
    /// [`SleepError`], if the timer is full or was shut down.
    pub async fn tick(&mut self) -> Result<Instant, SleepError> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick, like [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Instant, SleepError>> {
        ready!(Pin::new(&mut self.sleep).poll(context))?;
        let now = self.sleep.now();
        let due = self.sleep.deadline().unwrap_or(now);
        let next = self.missed_tick.next(due, now, now, self.period);
        self.sleep.reset(When::at_or_never(next));
        Poll::Ready(Ok(due))
    }
}

/// With the feature `stream`: yields the ticks, each with the time at which it was due; [the
/// guide](crate::guide::runtimes#ticks-as-a-stream) has an example.
///
/// If the timer is full or was shut down, the stream yields the [`SleepError`] and ends. It has no
/// other end.
#[cfg(feature = "stream")]
impl futures_core::Stream for Interval {
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

impl fmt::Display for TimedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimedError::Elapsed => f.write_str("the time was up"),
            TimedError::Sleep(error) => error.fmt(f),
        }
    }
}

impl Error for TimedError {}
