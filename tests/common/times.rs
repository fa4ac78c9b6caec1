//! How a timer is set up, and times at the edges of its ticks, slots and levels.

use super::delta::Delta;
use quickcheck::{Arbitrary, Gen};
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timer, TimerBuilder, When};

/// The last deadline, which never comes.
pub(crate) const NEVER: u64 = u64::MAX - 1;

/// A time, in nanoseconds since the timer was built.
pub(crate) struct Moment {
    pub(crate) nanos: u64,
    tick: u64,
}

impl Moment {
    pub(crate) fn new(nanos: u64, tick: u64) -> Self {
        Moment {
            nanos: nanos.min(NEVER - 1),
            tick,
        }
    }

    pub(crate) fn rounded_down(&self) -> u64 {
        self.nanos / self.tick
    }

    pub(crate) fn tick_of(&self, deadline: u64) -> u64 {
        deadline.div_ceil(self.tick)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// In nanoseconds.
    pub(crate) tick: u64,
    pub(crate) wheel_size: usize,
    pub(crate) shards: usize,
    pub(crate) max_pending: Option<usize>,
    /// How long the clock had run when the timer was built.
    pub(crate) before: u64,
    /// The seed of the clock.
    pub(crate) seed: u64,
}

impl Config {
    const SIMPLE: Config = Config {
        tick: 1_000_000,
        wheel_size: 8,
        shards: 1,
        max_pending: None,
        before: 0,
        seed: 0,
    };

    /// Begins a timer on a clock, which has run for some time then.
    pub(crate) fn builder(&self, clock: &ManualClock) -> TimerBuilder {
        clock.advance(Duration::from_nanos(self.before));
        let builder = Timer::builder()
            .tick(Duration::from_nanos(self.tick))
            .wheel_size(self.wheel_size)
            .shards(self.shards)
            .clock(clock.clone());
        match self.max_pending {
            Some(max_pending) => builder.max_pending(max_pending),
            None => builder,
        }
    }
}

fn any<T: Copy>(g: &mut Gen, of: &[T]) -> T {
    *g.choose(of).expect("there is something to choose from")
}

impl Arbitrary for Config {
    fn arbitrary(g: &mut Gen) -> Self {
        Config {
            tick: any(g, &[1, 1_000, 1_000_000, 7_000_000, 1_000_000_000]),
            wheel_size: any(g, &[1, 4, 8, 8, 16, 64, 512]),
            shards: any(g, &[1, 1, 2, 4, 8]),
            max_pending: any(g, &[None, None, None, Some(0), Some(1), Some(5)]),
            before: any(g, &[0, 1, 999_999, 5_000_000_123]),
            seed: any(g, &[0, 0, 1, 2, 3]),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let simple = Config::SIMPLE;
        let mut simpler = Vec::new();
        if self.before > 0 {
            simpler.push(Config { before: 0, ..*self });
        }
        if self.seed > 0 {
            simpler.push(Config { seed: 0, ..*self });
        }
        if self.max_pending.is_some() {
            simpler.push(Config {
                max_pending: None,
                ..*self
            });
        }
        if self.shards > 1 {
            simpler.push(Config { shards: 1, ..*self });
        }
        if self.wheel_size != simple.wheel_size {
            simpler.push(Config {
                wheel_size: simple.wheel_size,
                ..*self
            });
        }
        if self.tick != simple.tick {
            simpler.push(Config {
                tick: simple.tick,
                ..*self
            });
        }
        Box::new(simpler.into_iter())
    }
}

/// How the timer is told of a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    After,
    At,
    AfterMax,
    Never,
    BeforeTheStart,
}

impl How {
    /// Returns what to tell a timer that was built at `origin` so that it means `moment`, and the
    /// moment that it is to understand. Moments are nanoseconds since `origin`.
    pub(crate) fn when(self, moment: u64, now: u64, origin: Instant) -> (When, u64) {
        match self {
            How::After => {
                let delay = Duration::from_nanos(moment.saturating_sub(now));
                (When::After(delay), moment.max(now))
            }
            How::At => (When::At(origin + Duration::from_nanos(moment)), moment),
            How::AfterMax => (When::After(Duration::MAX), u64::MAX),
            How::Never => (When::Never, u64::MAX),
            How::BeforeTheStart => {
                let early = Duration::from_nanos(moment % 1_000_000_007);
                (When::At(origin.checked_sub(early).unwrap_or(origin)), 0)
            }
        }
    }
}

impl Arbitrary for How {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 32 {
            0..=14 => How::After,
            15..=28 => How::At,
            29 => How::Never,
            30 => How::AfterMax,
            _ => How::BeforeTheStart,
        }
    }
}

/// A point in time: the beginning of a tick, or a little beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    ticks: Delta,
    offset: Offset,
}

#[derive(Clone, Copy, Debug)]
enum Offset {
    Exactly,
    Before,
    After,
    HalfATickAfter,
    /// As far into its tick as the present is, or the other point.
    Same,
}

impl Span {
    /// Returns the moment in nanoseconds since the timer was built.
    pub(crate) fn resolve(self, now: u64, config: &Config, like: &[u64]) -> u64 {
        let tick = config.tick;
        let size = config.wheel_size.max(4) as u64;
        let ticks: Vec<u64> = like.iter().map(|nanos| nanos / tick).collect();
        let exactly = self
            .ticks
            .resolve(now / tick, size, &ticks)
            .saturating_mul(tick);
        match self.offset {
            Offset::Exactly => exactly,
            Offset::Before => exactly.saturating_sub(1),
            Offset::After => exactly.saturating_add(1),
            Offset::HalfATickAfter => exactly.saturating_add(tick / 2),
            Offset::Same => exactly.saturating_add(now % tick),
        }
    }
}

impl Arbitrary for Span {
    fn arbitrary(g: &mut Gen) -> Self {
        use Offset::{After, Before, Exactly, HalfATickAfter, Same};
        let offset = any(g, &[Exactly, Exactly, Before, After, HalfATickAfter, Same]);
        Span {
            ticks: Delta::arbitrary(g),
            offset,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let offset = self.offset;
        Box::new(self.ticks.shrink().map(move |ticks| Span { ticks, offset }))
    }
}
