//! The manual clock: time that stands still until it is told to move.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wheel::ticks::nanos;
use crate::work;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A clock that stands still until it is told to move: for tests and simulations.
///
/// With it no call of a timer waits for time to pass:
/// [`advance_clock`](crate::Timer::advance_clock) expires what is due and returns, and a reaper
/// wakes when the clock is moved. Clones share the time. It never moves backwards.
///
/// Deadlines are rounded up to a tick, as on any clock. What is due in the same tick expires in no
/// promised order, which may differ from run to run, as does the
/// [jitter](crate::periodic::Periodic::jitter) of a series.
///
/// [`advance`](Self::advance) moves the clock in a single leap and runs nothing: afterwards, a task
/// that adds itself again runs only once. [`step`](Self::step), [`run_for`](Self::run_for) and
/// [`run_until`](Self::run_until) stop at each deadline on the way and advance all timers on the
/// clock.
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
pub struct ManualClock {
    hands: Arc<Hands>,
    /// What the clock shows when nothing has elapsed.
    start: Instant,
}

struct Hands {
    /// Nanoseconds.
    elapsed: AtomicU64,
    /// In the order in which they were made.
    timers: Mutex<Vec<Weak<dyn OnClock>>>,
}

/// A timer on a manual clock, as the clock sees it.
pub(crate) trait OnClock: Send + Sync {
    /// Wakes the threads and listeners that wait, because the clock has moved.
    fn wake(&self);

    /// Returns how far the clock has to have moved for the next turn.
    fn next(&self) -> Option<u64>;

    /// Expires what is due. Returns how much that was.
    fn advance(&self) -> usize;
}

impl ManualClock {
    /// Creates a clock that shows the current time and stands still.
    #[must_use]
    pub fn new() -> Self {
        let hands = Hands { elapsed: AtomicU64::new(0), timers: Mutex::new(Vec::new()) };
        ManualClock { hands: Arc::new(hands), start: Instant::now() }
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        let elapsed = Duration::from_nanos(self.elapsed());
        // An instant holds more than 584 years on every platform that std supports.
        self.start.checked_add(elapsed).unwrap_or(self.start)
    }

    /// Moves the clock forward by `step` and wakes the reapers that sleep on it.
    ///
    /// This runs no task itself. The clock goes no further than 584 years after its creation.
    pub fn advance(&self, step: Duration) {
        let step = nanos(step);
        let moved = |elapsed: u64| Some(elapsed.saturating_add(step));
        // Release: a thread that sees the new time sees what was done before it was set.
        let _ = self.hands.elapsed.fetch_update(Ordering::Release, Ordering::Relaxed, moved);
        self.wake();
    }

    /// Moves the clock forward to `time`; does not move it if it is there already.
    pub fn advance_to(&self, time: Instant) {
        self.move_to(self.elapsed_at(time));
    }

    /// Moves the clock to the next deadline, and advances the timers on it. Returns the time then;
    /// `None` if nothing is pending that ever expires.
    ///
    /// Timers on the same clock are advanced in the order in which they were made. Their tasks run
    /// on this thread, except on a timer with a reaper of its own: that may be first.
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
        self.step_before(u64::MAX).then(|| self.now())
    }

    /// Lets `duration` pass: moves the clock from one deadline to the next, and advances the timers
    /// on it at each. So a task that adds itself again every five seconds runs 720 times in an
    /// hour.
    ///
    /// Does not return while a task adds itself again without a delay.
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
        self.run_to(self.elapsed().saturating_add(nanos(duration)));
    }

    /// Lets time pass until `time`, as [`run_for`](Self::run_for) does.
    pub fn run_until(&self, time: Instant) {
        self.run_to(self.elapsed_at(time));
    }

    fn run_to(&self, end: u64) {
        while self.step_before(end) {}
        self.move_to(end);
    }

    /// Moves the clock to the first deadline that is not after `end`, and advances the timers.
    /// Returns whether something has expired.
    fn step_before(&self, end: u64) -> bool {
        loop {
            let timers = self.timers();
            let next = timers.iter().filter_map(|timer| timer.next()).min();
            let Some(next) = next.filter(|next| *next <= end) else { return false };
            self.move_to(next);
            // Nothing expires where timers are only moved to a finer wheel.
            if timers.iter().map(|timer| timer.advance()).sum::<usize>() > 0 {
                return true;
            }
        }
    }

    /// Returns a clock that shows a later time than this one by always the same `offset`, and moves
    /// with it: the clock of another host, say.
    #[must_use]
    pub fn ahead(&self, offset: Duration) -> Self {
        let start = self.start.checked_add(offset).unwrap_or(self.start);
        ManualClock { hands: Arc::clone(&self.hands), start }
    }

    /// Returns a clock that shows an earlier time than this one by always the same `offset`, and
    /// moves with it.
    #[must_use]
    pub fn behind(&self, offset: Duration) -> Self {
        let start = self.start.checked_sub(offset).unwrap_or(self.start);
        ManualClock { hands: Arc::clone(&self.hands), start }
    }

    /// Moves the clock to this many nanoseconds; does not move it if it is there already.
    fn move_to(&self, elapsed: u64) {
        // Release: see `advance`.
        self.hands.elapsed.fetch_max(elapsed, Ordering::Release);
        self.wake();
    }

    /// Wakes who waits on the timers, because the clock has moved. They are looked up after that: a
    /// timer that is built meanwhile is woken, or reads the new time.
    fn wake(&self) {
        self.timers().iter().for_each(|timer| timer.wake());
    }

    /// Reads how far the clock was moved. Acquire: see [`advance`](Self::advance).
    #[inline]
    pub(crate) fn elapsed(&self) -> u64 {
        self.hands.elapsed.load(Ordering::Acquire)
    }

    /// Returns how far the clock has moved when it shows `time`.
    pub(crate) fn elapsed_at(&self, time: Instant) -> u64 {
        nanos(time.saturating_duration_since(self.start))
    }

    pub(crate) fn add(&self, timer: Weak<dyn OnClock>) {
        let mut timers = self.hands.timers.lock();
        work::count(timers.len());
        timers.retain(|timer| timer.strong_count() > 0);
        timers.push(timer);
    }

    /// Returns the timers on the clock: each takes locks of its own, and none is taken under this
    /// one.
    fn timers(&self) -> Vec<Arc<dyn OnClock>> {
        let timers = self.hands.timers.lock();
        work::count(timers.len());
        timers.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = Duration::from_nanos(self.hands.elapsed.load(Ordering::Relaxed));
        f.debug_struct("ManualClock").field("elapsed", &elapsed).finish()
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
