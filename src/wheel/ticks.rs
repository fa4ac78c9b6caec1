//! Ticks: how time is counted, and which slots of which levels it falls into.
//!
//! Internally, time is a `u64` of nanoseconds since the timer was built, and the number of ticks in
//! it. Only here is time rounded: the present down to a tick and a deadline up, so nothing ever
//! fires early. All sums saturate: [`NEVER`] is the deadline of a timer so far away that it does
//! not fire.
//!
//! # Levels
//! Each level of the hierarchy is a timing wheel: an array of buckets addressed by the tick. Level
//! 0 has a slot per tick. A slot of each further level, an overflow wheel, spans half the slots of
//! the level below. An entry belongs in the lowest level whose slots reach it:
//!
//! ```text
//! wheel_size 8, current tick 0
//! level 0   slots of  1 tick    [1 2 3 4 5 6 7]                        ticks  1 ..   7
//! level 1   slots of  4 ticks   [8-11][12-15] .. [28-31]               ticks  8 ..  31
//! level 2   slots of 16 ticks   [32-47][48-63] .. [112-127]            ticks 32 .. 127
//! ```
//!
//! The window rolls: with the current tick at 5, level 0 reaches up to 12. Nothing is stored in a
//! slot that the window has passed, because its bucket was flushed before.
//!
//! **When a bucket expires.** A bucket of level 0 expires at its tick, and what is in it is due. A
//! bucket of an overflow wheel cascades: its entries are filed again, further down. It expires
//! *before* its first tick, by one of its own slots less one slot of the level below. Because the
//! level below spans two of its slots, all its entries already fit there. So a bucket of a million
//! entries can be moved in slices, with due buckets flushed in between, and none of its own is late
//! (Erlang's timer wheels drain early for the same reason).
//!
//! Sources: Varghese & Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7; Kafka's
//! `TimingWheel`, for the lazily created overflow wheels and the delay queue of buckets.

use core::num::NonZeroU64;
use core::time::Duration;

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
pub(crate) struct Ticks(NonZeroU64);

impl Ticks {
    /// Creates ticks of `length` nanoseconds; zero counts as one.
    pub(crate) fn new(length: u64) -> Self {
        Ticks(NonZeroU64::new(length).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the tick of the present: rounded down.
    #[inline]
    pub(crate) fn floor(self, now: u64) -> u64 {
        now / self.0
    }

    /// Returns the tick of a deadline: rounded up.
    #[inline]
    pub(crate) fn ceil(self, deadline: u64) -> u64 {
        deadline / self.0 + u64::from(deadline % self.0 > 0)
    }

    /// Returns when `tick` begins.
    pub(crate) fn start_of(self, tick: u64) -> u64 {
        tick.saturating_mul(self.0.get())
    }
}

/// Returns a duration in nanoseconds, at most [`NEVER`].
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    // Most durations: a product of 64 bits that cannot overflow is cheaper than one of 128 bits.
    if duration.as_secs() < u64::MAX / 1_000_000_000 {
        return duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos());
    }
    u64::try_from(duration.as_nanos()).map_or(NEVER, |nanos| nanos.min(NEVER))
}

/// The most slots that a wheel can have.
pub(crate) const MAX_SIZE: usize = 1 << 20;

/// Rounds up to a size that a wheel can have: a power of two from 4 to [`MAX_SIZE`].
pub(crate) fn round_size(wheel_size: usize) -> usize {
    wheel_size.clamp(4, MAX_SIZE).next_power_of_two()
}

/// How many ticks a slot of one level spans: a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    shift: u32,
    /// By how many bits the span of a slot grows from level to level.
    step: u32,
    /// What divides a number of bits by that, in [`PARTS`]: a product is faster than a division.
    inverse: u32,
}

/// Enough that what is rounded in a quotient of 64 bits does not show.
const PARTS: u32 = 1 << 12;

impl Span {
    /// Returns the span of level 0, if each level has `size` slots: a power of two, at least 4.
    pub(crate) fn of(size: usize) -> Self {
        let step = size.trailing_zeros() - 1;
        Span { shift: 0, step, inverse: PARTS.div_ceil(step) }
    }

