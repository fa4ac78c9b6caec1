//! The tick: how time is counted and rounded.
//!
//! A timer's times are rounded here only: the present down to a tick, a deadline up to one. A keyed
//! queue also rounds its own. All sums saturate. The deadline [`Nanos::NEVER`] does not expire,
//! except in a [`LocalTimer`](crate::LocalTimer), whose time ends with it.

use core::num::NonZeroU64;
use core::time::Duration;

/// A time: nanoseconds since the timer was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    /// 584 years, which no clock reaches.
    pub(crate) const NEVER: Self = Nanos(u64::MAX - 1);

    #[inline]
    pub(crate) fn of(duration: Duration) -> Self {
        // A product of 64 bits is cheaper than one of 128.
        if duration.as_secs() < u64::MAX / 1_000_000_000 {
            let nanos = duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos());
            return Nanos(nanos);
        }
        u64::try_from(duration.as_nanos())
            .map_or(Nanos::NEVER, |nanos| Nanos(nanos).min(Nanos::NEVER))
    }

    /// Returns the time `delay` after this one, at most [`Nanos::NEVER`].
    #[inline]
    pub(crate) fn after(self, delay: Nanos) -> Self {
        Nanos(self.0.saturating_add(delay.0)).min(Nanos::NEVER)
    }

    pub(crate) fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A number of ticks since the timer was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) u64);

impl Tick {
    /// Beyond each tick of a deadline.
    pub(crate) const NEVER: Self = Tick(u64::MAX);

    pub(crate) fn next(self) -> Self {
        Tick(self.0.saturating_add(1))
    }

    /// Returns whether this tick ever comes, and not after `other`.
    #[inline]
    pub(crate) fn is_by(self, other: Tick) -> bool {
        self < Tick::NEVER && self <= other
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TickLength(NonZeroU64);

impl TickLength {
    pub(crate) fn new(nanos: u64) -> Self {
        TickLength(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0.get()
    }

    /// Rounded down, as the present is.
    #[inline]
    pub(crate) fn floor(self, now: Nanos) -> Tick {
        Tick(now.0 / self.0)
    }

    /// Rounded up, as deadlines are: the deadline has come by then.
    #[inline]
    pub(crate) fn ceil(self, deadline: Nanos) -> Tick {
        Tick(deadline.0 / self.0 + u64::from(deadline.0 % self.0 > 0))
    }

    #[inline]
    pub(crate) fn start_of(self, tick: Tick) -> Nanos {
        Nanos(tick.0.saturating_mul(self.0.get()))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) deadline: Nanos,
    /// The tick of the deadline, divided before a lock is taken.
    pub(crate) tick: Tick,
    /// The present, if known: reading the system's clock costs as much as the rest of an `add`.
    pub(crate) present: Option<Nanos>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_in_a_tick_that_begins_before_it() {
        let never = Nanos::NEVER.0;
        for nanos in [1, 2, 3, 1_000, 999_999, 1_000_000, 1 << 40] {
            let length = TickLength::new(nanos);
            for deadline in [
                0,
                1,
                nanos - 1,
                nanos,
                nanos + 1,
                7 * nanos + 1,
                never - 1,
                never,
            ] {
                let deadline = Nanos(deadline);
                let tick = length.ceil(deadline);
                assert!(length.start_of(tick) >= deadline);
                assert!(tick == Tick(0) || length.start_of(Tick(tick.0 - 1)) < deadline);
                assert!(length.floor(deadline) <= tick);
            }
        }
    }
}
