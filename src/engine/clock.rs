//! The clock: the source of a timer's time.

#[cfg(feature = "boottime")]
use crate::engine::boot_clock::{BootClock, LOOK};
use crate::engine::manual_clock::ManualClock;
use crate::wheel::ticks::{NEVER, Ticks, nanos};
use std::hash::{BuildHasher, RandomState};
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

/// The source of a timer's time: a [`SystemClock`], a [`ManualClock`], or a `BootClock`.
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
    #[cfg(feature = "boottime")]
    Boot(BootClock),
    Manual(ManualClock),
}

impl Clock {
    /// Returns the current time of the clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            #[cfg(feature = "boottime")]
            Source::Boot(clock) => clock.now(),
            Source::Manual(clock) => clock.now(),
        }
    }

    /// Returns what the system's clock shows when this one shows `time`, if it runs.
    pub(crate) fn system_time_of(&self, time: Instant) -> Instant {
        match &self.0 {
            #[cfg(feature = "boottime")]
            Source::Boot(clock) => Instant::now()
                .checked_add(time.saturating_duration_since(clock.now()))
                .unwrap_or(time),
            _ => time,
        }
    }

    /// Returns the time that is meant; `None` is never, or later than there is a name for.
    pub(crate) fn deadline_of(&self, when: When) -> Option<Instant> {
        match when {
            When::After(delay) => self.now().checked_add(delay),
            When::At(deadline) => Some(deadline),
            When::Never => None,
        }
    }

    /// Returns a random number: on a manual clock the next one of its seed.
    pub(crate) fn random(&self) -> u64 {
        self.as_manual().map_or_else(|| RandomState::new().hash_one(()), ManualClock::random)
    }

    /// Returns the manual clock, if it is one.
    pub(crate) fn as_manual(&self) -> Option<&ManualClock> {
        match &self.0 {
            Source::Manual(clock) => Some(clock),
            _ => None,
        }
    }
}

impl From<SystemClock> for Clock {
    fn from(_: SystemClock) -> Self {
        Clock(Source::System)
    }
}

#[cfg(feature = "boottime")]
impl From<BootClock> for Clock {
    fn from(clock: BootClock) -> Self {
        Clock(Source::Boot(clock))
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
/// depends on the operating system (on Linux it does not; the feature `boottime` has a clock that
/// does).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

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
        let origin_elapsed = clock.as_manual().map_or(0, |clock| clock.elapsed_at(origin));
        Time { clock, origin, origin_elapsed, ticks }
    }

    /// Returns the present; always before [`NEVER`].
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match &self.clock.0 {
            Source::System => self.deadline_at(Instant::now()).min(NEVER - 1),
            #[cfg(feature = "boottime")]
            Source::Boot(clock) => self.deadline_at(clock.now()).min(NEVER - 1),
            Source::Manual(clock) => clock.elapsed() - self.origin_elapsed,
        }
    }

    /// Returns the first tick that never comes: a manual clock may have moved when the timer was
    /// built, and has an end of its own.
    pub(crate) fn end(&self) -> u64 {
        self.ticks.floor(NEVER - 1 - self.origin_elapsed) + 1
    }

    /// Returns the present if it is cheap to read, or else zero: to read the system's clock costs
    /// as much as the rest of an `add`.
    #[inline]
    pub(crate) fn cheap_now(&self) -> u64 {
        if self.clock.as_manual().is_some() { self.now() } else { 0 }
    }

    /// Returns `now`, or the present if that is zero: it was not read.
    #[inline]
    pub(crate) fn or_now(&self, now: u64) -> u64 {
        if now == 0 { self.now() } else { now }
    }

    #[inline]
    pub(crate) fn deadline_after(&self, now: u64, delay: Duration) -> u64 {
        now.saturating_add(nanos(delay)).min(NEVER)
    }

    #[inline]
    pub(crate) fn deadline_at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.origin))
    }

    pub(crate) fn instant_of(&self, deadline: u64) -> Instant {
        let start = self.origin;
        start.checked_add(Duration::from_nanos(deadline)).unwrap_or(start)
    }

    /// Returns the instant of a deadline, or `None` if that is [`NEVER`].
    pub(crate) fn instant_or_never(&self, deadline: u64) -> Option<Instant> {
        (deadline < NEVER).then(|| self.instant_of(deadline))
    }

    /// Returns when to look at a tick: when it begins, or sooner if the clock may leap there.
    pub(crate) fn instant_of_tick(&self, tick: u64) -> Instant {
        let start = self.instant_of(self.ticks.start_of(tick));
        match &self.clock.0 {
            #[cfg(feature = "boottime")]
            Source::Boot(clock) => start.min(clock.now() + LOOK),
            _ => start,
        }
    }

    /// Returns how far the manual clock has to be moved for a tick.
    pub(crate) fn elapsed_at(&self, tick: u64) -> u64 {
        self.origin_elapsed.saturating_add(self.ticks.start_of(tick))
    }
}
