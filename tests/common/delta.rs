//! Points in time at which a wheel could go wrong, chosen relative to the present.
//!
//! Uniform numbers would hardly ever meet the edge of a slot, of a level or of time itself; so most
//! of these lie there, or one beside it.

use quickcheck::{Arbitrary, Gen};

/// A tick, as far from the present as `base` says, moved by `nudge`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta {
    base: Base,
    nudge: i64,
}

#[derive(Clone, Copy, Debug)]
enum Base {
    Now,
    /// So many ticks ahead.
    Ahead(u64),
    /// So many ticks ago.
    Ago(u64),
    /// So many slots of a level ahead.
    Slots(u32, Edge),
    /// So many slots of a level beyond the edge of the slot in which the present lies.
    Aligned(u32, Edge),
    Power(u32),
    /// As another point: the deadline of the nth timer, say.
    Like(usize),
    End,
}

/// A number of slots.
#[derive(Clone, Copy, Debug)]
enum Edge {
    One,
    Two,
    HalfWheel,
    LastOfWheel,
    Wheel,
    BeyondWheel,
}

impl Edge {
    fn slots(self, size: u64) -> u64 {
        match self {
            Edge::One => 1,
            Edge::Two => 2,
            Edge::HalfWheel => size / 2,
            Edge::LastOfWheel => size - 1,
            Edge::Wheel => size,
            Edge::BeyondWheel => size + 1,
        }
    }
}

impl Delta {
    /// Returns the tick that is meant, with the present at `now` and wheels of `size` slots; `like`
    /// are the other points of interest.
    pub(crate) fn resolve(self, now: u64, size: u64, like: &[u64]) -> u64 {
        let span = |level: u32| (size / 2).saturating_pow(level);
        let tick = match self.base {
            Base::Now => now,
            Base::Ahead(ticks) => now.saturating_add(ticks),
            Base::Ago(ticks) => now.saturating_sub(ticks),
            Base::Slots(level, edge) => {
                now.saturating_add(span(level).saturating_mul(edge.slots(size)))
            }
            Base::Aligned(level, edge) => {
                let start = now / span(level) * span(level);
                start.saturating_add(span(level).saturating_mul(edge.slots(size)))
            }
            Base::Power(bits) => now.saturating_add(1 << bits),
            Base::Like(_) if like.is_empty() => now,
            Base::Like(nth) => like[nth % like.len()],
            Base::End => u64::MAX,
        };
        tick.saturating_add_signed(self.nudge)
    }
}

fn any<T: Copy>(g: &mut Gen, of: &[T]) -> T {
    *g.choose(of).expect("there is something to choose from")
}

impl Arbitrary for Delta {
    fn arbitrary(g: &mut Gen) -> Self {
        use Edge::{BeyondWheel, HalfWheel, LastOfWheel, One, Two, Wheel};
        let edge = any(g, &[One, Two, HalfWheel, LastOfWheel, Wheel, BeyondWheel]);
        let level = any(g, &[0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 8, 12]);
        let bits = u32::arbitrary(g) % 64;
        let uniform = u64::arbitrary(g) >> bits;
        let near = u64::arbitrary(g) % 40;
        let base = match u8::arbitrary(g) % 32 {
            0..=2 => Base::Now,
            3..=9 => Base::Ahead(near),
            10..=11 => Base::Ago(near),
            12..=17 => Base::Slots(level, edge),
            18..=23 => Base::Aligned(level, edge),
            24 => Base::Power(any(g, &[16, 30, 31, 32, 33, 34, 36, 42, 48, 63])),
            25..=29 => Base::Like(usize::arbitrary(g) % 100),
            30 => Base::Ahead(uniform),
            _ => Base::End,
        };
        // 2^32: the wheels know the low 32 bits of a tick only.
        let nudge = any(
            g,
            &[
                0,
                0,
                0,
                0,
                0,
                0,
                1,
                1,
                1,
                -1,
                -1,
                -1,
                2,
                -2,
                1 << 32,
                -(1 << 32),
            ],
        );
        Delta { base, nudge }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let plain = (self.nudge != 0).then_some(Delta { nudge: 0, ..*self });
        let nudge = self.nudge;
        let near = match self.base {
            Base::Now => Vec::new(),
            Base::Ahead(ticks) => ticks.shrink().map(Base::Ahead).collect(),
            _ => vec![Base::Now, Base::Ahead(1), Base::Ahead(9)],
        };
        Box::new(
            plain
                .into_iter()
                .chain(near.into_iter().map(move |base| Delta { base, nudge })),
        )
    }
}
