//! The clock: the source of a timer's time.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wheel::ticks::{NEVER, Ticks, nanos};
use crate::work;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// When a timer expires. Methods that take `impl Into<When>` accept a [`Duration`] or an
/// [`Instant`] as it is.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry, When};
///
/// let timer: Timer<&str> = Timer::builder().executor(|_| ()).build()?;
/// let timeout = timer.add(TimerEntry::new(When::Never, "no answer"))?;
/// assert_eq!(timeout.deadline(), None);
/// timeout.reschedule(timer.now() + Duration::from_secs(30));
/// timeout.touch(Duration::from_secs(60));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long after the call that is given it. [`Duration::MAX`] is never.
    After(Duration),
    /// At this time of the timer's clock, or at once if that has passed. A time before the timer
    /// was built counts as the moment at which it was built. The clock need not be read.
    At(Instant),
    /// Not at all: it waits until it is cancelled or moved. So does what would expire more than
    /// 584 years after the timer was built.
    Never,
}

impl When {
    pub(crate) fn at_or_never(deadline: Option<Instant>) -> Self {
        deadline.map_or(When::Never, When::At)
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        When::After(delay)
    }
}

impl From<Instant> for When {
    fn from(deadline: Instant) -> Self {
        When::At(deadline)
    }
}

/// The source of a timer's time: a [`SystemClock`] or a [`ManualClock`].
///
/// ```
/// use tickwheel::{ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// # let _: tickwheel::Timer = timer;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

/// An enum and not a trait: the clock is read under locks, where no user code may run.
#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(ManualClock),
}

impl Clock {
    /// Returns the current time of the clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(clock) => clock.now(),
        }
    }

    /// Returns the manual clock, if it is one.
    pub(crate) fn as_manual(&self) -> Option<&ManualClock> {
        match &self.0 {
            Source::System => None,
            Source::Manual(clock) => Some(clock),
        }
    }
}

impl From<SystemClock> for Clock {
    fn from(_: SystemClock) -> Self {
        Clock(Source::System)
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Clock(Source::Manual(clock))
    }
}

/// The operating system's monotonic clock, [`Instant::now`]. The default.
///
/// Changes of the wall clock do not affect it. Whether it advances while the machine is suspended
/// depends on the operating system (on Linux it does not).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A clock that stands still until it is told to move: for tests and simulations.
///
/// With it no call of a timer waits for time to pass:
/// [`advance_clock`](crate::Timer::advance_clock) expires what is due and returns, and a reaper
/// wakes when the clock is moved. Clones share the time. It never moves backwards.
///
/// Deadlines are rounded up to a tick, as on any clock. What is due in the same tick expires in no
/// promised order, which may differ from run to run, as does the
/// [jitter](crate::periodic::Periodic::jitter) of a series. A single leap of the clock runs a task
/// that adds itself again only once: see the guide's section on [testing](crate::guide#testing).
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer, TimerEntry};
///
/// let clock = ManualClock::new();
/// let timer: Timer<&str> = Timer::builder()
///     .clock(clock.clone())
///     .executor(|task| println!("{task}"))
///     .build()?;
/// timer.add(TimerEntry::after(Duration::from_secs(3600), "an hour later"))?;
///
/// clock.advance(Duration::from_secs(3599));
/// assert_eq!(timer.advance_clock(Duration::ZERO), 0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(timer.advance_clock(Duration::ZERO), 1);
///
/// // Between two ticks of a millisecond: due at the second of them.
/// timer.add(TimerEntry::after(Duration::from_micros(2_500), "at the next tick"))?;
/// clock.advance(Duration::from_micros(2_500));
/// assert_eq!(timer.advance_clock(Duration::ZERO), 0);
/// clock.advance(Duration::from_micros(500));
/// assert_eq!(timer.advance_clock(Duration::ZERO), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Hands>);

struct Hands {
    start: Instant,
    /// Nanoseconds since `start`.
    elapsed: AtomicU64,
    sleepers: Mutex<Vec<Weak<dyn Wake>>>,
}

/// A sleeper that waits for a manual clock to move.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

impl ManualClock {
    /// Creates a clock that shows the current time and stands still.
    #[must_use]
    pub fn new() -> Self {
        ManualClock(Arc::new(Hands {
            start: Instant::now(),
            elapsed: AtomicU64::new(0),
            sleepers: Mutex::new(Vec::new()),
        }))
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        let elapsed = Duration::from_nanos(self.elapsed());
        // An instant holds more than 584 years on every platform that std supports.
        self.0.start.checked_add(elapsed).unwrap_or(self.0.start)
    }

