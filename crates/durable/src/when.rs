//! When timers are due: moments of the store's clock.

use crate::sync::random;
use std::time::{Duration, SystemTime};

/// A moment of a store's clock, in microseconds since 1970.
///
/// Only the store's clock decides what is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

/// The last moment, in the year 5138. Sums and differences of moments fit `i64`.
const LAST: i64 = 100_000_000_000_000_000;

impl StoreTime {
    /// The earliest moment, 1970.
    pub const MIN: StoreTime = StoreTime(0);
    /// The latest moment, in the year 5138. Later schedules are due then.
    pub const MAX: StoreTime = StoreTime(LAST);

    /// Returns the moment this many microseconds after 1970, clamped to `MIN` and `MAX`.
    pub fn from_micros(micros: i64) -> Self {
        StoreTime(micros.clamp(0, LAST))
    }

    /// Returns the microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the moment `delay` later, at most `MAX`.
    pub fn plus(self, delay: Duration) -> Self {
        StoreTime::from_micros(self.0.saturating_add(micros(delay)))
    }

    /// Returns the moment `delay` earlier, at least `MIN`.
    pub fn minus(self, delay: Duration) -> Self {
        StoreTime::from_micros(self.0.saturating_sub(micros(delay)))
    }

    /// Returns the time since `earlier`, or zero.
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

/// Returns the microseconds of a duration, rounded up, as no timer is early; at most [`LAST`], so
/// that the sum with a moment fits `i64`.
pub(crate) fn micros(time: Duration) -> i64 {
    let micros = time.as_nanos().div_ceil(1_000);
    i64::try_from(micros).unwrap_or(LAST).min(LAST)
}

impl From<SystemTime> for StoreTime {
    /// Converts the time, rounded up to microseconds; a time before 1970 becomes `MIN`.
    fn from(time: SystemTime) -> Self {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        StoreTime(micros(since))
    }
}

impl From<StoreTime> for SystemTime {
    fn from(time: StoreTime) -> Self {
        SystemTime::UNIX_EPOCH + time.since(StoreTime::MIN)
    }
}

/// When a timer is due, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this moment. A moment in the past is due now.
    At(SystemTime),
    /// This long after the call, at most until the year 5138.
    After(Duration),
    /// At a random time between this moment and so much later, which spreads timers that are due
    /// together. [`Due::planned`](crate::Due::planned) is the moment itself.
    Spread(SystemTime, Duration),
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> Self {
        When::At(time)
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        When::After(delay)
    }
}

/// A due time for a statement: the statement itself reads the store's clock, of which no node keeps
/// a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The timer is due at this moment, unless `after` is later.
    pub(crate) at: StoreTime,
    /// The timer is due no earlier than so long after the statement.
    pub(crate) after: Duration,
    /// The moment that the caller meant. `None`: the moment at which the timer is due.
    pub(crate) planned: Option<StoreTime>,
}

impl Moment {
    /// Returns when the timer is due, given the store's clock: never in the past, so that a claim
    /// which has looked up to the present finds it.
    pub(crate) fn due(&self, now: StoreTime) -> StoreTime {
        self.at.max(now.plus(self.after))
    }
}

impl From<When> for Moment {
    fn from(when: When) -> Self {
        match when {
            When::At(time) => Moment {
                at: time.into(),
                planned: Some(time.into()),
                ..Moment::default()
            },
            When::After(after) => Moment {
                after,
                ..Moment::default()
            },
            When::Spread(time, by) => {
                let later = random() % (micros(by).unsigned_abs() + 1);
                Moment {
                    at: StoreTime::from(time).plus(Duration::from_micros(later)),
                    planned: Some(time.into()),
                    ..Moment::default()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_in_range_and_fractions_are_rounded_up() {
        assert_eq!(StoreTime::MAX.plus(Duration::MAX), StoreTime::MAX);
        assert_eq!(StoreTime::MIN.minus(Duration::MAX), StoreTime::MIN);
        assert_eq!(StoreTime::MIN.since(StoreTime::MAX), Duration::ZERO);
        let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(StoreTime::from(early), StoreTime::MIN);
        let fraction = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_001);
        assert_eq!(StoreTime::from(fraction), StoreTime::from_micros(2));
        let after = StoreTime::MIN.plus(Duration::from_nanos(1_001));
        assert_eq!(after, StoreTime::from_micros(2));
    }

    #[test]
    fn a_moment_in_the_past_is_due_now_and_keeps_what_was_meant() {
        let now = StoreTime::from_micros(1_000_000);
        let past = SystemTime::from(StoreTime::from_micros(10));
        let moment = Moment::from(When::At(past));
        assert_eq!(moment.due(now), now);
        assert_eq!(moment.planned, Some(StoreTime::from_micros(10)));
        let endless = Moment::from(When::Spread(past, Duration::MAX));
        assert!(endless.due(now) <= StoreTime::MAX);
    }
}
