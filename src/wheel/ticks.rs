//! Ticks: how time is counted, and the only place that rounds.
//!
//! Internally, time is a `u64` of nanoseconds since the timer was built, and the number of ticks in
//! it. The present is rounded down to a tick and a deadline up, so nothing ever fires early. All
//! sums saturate: [`NEVER`] is the deadline of a timer so far away that it does not fire.

use std::num::NonZeroU64;
use std::time::Duration;

/// The deadline of a timer that never falls due: 584 years, which no clock reaches.
pub(crate) const NEVER: u64 = u64::MAX - 1;

/// A deadline, at most [`NEVER`], represented so that an option of it takes no more memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(NonZeroU64);

impl Deadline {
    #[inline]
    pub(crate) fn new(deadline: u64) -> Self {
        Deadline(NonZeroU64::MIN.saturating_add(deadline.min(NEVER)))
    }

    #[inline]
    pub(crate) fn get(self) -> u64 {
        self.0.get() - 1
    }
}

/// The length of a tick, and how time is rounded to ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks(u64);

impl Ticks {
    /// Creates ticks of `length` nanoseconds, which is not zero.
    pub(crate) fn new(length: u64) -> Self {
        debug_assert!(length > 0);
        Ticks(length)
    }

    /// Returns the tick of the present: rounded down.
    #[inline]
    pub(crate) fn floor(self, now: u64) -> u64 {
        now / self.0
    }

    /// Returns the tick of a deadline: rounded up.
    #[inline]
    pub(crate) fn ceil(self, deadline: u64) -> u64 {
        deadline.div_ceil(self.0)
    }

    /// Returns when `tick` begins.
    pub(crate) fn start_of(self, tick: u64) -> u64 {
        tick.saturating_mul(self.0)
    }
}

#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_in_a_tick_that_begins_before_it() {
        for length in [1, 2, 3, 1_000, 999_999, 1_000_000, 1 << 40] {
            let ticks = Ticks::new(length);
            for deadline in [0, 1, length - 1, length, length + 1, 7 * length + 1, NEVER - 1, NEVER]
            {
                let tick = ticks.ceil(deadline);
                assert!(ticks.start_of(tick) >= deadline);
                assert!(tick == 0 || ticks.start_of(tick - 1) < deadline);
                assert!(ticks.floor(deadline) <= tick);
            }
            assert!(ticks.floor(NEVER - 1) < ticks.ceil(NEVER), "never is after every present");
        }
    }
}
