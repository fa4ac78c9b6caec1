//! Moments of a store's clock.

use std::time::{Duration, SystemTime};

/// A moment of a store's clock, in microseconds since 1970.
///
/// The store's clock alone decides what is due, so nodes need not agree on the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

/// The last moment that counts, in the year 5138. Far from the ends of `i64`, so that whatever is
/// added to or subtracted from two moments has a name.
const LAST: i64 = 100_000_000_000_000_000;

impl StoreTime {
    /// The earliest moment, 1970.
    pub const MIN: StoreTime = StoreTime(0);
    /// The latest moment, in the year 5138. What is scheduled later is scheduled then.
    pub const MAX: StoreTime = StoreTime(LAST);

    /// Returns the moment that lies so many microseconds after 1970, clamped to `MIN` and `MAX`.
    pub fn from_micros(micros: i64) -> Self {
        StoreTime(micros.clamp(0, LAST))
    }

    /// Returns the microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the moment `delay` later, at most `MAX`.
    pub fn plus(self, delay: Duration) -> Self {
        let micros = i64::try_from(delay.as_micros()).unwrap_or(LAST);
        StoreTime::from_micros(self.0.saturating_add(micros))
    }

    /// Returns the moment `delay` earlier, at least `MIN`.
    pub fn minus(self, delay: Duration) -> Self {
        let micros = i64::try_from(delay.as_micros()).unwrap_or(LAST);
        StoreTime::from_micros(self.0.saturating_sub(micros))
    }

    /// Returns how long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl From<SystemTime> for StoreTime {
    /// Converts the time; one before 1970 becomes `MIN`. Rounds up, so a timer is never early by a
    /// fraction.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let micros = since.as_nanos().div_ceil(1_000);
        StoreTime::from_micros(i64::try_from(micros).unwrap_or(LAST))
    }
}

impl From<StoreTime> for SystemTime {
    fn from(time: StoreTime) -> Self {
        SystemTime::UNIX_EPOCH + time.since(StoreTime::MIN)
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
    }
}
