//! The clock: the source of a timer's time.

use crate::engine::manual_clock::ManualClock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// When a timer expires. Methods that take `impl Into<When>` accept a [`Duration`] or an
/// [`Instant`].
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
    /// This long after the call that takes it. [`Duration::MAX`] is never.
    After(Duration),
    /// At this time of the clock, or at once if that has passed. A time before the timer was built
    /// counts as the moment at which it was built. The clock need not be read.
    At(Instant),
    /// Not at all: the timer waits until it is cancelled or moved. A deadline more than 584 years
    /// after the timer was built counts as never.
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

/// The source of a timer's time: a [`SystemClock`], a [`ManualClock`], or a clock of your own, made
/// by [`reading`](Self::reading).
///
/// ```
/// use tickwheel::{ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// # let _: tickwheel::Timer = timer;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Clock(Kind);

// The crate sees nothing that a user's closure changes.
impl UnwindSafe for Clock {}
impl RefUnwindSafe for Clock {}

/// An enum and not a trait, because a call through a pointer would slow the usual clocks.
#[derive(Clone)]
enum Kind {
    System,
    Reading(Arc<UserClock>),
    Manual(ManualClock),
}

/// A user's clock, which never goes back, whatever `read` returns. A turn, a sleep and a queue keep
/// a time that has come, and take a deadline that lies before it for past.
struct UserClock<F: ?Sized = dyn Fn() -> Instant + Send + Sync> {
    /// What was read first. Not std's present, from which the user's clock may be far.
    origin: OnceLock<Instant>,
    /// The latest time that was read, in nanoseconds since the origin.
    latest_ns: AtomicU64,
    read: F,
}

impl UserClock {
    /// Not inlined, as [`Time::read`].
    #[cold]
    fn now(&self) -> Instant {
        let shown = (self.read)();
        let origin = *self.origin.get_or_init(|| shown);
        let shown_ns = Nanos::of(shown.saturating_duration_since(origin)).0;
        // Relaxed: no other memory depends on it. Of a single atomic, a thread never gets an
        // earlier value than it got before, or than a thread got that it has synchronized with.
        let latest_ns = self
            .latest_ns
            .fetch_max(shown_ns, Ordering::Relaxed)
            .max(shown_ns);
        // Does not overflow: this time was read, or is before one that was.
        origin + Duration::from_nanos(latest_ns)
    }
}

impl Clock {
    /// Returns a clock that shows what `read` returns, for example [one that counts suspended
    /// time](crate::guide::runtimes#deadlines-that-count-suspended-time).
    ///
    /// The clock may stand still and leap ahead. It may be far from [`Instant::now`]: calculate
    /// deadlines from [`Timer::now`](crate::Timer::now).
    ///
    /// The clock and its clones never go back. If `read` returns an earlier time than before, they
    /// stand still until `read` has caught up. Timers are never early by `Timer::now`, but they are
    /// late then: after a single time that is wrong and far ahead, until `read` gets there.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tickwheel::{Clock, Timer};
    ///
    /// // A clock that runs at half the speed.
    /// let start = Instant::now();
    /// let clock = Clock::reading(move || start + start.elapsed() / 2);
    /// let timer = Timer::builder().clock(clock).build()?;
    /// timer.after(Duration::from_millis(5), || println!("10 ms later"))?;
    /// assert_eq!(timer.advance_clock(Duration::from_secs(5)), 1);
    /// assert!(start.elapsed() >= Duration::from_millis(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # When a leap is noticed
    /// While timers are pending, the reaper and each thread in
    /// [`advance_clock`](crate::Timer::advance_clock) look at the clock once a second, so idle
    /// costs something. Timers that a leap makes due expire at most a second later. A clock that
    /// stands still shortly before a deadline is read very often. The `timeout` of `advance_clock`
    /// is time of the system's clock.
    ///
    /// A future that [drives](crate::Timer::drive) the timer asks once for a sleep until the next
    /// deadline by this clock, and a [`Listener`](crate::Listener) names that deadline. Neither
    /// notices a leap before that: the sleep has to follow the clock.
    ///
    /// # What `read` may do
    /// Every thread that uses the timer calls `read`, also under the timer's locks. For a keyed
    /// queue only its owner does. `read` must be quick, and must neither use the timer nor panic. A
    /// panic passes to the caller, whose operation may be lost or half done: what it adds may then
    /// count as pending, and never expire, until it is cancelled or the timer is shut down. The
    /// reaper counts and reports the panic, rests, and goes on.
    #[must_use]
    pub fn reading(read: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        let origin = OnceLock::new();
        let latest_ns = AtomicU64::new(0);
        Clock(Kind::Reading(Arc::new(UserClock {
            origin,
            latest_ns,
            read,
        })))
    }

