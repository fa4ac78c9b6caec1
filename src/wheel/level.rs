//! Levels: which slot of which wheel a tick falls into, and when that slot's bucket expires.
//!
//! Level 0 has a slot for each tick. A slot of each further level, an overflow wheel, spans half
//! the slots of the level below. An entry belongs in the lowest level whose slots reach its tick:
//!
//! ```text
//! wheel_size 8, current tick 0
//! level 0   slots of  1 tick    [0 1 2 3 4 5 6 7]                      ticks  0 ..   7
//! level 1   slots of  4 ticks   [8-11][12-15] .. [28-31]               ticks  8 ..  31
//! level 2   slots of 16 ticks   [32-47][48-63] .. [112-127]            ticks 32 .. 127
//! ```
//!
//! The window rolls: with the current tick at 5, level 0 reaches up to 12. A slot that the window
//! has passed is empty, because its bucket was flushed before.
//!
//! **When a bucket expires.** A bucket of level 0 expires at its tick, and its entries are due. A
//! bucket of an overflow wheel cascades: its entries are inserted again, further down. It expires
//! *before* its first tick, by one of its own slots less one slot of the level below. All its
//! entries already fit there, because the level below spans two of its slots. So a bucket of a
//! million entries can be moved in slices between due buckets, and no entry is late. Erlang's timer
//! wheels drain early too.
//!
//! Sources: Varghese & Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7; Kafka's
//! `TimingWheel`, for the lazily created overflow wheels and the delay queue of buckets.

use crate::wheel::tick::Tick;
use core::cmp::Ordering;

pub(crate) const MAX_SIZE: usize = 1 << 20;

/// Rounds up to a size that a wheel can have: a power of two from 4 to [`MAX_SIZE`].
pub(crate) fn round_size(wheel_size: usize) -> usize {
    wheel_size.clamp(4, MAX_SIZE).next_power_of_two()
}

/// A bucket, and when it has to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiration {
    /// The first tick at which the bucket may be flushed.
    pub(crate) tick: Tick,
    /// The first tick of the bucket's entries, by which an overflow wheel's bucket must be
    /// cascaded.
    pub(crate) start: Tick,
    pub(crate) bucket: u32,
}

/// By the tick of the flush. In the same tick, overflow wheels come first: to begin their cascade
/// takes no time, and level 0 may be flushed again and again.
impl Ord for Expiration {
    fn cmp(&self, other: &Self) -> Ordering {
        self.tick
            .cmp(&other.tick)
            .then(other.bucket.cmp(&self.bucket))
    }
}

impl PartialOrd for Expiration {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Expiration {
    pub(crate) fn is_overflow(&self) -> bool {
        self.tick < self.start
    }
}

/// The number of slots of each wheel, and the ticks that the slots of each level span. A bucket is
/// numbered by its level and slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    /// A power of two, at least 4.
    size: usize,
    /// The bits by which the span of a slot grows from level to level.
    step: u32,
    /// The inverse of `step` in [`PARTS`]: a product is faster than a division.
    inverse: u32,
}

/// Enough for quotients of 64 bits.
const PARTS: u32 = 1 << 12;

impl Levels {
    pub(crate) fn new(size: usize) -> Self {
        let step = size.trailing_zeros() - 1;
        Levels {
            size,
            step,
            inverse: PARTS.div_ceil(step),
        }
    }

    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// Returns the bucket of a tick, which is not before `current`: in the lowest level that
    /// reaches it.
    #[inline(always)]
    pub(crate) fn bucket_of(self, tick: Tick, current: Tick) -> usize {
        let Tick(tick) = tick;
        let Tick(current) = current;
        let size = self.size;
        let reaches = |shift: u32| (tick >> shift) - (current >> shift) < size as u64;
        let slot = |shift: u32| (tick >> shift) as usize & (size - 1);
        // Branches, because a processor need not wait for their outcome.
        if reaches(0) {
            return slot(0);
        }
        if reaches(self.step) {
            return size | slot(self.step);
        }
        // No lower level reaches the highest bit of the difference; this one does, unless a slot
        // more has begun. With 8 slots, 31 ticks are within level 1 from 0 on, but from 3 on they
        // end at 34, in its ninth slot. The shift never exceeds 63: the level before reaches all
        // ticks then.
        let level = (((tick - current) | 2).ilog2() - 1) * self.inverse / PARTS;
        let level = level + u32::from(!reaches(level * self.step));
        (level as usize * size) | slot(level * self.step)
    }

    #[inline]
    pub(crate) fn level_of(self, bucket: usize) -> usize {
        // Shifted, not divided: the size is a power of two.
        bucket >> self.size.trailing_zeros()
    }

    pub(crate) fn span_of(self, level: usize) -> u64 {
        1 << (self.step * level as u32)
    }

    #[inline(never)]
    pub(crate) fn expiration(self, bucket: usize, tick: Tick) -> Expiration {
        let span = self.span_of(self.level_of(bucket));
        let start = tick.0 & !(span - 1);
        let early = if span == 1 {
            0
        } else {
            span - (span >> self.step)
        };
        let tick = Tick(start.saturating_sub(early));
        Expiration {
            tick,
            start: Tick(start),
            bucket: bucket as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_of_a_tick_is_the_lowest_that_reaches_it() {
        for size in (2..=20).map(|bits| 1_usize << bits) {
            let levels = Levels::new(size);
            for current in [0, 1, 5, (1 << 42) - 1, u64::MAX / 3, u64::MAX / 2] {
                for edge in (0..63).flat_map(|bit| [(1_u64 << bit), (1 << bit) + 1, (2 << bit) - 1])
                {
                    let tick = current + edge.min(u64::MAX - current);
                    let reaches = |level: &usize| {
                        let shift = levels.step * *level as u32;
                        (tick >> shift) - (current >> shift) < size as u64
                    };
                    let level = levels.level_of(levels.bucket_of(Tick(tick), Tick(current)));
                    assert_eq!((0..).find(reaches), Some(level), "{current} {tick} {size}");
                }
            }
        }
    }

    /// Checks the module's promises at every edge of every level.
    #[test]
    fn a_bucket_expires_after_now_and_fits_into_the_level_below() {
        for size in [4_usize, 8, 64, 512, 4096] {
            let levels = Levels::new(size);
            for level in 1..64 / levels.step as usize {
                let span = levels.span_of(level);
                for current in [
                    0,
                    1,
                    2,
                    3,
                    5,
                    (1 << 42) - 1,
                    1 << 42,
                    u64::MAX / 2,
                    u64::MAX - 9,
                ] {
                    for slots in [1, 2, size as u64 / 2, size as u64 - 1] {
                        for edge in [-1, 0, 1] {
                            let ahead = slots.wrapping_mul(span).checked_add_signed(edge);
                            let tick = ahead.and_then(|ahead| current.checked_add(ahead));
                            let Some(tick) = tick else { continue };
                            let bucket = levels.bucket_of(Tick(tick), Tick(current));
                            if levels.level_of(bucket) != level {
                                continue;
                            }
                            let expiration = levels.expiration(bucket, Tick(tick));
                            assert!(expiration.tick > Tick(current), "due before it was filed");
                            assert!(expiration.is_overflow(), "no time to cascade");
                            let last = Tick(expiration.start.0 + (span - 1));
                            let below = levels.bucket_of(last, expiration.tick);
                            assert!(levels.level_of(below) < level);
                        }
                    }
                }
            }
        }
    }
}
