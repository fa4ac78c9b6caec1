//! The timing wheel: one level of the hierarchy, an array of buckets addressed by the tick.
//!
//! Level 0 has a slot per tick. A slot of each further level, an overflow wheel, spans half the
//! slots of the level below. An entry belongs in the lowest level whose slots reach it:
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

use crate::wheel::bucket::Bucket;

/// The most slots that a wheel can have.
pub(crate) const MAX_SIZE: usize = 1 << 20;

/// Rounds up to a size that a wheel can have: a power of two from 4 to [`MAX_SIZE`].
pub(crate) fn round_size(wheel_size: usize) -> usize {
    wheel_size.clamp(4, MAX_SIZE).next_power_of_two()
}

/// One level. Knows neither a clock, nor the entries, nor the bucket queue.
#[derive(Debug)]
pub(crate) struct TimingWheel {
    pub(crate) span: Span,
    pub(crate) buckets: Box<[Bucket]>,
}

/// How many ticks a slot spans: a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    shift: u32,
    /// The same for the level below.
    finer_shift: u32,
}

impl TimingWheel {
    /// Creates the wheel of `level`, with `size` slots: a power of two, at least 4.
    pub(crate) fn new(level: usize, size: usize) -> Self {
        let step = Self::step(size);
        let shift = step * level as u32;
        let span = Span { shift, finer_shift: shift.saturating_sub(step) };
        TimingWheel { span, buckets: (0..size).map(|_| Bucket::new()).collect() }
    }

    /// Returns by how many bits the span of a slot grows from level to level.
    fn step(size: usize) -> u32 {
        size.trailing_zeros() - 1
    }

    /// Returns the lowest level with `size` slots that reaches `tick`, which lies after `current`.
    ///
    /// Never returns a level beyond the one whose shift is below 64: there the difference is less
    /// than `size`.
    #[inline]
    pub(crate) fn level_for(size: usize, current: u64, tick: u64) -> usize {
        let step = Self::step(size);
        let (mut level, mut shift) = (0, 0);
        while (tick >> shift) - (current >> shift) >= size as u64 {
            level += 1;
            shift += step;
        }
        level
    }
}

impl Span {
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
        let by = if self.shift == 0 { 0 } else { self.ticks() - (1 << self.finer_shift) };
        start.saturating_sub(by)
    }

    pub(crate) fn ticks(self) -> u64 {
        1 << self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the module's promises at every edge of every level.
    #[test]
    fn a_bucket_expires_after_now_and_fits_into_the_level_below() {
        for size in [4_usize, 8, 64, 512, 4096] {
            let step = TimingWheel::step(size);
            for level in 1..64 / step as usize {
                let span = TimingWheel::new(level, size).span;
                for current in [0, 1, 2, 3, 5, (1 << 42) - 1, 1 << 42, u64::MAX / 2, u64::MAX - 9] {
                    for slots in [1, 2, size as u64 / 2, size as u64 - 1] {
                        for edge in [-1, 0, 1] {
                            let tick = (slots << span.shift).checked_add_signed(edge);
                            let Some(tick) = tick.and_then(|ahead| current.checked_add(ahead))
                            else {
                                continue;
                            };
                            if TimingWheel::level_for(size, current, tick) != level {
                                continue;
                            }
                            let start = span.start_of(tick);
                            let expiration = span.expiration_of(start);
                            assert!(expiration > current, "due before it was filed");
                            assert!(expiration < start, "no time to cascade");
                            let last = start + (span.ticks() - 1);
                            assert!(TimingWheel::level_for(size, expiration, last) < level);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_tick_has_a_level() {
        for size in [4, 8, 512, 1 << 20] {
            let level = TimingWheel::level_for(size, 0, u64::MAX);
            assert!((TimingWheel::step(size) as usize) * level < 64);
            assert_eq!(TimingWheel::level_for(size, 0, size as u64 - 1), 0);
            assert_eq!(TimingWheel::level_for(size, 0, size as u64), 1);
        }
    }
}
