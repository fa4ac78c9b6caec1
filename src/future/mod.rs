//! Futures on a timer, on plain wakers: no runtime is needed.

pub(crate) mod drive;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;

pub use crate::future::drive::Drive;

use crate::engine::clock::{Clock, When};
use crate::engine::shard::{Body, Refusal};
use crate::periodic::MissedTick;
use crate::timer::Timer;
use crate::timer::base::Share;
use crate::timer::entry::Task;
use crate::timer::tasks::Tasks;
use crate::timer::timeout::Timeout;
use pin_project_lite::pin_project;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

/// A future that completes at its deadline, never before; created by [`Timer::sleep`].
///
/// The task in the timer is the waker of the polling task, so a sleep allocates nothing. It owns a
/// clone of the timer. The first poll that finds it not ready adds a timeout; dropping the future
/// cancels it.
///
/// [`shutdown`](Timer::shutdown) returns the wakers of sleeping tasks, as tasks. Running or
/// dropping them wakes the sleepers, each of which then ends with an error. So does an executor
/// that refuses and drops them; but their time is up, so they end as usual.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Sleep {
    base: Share,
    /// `None`: so far away that no `Instant` can tell. An `Instant`, because the system's clock
    /// tells one, and whether it has come is seen without a subtraction.
    deadline: Option<Instant>,
    armed: Option<Armed>,
}

#[derive(Debug)]
struct Armed {
    timeout: Timeout,
    /// The waker that the timeout wakes: the clone that is the task in the timer, which keeps its
    /// data alive while the timeout is pending. It is not the waker that was cloned: that one may
    /// have other data, whose address another waker may have once it is gone.
    wakes: (usize, usize),
}

/// The error of a future that could not wait for its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SleepError {
    /// As many timers are pending as `max_pending` allows.
    Full,
    /// The timer was shut down.
    Shutdown,
}

/// The error of a future under [`Timer::timeout`] that has no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimedError {
    /// The time was up.
    Elapsed,
    /// The timer could not add the timeout.
    Sleep(SleepError),
}

/// Wakers are woken by the executor of [`Timer::closures`].
impl<T: Send + 'static> Timer<T> {
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
        let deadline = self.base.driver.context.time.clock.deadline_of(when.into());
        Sleep { base: self.base.share(), deadline, armed: None }
    }

    /// Limits the time of `future`: its output, or [`TimedError::Elapsed`] if it has none at
    /// `when`; a delay counts from this call.
    ///
    /// Each poll polls `future` first, so an output that is ready in time is never lost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::Timer;
    /// # use tickwheel::future::TimedError;
    /// # pollster::block_on(async {
    /// let timer = Timer::builder().start()?;
    /// let (millisecond, hour) = (Duration::from_millis(1), Duration::from_secs(3600));
    /// assert_eq!(timer.timeout(hour, async { 7 }).await, Ok(7));
    /// let never = timer.timeout(millisecond, std::future::pending::<()>());
    /// assert_eq!(never.await, Err(TimedError::Elapsed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn timeout<F: Future>(&self, when: impl Into<When>, future: F) -> Timed<F> {
        Timed { sleep: self.sleep(when), future: Some(future) }
    }

    /// Returns an interval whose first tick is due at once, and each later one a `period` after the
    /// previous one was due. A late tick does not delay the others, except with
    /// [`MissedTick::Delay`]; [`Interval::missed_tick`] sets what happens to missed ticks.
    ///
    /// A period of zero counts as a nanosecond.
    #[must_use]
    pub fn interval(&self, period: Duration) -> Interval {
        let period = period.max(Duration::from_nanos(1));
        let sleep = self.sleep(Duration::ZERO);
        Interval {
            sleep,
            period,
            missed_tick: MissedTick::default(),
            #[cfg(feature = "stream")]
            has_failed: false,
        }
    }
}

impl Sleep {
    fn clock(&self) -> &Clock {
        &self.base.driver.context.time.clock
    }