    /// Moves the clock forward by `step` and wakes the reapers that sleep on it.
    ///
    /// This runs no task itself. The clock goes no further than 584 years after its creation.
    pub fn advance(&self, step: Duration) {
        let step = nanos(step);
        let moved = |elapsed: u64| Some(elapsed.saturating_add(step));
        // Release: a thread that sees the new time sees what was done before it was set.
        let _ = self.0.elapsed.fetch_update(Ordering::Release, Ordering::Relaxed, moved);
        self.wake_sleepers();
    }

    /// Moves the clock forward to `time`; does not move it if it is there already.
    pub fn advance_to(&self, time: Instant) {
        let elapsed = nanos(time.saturating_duration_since(self.0.start));
        self.0.elapsed.fetch_max(elapsed, Ordering::Release);
        self.wake_sleepers();
    }

    /// Reads how far the clock was moved. Acquire: see [`advance`](Self::advance).
    #[inline]
    fn elapsed(&self) -> u64 {
        self.0.elapsed.load(Ordering::Acquire)
    }

    pub(crate) fn add_sleeper(&self, sleeper: Weak<dyn Wake>) {
        let mut sleepers = self.0.sleepers.lock();
        work::count(sleepers.len());
        sleepers.retain(|sleeper| sleeper.strong_count() > 0);
        sleepers.push(sleeper);
    }

    fn wake_sleepers(&self) {
        // Collected first: a sleeper takes its own lock, and none is taken under ours.
        let sleepers = self.0.sleepers.lock();
        work::count(sleepers.len());
        let awake: Vec<_> = sleepers.iter().filter_map(Weak::upgrade).collect();
        drop(sleepers);
        awake.iter().for_each(|sleeper| sleeper.wake());
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = Duration::from_nanos(self.0.elapsed.load(Ordering::Relaxed));
        f.debug_struct("ManualClock").field("elapsed", &elapsed).finish()
    }
}

/// A timer's time: its clock, read in nanoseconds since the timer was built.
#[derive(Debug)]
pub(crate) struct Time {
    pub(crate) clock: Clock,
    origin: Instant,
    /// The manual clock's reading at the origin.
    origin_elapsed: u64,
    pub(crate) ticks: Ticks,
}

impl Time {
    pub(crate) fn new(clock: Clock, ticks: Ticks) -> Self {
        let origin = clock.now();
        let origin_elapsed = clock
            .as_manual()
            .map_or(0, |clock| nanos(origin.saturating_duration_since(clock.0.start)));
        Time { clock, origin, origin_elapsed, ticks }
    }

    /// Returns the present; always before [`NEVER`].
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        let now = match &self.clock.0 {
            Source::System => self.deadline_at(Instant::now()),
            Source::Manual(clock) => clock.elapsed().saturating_sub(self.origin_elapsed),
        };
        now.min(NEVER - 1)
    }

    /// Returns the present if it is cheap to read: reading the system's clock costs as much as the
    /// rest of an `add`.
    #[inline]
    pub(crate) fn cheap_now(&self) -> Option<u64> {
        self.clock.as_manual().map(|_| self.now())
    }

    #[inline]
    pub(crate) fn deadline_after(&self, now: u64, delay: Duration) -> u64 {
        now.saturating_add(nanos(delay)).min(NEVER)
    }

    #[inline]
    pub(crate) fn deadline_at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.origin)).min(NEVER)
    }

    pub(crate) fn instant_of(&self, deadline: u64) -> Instant {
        let start = self.origin;
        start.checked_add(Duration::from_nanos(deadline)).unwrap_or(start)
    }

    /// Returns the instant of a deadline, or `None` if that is [`NEVER`].
    pub(crate) fn instant_or_never(&self, deadline: u64) -> Option<Instant> {
        (deadline < NEVER).then(|| self.instant_of(deadline))
    }

    pub(crate) fn instant_of_tick(&self, tick: u64) -> Instant {
        self.instant_of(self.ticks.start_of(tick))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stops_at_its_end_and_never_goes_back() {
        let clock = ManualClock::new();
        let start = clock.now();
        clock.advance(Duration::from_secs(5));
        clock.advance_to(start);
        assert_eq!(clock.now() - start, Duration::from_secs(5));
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now() - start, Duration::from_nanos(u64::MAX));
    }
}
