//! The manual clock: time that stands still until it is told to move.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::wheel::tick::Nanos;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A clock that stands still until it is told to move: for tests and simulations.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// timer.after(Duration::from_secs(3600), || println!("an hour later"))?;
/// clock.run_for(Duration::from_secs(3599));
/// assert_eq!(timer.stats().expired, 0);
/// clock.run_for(Duration::from_secs(1)); // Prints.
/// # assert_eq!(timer.stats().expired, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With a manual clock no call of a timer waits for time to pass:
/// [`advance_clock`](crate::Timer::advance_clock) expires what is due and returns, and a reaper
/// wakes when the clock is moved. Clones share the time, which never moves backwards.
///
/// [`step`](Self::step), [`run_for`](Self::run_for), [`run_until`](Self::run_until) and
/// [`block_on`](Self::block_on) stop at each deadline on the way and advance all timers on the
/// clock. [`advance`](Self::advance) moves the clock in a single leap and runs nothing: a task that
/// adds itself again then runs only once.
///
/// # The same run each time
/// What one thread does with timers on a manual clock happens at the same times and in the same
/// order in each run. This holds for everything built on the timers too. Within a tick the order is
/// fixed but not promised: mostly the order of adding, with those of each keyed timer and purgatory
/// together. A [seed](Self::seeded) finds tests that rely on this order.
///
/// This needs a single shard, the default on a manual clock, and no other threads: no reaper (use
/// [`build`](crate::TimerBuilder::build), not `start`), no [`Worker`](crate::Worker) and no
/// runtime. With a reaper, [`step`](Self::step) and [`run_for`](Self::run_for) may pass over a
/// deadline.
#[derive(Clone)]
pub struct ManualClock {
    hands: Arc<Hands>,
    start: Instant,
}

/// The clock's last time.
const END: Nanos = Nanos(Nanos::NEVER.0 - 1);

struct Hands {
    /// Nanoseconds.
    elapsed: AtomicU64,
    is_seeded: bool,
    /// The state of the random numbers.
    random: AtomicU64,
    timers: Mutex<Vec<Weak<dyn OnClock>>>,
}

/// A timer on a manual clock, as the clock sees it.
pub(crate) trait OnClock: Send + Sync {
    fn wake(&self);

    /// Returns the time of the next turn.
    fn next(&self) -> Option<Nanos>;

    fn advance(&self);

    /// Returns how much has expired so far, on any thread.
    fn expired(&self) -> u64;
}

impl ManualClock {
    /// Creates a clock that shows the current time.
    #[must_use]
    pub fn new() -> Self {
        Self::seeded(0)
    }