    /// Returns the deadline, or `None` if it never comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether the deadline has passed.
    pub fn is_elapsed(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= self.clock().now())
    }

    /// Moves the deadline, even if the old one has passed. Costs as much as
    /// [`Timeout::reschedule`].
    pub fn reset(&mut self, when: impl Into<When>) {
        self.deadline = self.clock().deadline_of(when.into());
        let when = When::at_or_never(self.deadline);
        let moved = self.armed.as_ref().is_some_and(|armed| armed.timeout.reschedule(when));
        if !moved {
            self.armed = None;
        }
    }

    /// Polls the future; `admit` admits its timeout to the timer.
    pub(crate) fn poll_by(
        &mut self,
        context: &Context<'_>,
        admit: impl FnOnce(&Body<Tasks<Task>>) -> Result<(), Refusal>,
    ) -> Poll<Result<(), SleepError>> {
        if self.is_elapsed() {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        let waker = context.waker();
        if self.armed.as_mut().is_some_and(|armed| armed.wakes(waker)) {
            return Poll::Pending;
        }
        let waker = waker.clone();
        let wakes = identity(&waker);
        let homes = &self.base.closures().beside.homes;
        let times = self.base.driver.context.resolve(When::at_or_never(self.deadline));
        match homes.add_task(Task::sleeper(waker), times, admit) {
            Ok(timeout) => {
                self.armed = Some(Armed { timeout, wakes });
                Poll::Pending
            }
            Err((refusal, refused)) => {
                refused.discard();
                Poll::Ready(Err(match refusal {
                    Refusal::Full => SleepError::Full,
                    Refusal::Closed => SleepError::Shutdown,
                }))
            }
        }
    }

    fn cancel(&mut self) {
        if let Some(armed) = self.armed.take() {
            armed.timeout.cancel().into_task().into_iter().for_each(Task::discard);
        }
    }
}

impl Armed {
    /// Returns whether the timeout is pending and wakes this waker, from now on if not before. So
    /// the timeout keeps its place, even in a full timer.
    fn wakes(&mut self, waker: &Waker) -> bool {
        if self.wakes == identity(waker) {
            return self.timeout.is_pending();
        }
        let waker = waker.clone();
        self.wakes = identity(&waker);
        let replaced = self.timeout.replace(Task::sleeper(waker));
        let is_pending = replaced.is_ok();
        // Nobody is woken by the waker that is not needed.
        let (Ok(unused) | Err(unused)) = replaced;
        unused.discard();
        is_pending
    }
}

/// Identifies a waker among those that exist at the same time, as [`Waker::will_wake`] does.
fn identity(waker: &Waker) -> (usize, usize) {
    (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_by(context, Body::admit)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
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
            timed.future.as_mut().as_pin_mut().map_or(Poll::Pending, |future| future.poll(context))
        };
        let mut polled = poll(context).map(Ok);
        if polled.is_pending() {
            let slept = ready!(Pin::new(&mut *timed.sleep).poll(context));
            let late = slept.map_or_else(TimedError::Sleep, |()| TimedError::Elapsed);
            // The future may have become ready since it was polled, and in time.
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
    /// Sets what happens to missed ticks. Default: they are [skipped](MissedTick::Skip). A tick
    /// begins when it is returned.
    #[must_use]
    pub fn missed_tick(mut self, missed_tick: MissedTick) -> Self {
        self.missed_tick = missed_tick;
        self
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
        let now = self.sleep.clock().now();
        let due = self.sleep.deadline.unwrap_or(now);
        let next = self.missed_tick.next(due, now, now, self.period);
        self.sleep.reset(When::at_or_never(next));
        Poll::Ready(Ok(due))
    }
}

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

impl fmt::Display for SleepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SleepError::Full => "the timer is full",
            SleepError::Shutdown => "the timer was shut down",
        })
    }
}

impl Error for SleepError {}

impl fmt::Display for TimedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimedError::Elapsed => f.write_str("the time was up"),
            TimedError::Sleep(error) => error.fmt(f),
        }
    }
}

impl Error for TimedError {}
