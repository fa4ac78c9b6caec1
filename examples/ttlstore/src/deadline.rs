//! When a key expires: a time of the wall clock for clients, an instant of the timer's for us.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment by both clocks: what converts times of clients' calendars into the timer's.
///
/// Taken at the moment of the command: a wall clock that is set later moves no deadline.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the timer's clock.
    pub instant: Instant,
    /// By the wall clock, since 1970.
    pub wall: Duration,
}

impl Now {
    /// Creates the present, which is at `instant`.
    pub fn at(instant: Instant) -> Self {
        Now { instant, wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    /// Returns the wall clock in milliseconds, as clients know it.
    pub fn wall_ms(&self) -> i64 {
        i64::try_from(self.wall.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns the deadline `ttl_ms` from now.
    pub fn after_ms(&self, ttl_ms: i64) -> Deadline {
        let ttl = Duration::from_millis(u64::try_from(ttl_ms).unwrap_or(0));
        Deadline { wall_ms: self.wall_ms().saturating_add(ttl_ms), instant: self.plus(ttl) }
    }

    /// Returns the deadline when the wall clock shows `wall_ms`; one that has passed is the
    /// present.
    pub fn until_ms(&self, wall_ms: i64) -> Deadline {
        let wall = Duration::from_millis(u64::try_from(wall_ms).unwrap_or(0));
        Deadline { wall_ms, instant: self.plus(wall.saturating_sub(self.wall)) }
    }

    /// Adds a time. A sum beyond the end of the clock is its end: some 30 years before that would
    /// matter.
    fn plus(&self, time: Duration) -> Instant {
        const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        self.instant.checked_add(time).unwrap_or_else(|| self.instant + FAR)
    }
}

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// By the wall clock, in milliseconds since 1970: what EXPIRETIME tells.
    pub wall_ms: i64,
    /// By the timer's clock: what counts.
    pub instant: Instant,
}

impl Deadline {
    /// Returns whether it has passed.
    pub fn is_due(&self, now: Instant) -> bool {
        self.instant <= now
    }

    /// Returns what is left of it, in milliseconds.
    pub fn ttl_ms(&self, now: Instant) -> i64 {
        let left = self.instant.saturating_duration_since(now);
        i64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_is_a_deadline() {
        let now = Now { instant: Instant::now(), wall: Duration::from_millis(1_000_000) };
        assert_eq!(now.after_ms(1500).instant, now.instant + Duration::from_millis(1500));
        assert_eq!(now.after_ms(1500).wall_ms, 1_001_500);
        assert_eq!(now.until_ms(1_000_001).instant, now.instant + Duration::from_millis(1));
        assert!(now.until_ms(999_999).is_due(now.instant));
        assert!(now.until_ms(-1).is_due(now.instant));
        for far in [now.after_ms(i64::MAX), now.until_ms(i64::MAX)] {
            assert!(far.ttl_ms(now.instant) > 1_000_000_000_000);
            assert_eq!(far.wall_ms, i64::MAX);
        }
    }

    #[test]
    fn a_deadline_within_the_millisecond_is_not_zero() {
        let now = Now::at(Instant::now());
        let deadline = now.after_ms(1);
        assert_eq!(deadline.ttl_ms(now.instant + Duration::from_micros(900)), 1);
        assert_eq!(deadline.ttl_ms(deadline.instant), 0);
    }
}