    /// Creates a clock on which `seed` decides the order of tasks within a tick. With the seed 0
    /// the order is that of [`new`](Self::new). A test that passes with many seeds relies on no
    /// unpromised order.
    ///
    /// The seed also decides the [jitter](crate::periodic::Periodic::jitter) and the [random
    /// phase](crate::periodic::Periodic::random_phase) of series, and [`random`](Self::random). The
    /// same seed gives the same run, also in another process.
    ///
    /// Costs an allocation for each timer that expires. All tasks of a tick are taken out before
    /// the first is handed over: none can cancel another one or stop it by a shutdown. Operations
    /// can still be cancelled.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    /// use tickwheel::{ManualClock, Timer};
    ///
    /// let run = |seed| {
    ///     let clock = ManualClock::seeded(seed);
    ///     let log = Arc::new(Mutex::new(String::new()));
    ///     let timer = Timer::builder().clock(clock.clone()).build()?;
    ///     for name in ['a', 'b', 'c'] {
    ///         let log = Arc::clone(&log);
    ///         timer.after(Duration::from_secs(1), move || log.lock().unwrap().push(name))?;
    ///     }
    ///     clock.run_for(Duration::from_secs(1));
    ///     let log = log.lock().unwrap().clone();
    ///     Ok::<_, Box<dyn std::error::Error>>(log)
    /// };
    /// assert_eq!(run(0)?, "abc");
    /// assert_eq!(run(7)?, run(7)?);
    /// let orders: BTreeSet<String> = (1..100).map(run).collect::<Result<_, _>>()?;
    /// assert_eq!(orders.len(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let hands = Hands {
            elapsed: AtomicU64::new(0),
            is_seeded: seed != 0,
            random: AtomicU64::new(seed),
            timers: Mutex::new(Vec::new()),
        };
        ManualClock {
            hands: Arc::new(hands),
            start: Instant::now(),
        }
    }

    /// Returns the next random number of the clock's seed: for failures and delays in a simulation.
    /// Not for secrets. Algorithm: Steele, Lea and Flood's SplitMix64 (2014).
    #[must_use]
    pub fn random(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        // Relaxed: the numbers order nothing.
        let state = self
            .hands
            .random
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&self, len: usize) -> usize {
        ((u128::from(self.random()) * len as u128) >> 64) as usize
    }

    pub(crate) fn is_seeded(&self) -> bool {
        self.hands.is_seeded
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        let elapsed = Duration::from_nanos(self.elapsed().0);
        // An instant holds more than 584 years on every platform that std supports.
        self.start.checked_add(elapsed).unwrap_or(self.start)
    }

    /// Moves the clock forward by `step`. Wakes the reapers that sleep on the clock, and the
    /// futures and loops that drive a timer on it, whose wakers run on this thread. Runs no task
    /// itself. Stops 584 years after the clock's creation.
    pub fn advance(&self, step: Duration) {
        let step = Nanos::of(step);
        let moved = |elapsed| Some(Nanos(elapsed).after(step).min(END).0);
        // Release: a thread that sees the new time sees what was done before.
        let _ = self
            .hands
            .elapsed
            .fetch_update(Ordering::Release, Ordering::Relaxed, moved);
        self.wake();
    }

    /// Moves the clock forward to `time`; never backwards.
    pub fn advance_to(&self, time: Instant) {
        self.move_to(self.elapsed_at(time));
    }

    /// Moves the clock to the next deadline, rounded up to a tick of its timer, and advances the
    /// timers on the clock. Returns the time then; `None` if no pending timer ever expires.
    ///
    /// Timers on the same clock are advanced one after the other, in the order of their creation,
    /// or with a [seed](Self::seeded) in a random order. Their tasks run on this thread, unless a
    /// timer's reaper is first.
    ///
    /// A task may call this, and [`run_for`](Self::run_for). Where a nested
    /// [`advance_clock`](crate::Timer::advance_clock) would be too deep, nothing expires: this
    /// returns `None`, and `run_for` only moves the clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let start = clock.now();
    /// timer.after(Duration::from_secs(3600), || println!("an hour later"))?;
    /// assert_eq!(clock.step(), Some(start + Duration::from_secs(3600)));
    /// assert_eq!(clock.step(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step(&self) -> Option<Instant> {
        self.step_before(Nanos::NEVER).then(|| self.now())
    }

    /// Moves the clock by `duration`, from one deadline to the next, and advances the timers on it
    /// at each. Does not return while a task adds itself again without a delay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::periodic::Periodic;
    /// use tickwheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let beats = Periodic::every(Duration::from_secs(5)).start(&timer, |_| ())?;
    /// clock.run_for(Duration::from_secs(3600));
    /// assert_eq!(beats.runs(), 720);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_for(&self, duration: Duration) {
        self.run_to(self.elapsed().after(Nanos::of(duration)));
    }

    /// Moves the clock to `time`, as [`run_for`](Self::run_for) does.
    pub fn run_until(&self, time: Instant) {
        self.run_to(self.elapsed_at(time));
    }

    /// Polls a future on this thread, and moves the clock from one deadline to the next while it
    /// waits. Returns the output; `None` if the future waits and no timer on the clock ever
    /// expires.
    ///
    /// Other timers on the clock expire meanwhile. Does not wait for other threads, and needs no
    /// runtime. For several futures at once use `join!` of the crate `futures`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let answer = timer.timeout(Duration::from_secs(30), std::future::pending::<()>());
    /// assert!(clock.block_on(answer).is_some_and(|answer| answer.is_err()));
    /// assert_eq!(clock.block_on(std::future::pending::<()>()), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut future = pin!(future);
        loop {
            // Acquire: the future sees what was done before the wake-up.
            while woken.0.swap(false, Ordering::Acquire) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(output) = polled {
                    return Some(output);
                }
            }
            self.step()?;
        }
    }

    fn run_to(&self, end: Nanos) {
        while self.step_before(end) {}
        self.move_to(end);
    }

    /// Moves the clock to the first deadline up to `end`, and advances the timers. Returns whether
    /// something has expired.
    fn step_before(&self, end: Nanos) -> bool {
        loop {
            let mut timers = self.timers();
            if self.is_seeded() {
                (1..timers.len()).for_each(|last| timers.swap(last, self.below(last + 1)));
            }
            let expired = || timers.iter().map(|timer| timer.expired()).sum::<u64>();
            let before = expired();
            let next = timers.iter().filter_map(|timer| timer.next()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                return false;
            };
            self.move_to(next);
            timers.iter().for_each(|timer| timer.advance());
            // Nothing expires where timers only move to a finer wheel. A reaper may be first.
            if expired() != before {
                return true;
            }
        }
    }

    /// Returns a clock that is always ahead of this one by `offset`, at most 584 years: the clock
    /// of another host, say. Both share timers and random numbers: [`step`](Self::step) on one
    /// advances all.
    #[must_use]
    pub fn ahead(&self, offset: Duration) -> Self {
        self.starting(
            self.start
                .checked_add(Duration::from_nanos(Nanos::of(offset).0)),
        )
    }

    /// Returns a clock that is always behind this one by `offset`, at most 584 years; see
    /// [`ahead`](Self::ahead). If the platform's [`Instant`] cannot be that early, the clock shows
    /// the same time as this one.
    #[must_use]
    pub fn behind(&self, offset: Duration) -> Self {
        self.starting(
            self.start
                .checked_sub(Duration::from_nanos(Nanos::of(offset).0)),
        )
    }

    fn starting(&self, start: Option<Instant>) -> Self {
        ManualClock {
            hands: Arc::clone(&self.hands),
            start: start.unwrap_or(self.start),
        }
    }

    /// Moves the clock to this many nanoseconds; never backwards.
    fn move_to(&self, elapsed: Nanos) {
        // Release: see `advance`.
        self.hands
            .elapsed
            .fetch_max(elapsed.min(END).0, Ordering::Release);
        self.wake();
    }

    /// Wakes all that wait on the timers. These are looked up after the move: a timer that is built
    /// meanwhile is woken, or reads the new time.
    fn wake(&self) {
        self.timers().iter().for_each(|timer| timer.wake());
    }

    /// Reads how far the clock was moved, at most to [`END`]. Acquire: see
    /// [`advance`](Self::advance).
    #[inline]
    pub(crate) fn elapsed(&self) -> Nanos {
        Nanos(self.hands.elapsed.load(Ordering::Acquire))
    }

    pub(crate) fn elapsed_at(&self, time: Instant) -> Nanos {
        Nanos::of(time.saturating_duration_since(self.start))
    }

    pub(crate) fn add(&self, timer: Weak<dyn OnClock>) {
        let mut timers = self.hands.timers.lock();
        timers.retain(|timer| timer.strong_count() > 0);
        timers.push(timer);
    }

    /// Returns the timers on the clock. They take locks of their own, none under this one.
    fn timers(&self) -> Vec<Arc<dyn OnClock>> {
        let timers = self.hands.timers.lock();
        timers.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Whether a future must be polled.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = Duration::from_nanos(self.elapsed().0);
        f.debug_struct("ManualClock")
            .field("elapsed", &elapsed)
            .finish()
    }
}
