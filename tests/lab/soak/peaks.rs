//! After a peak: what the few that live on keep, in whatever order the others go. If they are
//! scattered, each keeps its chunks; side by side, they keep little more than their own memory.

use crate::idle::Idle;
use crate::timers::{Stand, spare, timer};
use crate::{HOUR, MS, SPARE, in_use, scaled};
use fastrand::Rng;
use tickwheel::Timeout;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{Pending, Purgatory};

/// Where things are added and cancelled by number.
trait Holder {
    const NAME: &str;
    /// How many bytes each that lives may keep: one chunk of each slab in which it has a place.
    const CHUNKS: usize;
    /// Creates one with room for the handles of `many`, which is not measured.
    fn new(many: usize) -> Self;
    /// Returns what may come on top, however many live.
    fn spare() -> usize;
    fn add(&mut self, nth: usize);
    fn cancel(&mut self, nth: usize);
}

/// Timers of one shard, so that they lie together: for one moment, or spread over an hour.
struct Timers<const SPREAD: bool>(Stand, Vec<Timeout>);

impl<const SPREAD: bool> Holder for Timers<SPREAD> {
    const NAME: &str = if SPREAD { "spread" } else { "one moment" };
    /// 256 entries of 48 bytes.
    const CHUNKS: usize = 13 << 10;

    fn new(many: usize) -> Self {
        Timers(Stand::new(512), Vec::with_capacity(many))
    }

    fn spare() -> usize {
        if SPREAD { SPARE / 2 } else { SPARE / 6 }
    }

    fn add(&mut self, nth: usize) {
        let delay = if SPREAD {
            MS * Rng::with_seed(nth as u64 + 1).u64(..3_600_000) as u32
        } else {
            HOUR
        };
        self.1.push(self.0.add(delay));
    }

    fn cancel(&mut self, nth: usize) {
        assert!(self.1[nth].cancel().is_cancelled());
    }
}

struct Keys(KeyedTimer<usize, ()>);

impl Holder for Keys {
    const NAME: &str = "keys";
    const CHUNKS: usize = 10 << 10;

    fn new(_: usize) -> Self {
        Keys(KeyedTimer::new(&timer(), |_, ()| ()))
    }

    fn spare() -> usize {
        spare()
    }

    fn add(&mut self, nth: usize) {
        assert!(self.0.add(nth, HOUR, ()).is_ok());
    }

    fn cancel(&mut self, nth: usize) {
        assert!(self.0.cancel(&nth).is_some());
    }
}

/// Each watches a key of its own, and one that all watch.
struct Operations(Purgatory<usize, Idle>, Vec<Pending<usize, Idle>>);

impl Holder for Operations {
    const NAME: &str = "operations";
    const CHUNKS: usize = 28 << 10;

    fn new(many: usize) -> Self {
        Operations(Purgatory::new(&timer()), Vec::with_capacity(many))
    }

    fn spare() -> usize {
        spare()
    }

    fn add(&mut self, nth: usize) {
        let watch = self
            .0
            .try_complete_else_watch(Idle, HOUR, &[nth, usize::MAX]);
        self.1.extend(watch.expect("there is no limit").pending());
    }

    fn cancel(&mut self, nth: usize) {
        assert!(self.1[nth].force_complete());
    }
}

/// Who lives: one in so many, or a sixteenth, in runs of thousands.
#[derive(Clone, Copy, Debug)]
enum Live {
    OneIn(usize),
    Runs,
}

impl Live {
    fn has(self, nth: usize) -> bool {
        match self {
            Live::OneIn(one_in) => nth % one_in == one_in / 2,
            Live::Runs => nth / 4_096 % 16 == 5,
        }
    }
}

/// How those that do not live on go.
#[derive(Clone, Copy, Debug)]
enum Order {
    InTurn,
    Backwards,
    Shuffled,
}

/// Measures a peak. Returns a complaint if more is left than the chunks of those that live, or than
/// thrice their own memory if they live in runs, and a percent of the peak.
fn peak<H: Holder>(live: Live, order: Order) -> Option<String> {
    let many = scaled(1 << 20);
    let (kept, mut gone): (Vec<_>, Vec<_>) = (0..many).partition(|nth| live.has(*nth));
    match order {
        Order::InTurn => {}
        Order::Backwards => gone.reverse(),
        Order::Shuffled => {
            let mut random = Rng::with_seed(7);
            (1..gone.len()).for_each(|nth| gone.swap(nth, random.u64(..nth as u64 + 1) as usize));
        }
    }
    let mut holder = H::new(many);
    let before = in_use();
    (0..many).for_each(|nth| holder.add(nth));
    let highest = in_use() - before;
    gone.iter().for_each(|nth| holder.cancel(*nth));
    let left = in_use() - before;
    let mut alone = H::new(many);
    let before = in_use();
    kept.iter().for_each(|nth| alone.add(*nth));
    let fresh = in_use() - before;
    let may_keep = match live {
        Live::OneIn(_) => fresh + kept.len() * H::CHUNKS,
        Live::Runs => 3 * fresh,
    };
    let name = H::NAME;
    let per = |bytes: usize| bytes as f64 / kept.len() as f64;
    let own = left as f64 / fresh as f64;
    let part = 100.0 * left as f64 / highest as f64;
    let live = format!("{live:?}");
    let order = format!("{order:?}");
    let line = format!(
        "{name:<10} {live:<12} {order:<9} {:>8.1} {:>8.1} {own:>6.1} times {part:>6.2} %",
        per(left),
        per(fresh)
    );
    println!("{line}");
    (left > may_keep + highest / 100 + H::spare()).then_some(line)
}

/// Returns what keeps too much. If more lived, the chunks would be all that there were.
fn peaks<H: Holder>() -> impl Iterator<Item = String> {
    let lives = [
        Live::OneIn(1_024),
        Live::OneIn(4_096),
        Live::OneIn(8_192),
        Live::Runs,
    ];
    let orders = [Order::InTurn, Order::Backwards, Order::Shuffled];
    let all = lives
        .into_iter()
        .flat_map(move |live| orders.map(|order| (live, order)));
    all.filter_map(|(live, order)| peak::<H>(live, order))
}

pub(crate) fn complaints() -> impl Iterator<Item = String> {
    println!("per live one: left, if fresh; how many times that, and which share of the peak");
    let timers = peaks::<Timers<false>>().chain(peaks::<Timers<true>>());
    timers.chain(peaks::<Keys>()).chain(peaks::<Operations>())
}