    /// Returns the current time of the clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Kind::System => Instant::now(),
            Kind::Reading(clock) => clock.now(),
            Kind::Manual(clock) => clock.now(),
        }
    }

    /// Returns the system's time when this clock shows `time`, if both run alike. A user's clock
    /// may leap: then at most `at_most` from now.
    pub(crate) fn system_time_of(&self, time: Instant, at_most: Duration) -> Instant {
        let Kind::Reading(clock) = &self.0 else {
            return time;
        };
        // Not from the latest time: once `read` went back by an hour, a deadline 1 ms after that
        // time would be 1 ms away for an hour, and a waiting thread would look every millisecond.
        let shown = (clock.read)();
        let left = time.saturating_duration_since(shown);
        Instant::now()
            .checked_add(left.min(at_most))
            .unwrap_or(time)
    }

    /// Returns the time that is meant; `None` is never, or later than an [`Instant`] can be.
    pub(crate) fn deadline_of(&self, when: When) -> Option<Instant> {
        match when {
            When::After(delay) => self.now().checked_add(delay),
            When::At(deadline) => Some(deadline),
            When::Never => None,
        }
    }

    /// Returns a random number: on a manual clock from its seed.
    pub(crate) fn random(&self) -> u64 {
        match self.as_manual() {
            Some(clock) => clock.random(),
            None => RandomState::new().hash_one(()),
        }
    }

    #[inline]
    pub(crate) fn is_manual(&self) -> bool {
        self.as_manual().is_some()
    }

    #[inline]
    pub(crate) fn as_manual(&self) -> Option<&ManualClock> {
        let Kind::Manual(clock) = &self.0 else {
            return None;
        };
        Some(clock)
    }
}

/// Calls no code of the user's.
impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::System => f.write_str("SystemClock"),
            Kind::Reading(_) => f.write_str("Clock::reading"),
            Kind::Manual(clock) => clock.fmt(f),
        }
    }
}

impl From<SystemClock> for Clock {
    fn from(_: SystemClock) -> Self {
        Clock(Kind::System)
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Clock(Kind::Manual(clock))
    }
}

/// The operating system's monotonic clock, [`Instant::now`]. The default.
///
/// Changes of the wall clock do not affect it. Whether it advances while the machine is suspended
/// depends on the operating system. On Linux it does not: use [`Clock::reading`] there.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A timer's time: its clock, read in nanoseconds since the timer was built.
#[derive(Debug)]
pub(crate) struct Time {
    pub(crate) clock: Clock,
    origin: Instant,
    /// The manual clock's reading at the origin.
    origin_elapsed: Nanos,
    pub(crate) tick: TickLength,
}

impl Time {
    pub(crate) fn new(clock: Clock, tick: TickLength) -> Self {
        let origin = clock.now();
        let elapsed = clock.as_manual().map(|clock| clock.elapsed_at(origin));
        Time {
            clock,
            origin,
            origin_elapsed: elapsed.unwrap_or_default(),
            tick,
        }
    }

    /// Returns the present; always before [`Nanos::NEVER`].
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match &self.clock.0 {
            Kind::System => self.reached(Instant::now()),
            Kind::Reading(clock) => self.read(clock),
            Kind::Manual(clock) => self.manual_now(clock),
        }
    }

    #[inline]
    fn manual_now(&self, clock: &ManualClock) -> Nanos {
        Nanos(clock.elapsed().0 - self.origin_elapsed.0)
    }

    /// Reads a user's clock. Not inlined: that would cost each `add` on any clock, and so would the
    /// way from the `Arc` to the clock in it.
    #[cold]
    fn read(&self, clock: &Arc<UserClock>) -> Nanos {
        self.reached(clock.now())
    }

    #[inline]
    fn reached(&self, now: Instant) -> Nanos {
        self.deadline_at(now).min(Nanos(Nanos::NEVER.0 - 1))
    }

    pub(crate) fn present(&self) -> Tick {
        self.tick.floor(self.now())
    }

    /// Returns the last deadline that comes: a manual clock may have moved before, and has its own
    /// end.
    pub(crate) fn last(&self) -> Nanos {
        let end = Nanos(Nanos::NEVER.0 - 1).since(self.origin_elapsed);
        self.tick.start_of(self.tick.floor(end))
    }

    #[inline(always)]
    pub(crate) fn due(&self, when: When) -> Due {
        let (deadline, present) = match when {
            When::After(delay) => {
                let now = self.now();
                (now.after(Nanos::of(delay)), Some(now))
            }
            // Reading the system's clock would cost as much as the rest of an `add`.
            When::At(instant) => {
                let manual = self.clock.as_manual();
                (
                    self.deadline_at(instant),
                    manual.map(|clock| self.manual_now(clock)),
                )
            }
            When::Never => (Nanos::NEVER, None),
        };
        Due {
            deadline,
            tick: self.tick.ceil(deadline),
            present,
        }
    }

    #[inline]
    pub(crate) fn deadline_at(&self, instant: Instant) -> Nanos {
        Nanos::of(instant.saturating_duration_since(self.origin))
    }

    pub(crate) fn instant_of(&self, time: Nanos) -> Instant {
        let start = self.origin;
        start
            .checked_add(Duration::from_nanos(time.0))
            .unwrap_or(start)
    }

    pub(crate) fn instant_or_never(&self, deadline: Nanos) -> Option<Instant> {
        (deadline < Nanos::NEVER).then(|| self.instant_of(deadline))
    }

    pub(crate) fn instant_of_tick(&self, tick: Tick) -> Instant {
        self.instant_of(self.tick.start_of(tick))
    }

    pub(crate) fn elapsed_at(&self, tick: Tick) -> Nanos {
        Nanos(
            self.origin_elapsed
                .0
                .saturating_add(self.tick.start_of(tick).0),
        )
    }
}
