//! The boot clock: monotonic time that goes on while the machine is suspended.

use std::time::{Duration, Instant};

/// How long a thread waits on a boot clock before it looks again: nothing wakes it when the machine
/// resumes, and its wait does not count the time before.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// With the feature `boottime`: a clock that also counts the time in which the machine was
/// suspended. It is Linux's `CLOCK_BOOTTIME`, and elsewhere [`Instant::now`]. For deadlines that
/// others share, such as a lease in a store.
///
/// What fell due during a suspension expires at most a second after the machine has resumed, as
/// nothing tells a waiting thread that it has: while timers are pending, the reaper, a listener or
/// a future that drives the timer looks once a second. With no timer pending, nobody wakes.
///
/// The clock shows a time of its own, which is ahead of [`Instant::now`] by all suspensions since
/// it was created: use [`Timer::now`](crate::Timer::now) for a deadline. Reading it costs a call of
/// the system's clock. It does not count the time in which a virtual machine was paused, if its
/// host does not tell. A real suspension was never tried; a source of time that leaps was.
///
/// ```
/// use tickwheel::{BootClock, Timer};
///
/// let timer: Timer = Timer::builder().clock(BootClock::new()).start()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    read: fn() -> Duration,
    start: Instant,
    /// What was read at the start.
    from: Duration,
}

impl BootClock {
    /// Creates a clock that shows [`Instant::now`] now.
    #[must_use]
    pub fn new() -> Self {
        Self::reading(since_boot)
    }

    /// Creates a clock that reads another source of time, which must not go back: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn reading(read: fn() -> Duration) -> Self {
        BootClock { read, start: Instant::now(), from: read() }
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        let elapsed = (self.read)().saturating_sub(self.from);
        self.start.checked_add(elapsed).unwrap_or(self.start)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    // Of a clock that counts from zero.
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_boot() -> Duration {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed()
}

impl Default for BootClock {
    fn default() -> Self {
        Self::new()
    }
}