    /// Returns that of another level.
    #[inline]
    pub(crate) fn at(self, level: usize) -> Self {
        Span { shift: self.step * level as u32, ..self }
    }

    /// Returns the lowest level with `size` slots that reaches `tick`, which lies after `current`,
    /// and its span. This is that of any level.
    ///
    /// Never returns a level whose shift is beyond 63: the one before reaches all ticks.
    #[inline]
    pub(crate) fn reaching(self, tick: u64, current: u64, size: usize) -> (usize, Self) {
        let reaches = |shift| (tick >> shift) - (current >> shift) < size as u64;
        // Branches for the levels of most ticks: a processor need not wait for their outcome.
        let level = if reaches(0) {
            0
        } else if reaches(self.step) {
            1
        } else {
            // No lower level reaches as far as the highest bit of the difference; this one does,
            // unless a slot more has begun.
            let level = (((tick - current) | 2).ilog2() - 1) * self.inverse / PARTS;
            level + u32::from(!reaches(level * self.step))
        };
        (level as usize, self.at(level as usize))
    }

    /// Returns the slot that `tick` falls into, in a wheel of `size` slots.
    #[inline]
    pub(crate) fn slot_of(self, tick: u64, size: usize) -> usize {
        (tick >> self.shift) as usize & (size - 1)
    }

    /// Returns the first tick of the slot that `tick` falls into.
    #[inline]
    pub(crate) fn start_of(self, tick: u64) -> u64 {
        tick >> self.shift << self.shift
    }

    /// Returns when the bucket that starts at `start` has to be flushed.
    pub(crate) fn expiration_of(self, start: u64) -> u64 {
        let by = if self.shift == 0 { 0 } else { self.ticks() - (1 << (self.shift - self.step)) };
        start.saturating_sub(by)
    }

    pub(crate) fn ticks(self) -> u64 {
        1 << self.shift
    }
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

    #[test]
    fn the_level_of_a_tick_is_the_lowest_that_reaches_it() {
        for size in (2..=20).map(|bits| 1_usize << bits) {
            for current in [0, 1, 5, (1 << 42) - 1, u64::MAX / 3, u64::MAX / 2] {
                for edge in (0..63).flat_map(|bit| [(1_u64 << bit), (1 << bit) + 1, (2 << bit) - 1])
                {
                    let tick = current + edge.min(u64::MAX - current);
                    let reaches = |level: &usize| {
                        let shift = Span::of(size).at(*level).shift;
                        (tick >> shift) - (current >> shift) < size as u64
                    };
                    let (level, span) = Span::of(size).reaching(tick, current, size);
                    assert_eq!((0..).find(reaches), Some(level), "{current} {tick} {size}");
                    assert_eq!(span.shift, Span::of(size).at(level).shift);
                }
            }
        }
    }

    /// Checks the module's promises at every edge of every level.
    #[test]
    fn a_bucket_expires_after_now_and_fits_into_the_level_below() {
        for size in [4_usize, 8, 64, 512, 4096] {
            let levels = 64 / Span::of(size).step as usize;
            for (level, span) in (1..levels).map(|level| (level, Span::of(size).at(level))) {
                for current in [0, 1, 2, 3, 5, (1 << 42) - 1, 1 << 42, u64::MAX / 2, u64::MAX - 9] {
                    for slots in [1, 2, size as u64 / 2, size as u64 - 1] {
                        for edge in [-1, 0, 1] {
                            let ahead = (slots << span.shift).checked_add_signed(edge);
                            let tick = ahead.and_then(|ahead| current.checked_add(ahead));
                            let is_here =
                                |tick| Span::of(size).reaching(tick, current, size).0 == level;
                            let Some(tick) = tick.filter(|tick| is_here(*tick)) else { continue };
                            let start = span.start_of(tick);
                            let expiration = span.expiration_of(start);
                            assert!(expiration > current, "due before it was filed");
                            assert!(expiration < start, "no time to cascade");
                            let last = start + (span.ticks() - 1);
                            assert!(span.reaching(last, expiration, size).0 < level);
                        }
                    }
                }
            }
        }
    }
}
