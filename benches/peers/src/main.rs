//! Runs the same work on tickwheel and on its peers, interleaved in one run, and prints the medians
//! side by side. What each work is stands in `docs/BENCHMARKS.md`.

mod contenders;
mod keyed;
mod live;
mod memory;
mod operations;
mod sleeps;
mod table;
mod tasks;
mod threads;
mod work;

use clap::Parser;
use contenders::{
    BTree, DrivenQueue, HashWheel, Heap, LazyHeap, Local, Nexus, OrderedMap, Queue, SlabList,
    Tickwheel, TokioDelayQueue,
};
use std::error::Error;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use table::Samples;
use threads::{Driven, Live, Shared};
use work::Contender;

#[derive(Parser)]
#[command(about = "Times tickwheel beside its peers, in one run")]
struct Options {
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// A look at it within three minutes: fewer rounds, no 10 M timers, shorter idle and lateness
    /// phases.
    #[arg(long)]
    quick: bool,
    /// How often each work is run on each contender; the median counts. [7; quick: 2] The long ones
    /// (W4, W8, W9) are run three times at most, and once what does not vary
    /// (W6, W7, S_memory).
    #[arg(long)]
    rounds: Option<usize>,
    /// Only works whose name begins so, for example W2 or X.
    #[arg(long, default_value = "")]
    only: String,
    /// Only contenders whose name begins so.
    #[arg(long, default_value = "")]
    who: String,
}

struct Bench {
    options: Options,
    samples: Samples,
    round: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let rounds = options.rounds.unwrap_or(if options.quick { 2 } else { 7 });
    let mut bench = Bench {
        options,
        samples: Samples::default(),
        round: 0,
    };
    let mut failed = 0;
    for (name, part) in PARTS {
        for round in 1..=rounds {
            eprintln!("{name}, round {round} of {rounds}");
            bench.round = round;
            // What panics costs its round, and nothing that was measured before.
            failed +=
                catch_unwind(AssertUnwindSafe(|| part(&mut bench))).map_or_else(|_| 1, |()| 0);
        }
        if !bench.options.json {
            mem::take(&mut bench.samples).print();
        }
    }
    if bench.options.json {
        bench.samples.print_json()?;
    }
    if failed > 0 {
        Err(format!("{failed} rounds of a part failed").into())
    } else {
        Ok(())
    }
}

/// What is measured and printed by itself, in each round.
type Part = fn(&mut Bench);

/// tokio's clock comes first: DelayQueue's virtual clock makes it slower in the whole process.
const PARTS: [(&str, Part); 6] = [
    ("keys and sleeps", Bench::on_tokios_clock),
    ("timers", Bench::timers),
    ("threads", Bench::all_threads),
    ("operations", Bench::purgatory),
    ("the real clock", Bench::live),
    ("under load", Bench::loads),
];

/// Returns 1, 2, 4, and so on, up to the number of cores.
fn thread_counts() -> impl Iterator<Item = u64> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::iter::successors(Some(1), |threads| Some(threads * 2)).take_while(move |n| *n <= cores)
}

impl Bench {
    fn wants(&self, work: &str) -> bool {
        work.starts_with(&self.options.only) || self.options.only.starts_with(work)
    }

    fn ns(&mut self, work: &str, who: &'static str, value: f64) {
        self.sample(work, who, "ns", value);
    }

    fn ours(&mut self, work: &str, unit: &'static str, value: f64) {
        self.sample(work, "tickwheel", unit, value);
    }

    fn sample(&mut self, work: &str, who: &'static str, unit: &'static str, value: f64) {
        if work.starts_with(&self.options.only) {
            self.samples.add(work, who, unit, value);
        }
    }

    fn timers(&mut self) {
        self.single::<Tickwheel>("tickwheel");
        self.single::<Local>("LocalTimer");
        #[cfg(feature = "queue")]
        self.single::<contenders::KeyedQueue>("KeyedQueue");
        self.single::<TokioDelayQueue>("DelayQueue");
        self.single::<HashWheel>("hash wheel");
        self.single::<Queue>("timer-queue");
        self.single::<SlabList>("slab list");
        self.single::<Nexus>("nexus-timer");
        self.single::<LazyHeap>("lazy heap");
        self.single::<BTree>("btree");
        if self.wants("W6") && self.round == 1 {
            self.memory();
        }
    }

    fn all_threads(&mut self) {
        if self.wants("W5") {
            self.threads::<Live>("tickwheel");
            self.threads::<LazyHeap>("lazy heap");
            self.threads::<BTree>("btree");
        }
    }

    fn loads(&mut self) {
        if self.wants("W9") && self.round <= 3 {
            self.under_load::<Live>("tickwheel");
            self.under_load::<DrivenQueue<Heap>>("lazy heap");
            self.under_load::<DrivenQueue<OrderedMap>>("btree");
        }
    }

    fn single<C: Contender>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        const M: u64 = 1_000_000;
        if self.wants("W1") || self.wants("W3") {
            let (add, expire) = work::add_and_expire::<C>(M, 60_000);
            self.ns("W1", who, add);
            self.ns("W3", who, expire);
        }
        for (work, outstanding, at_random) in [
            ("W2_100k", M / 10, false),
            ("W2_1M", M, false),
            ("W2r_1k", 1_000, true),
            ("W2r_10k", 10_000, true),
            ("W2r_100k", M / 10, true),
            ("W2r_1M", M, true),
        ] {
            if self.wants(work) {
                self.ns(work, who, work::churn::<C>(outstanding, M, at_random));
            }
        }
        let touch = || work::touch::<C>(M / 10, M);
        if let Some(touch) = self.wants("touch").then(touch).flatten() {
            self.ns("touch", who, touch);
        }
        if self.wants("W4") && !self.options.quick && self.round <= 3 {
            let (add, expire) = work::add_and_expire::<C>(10 * M, 60_000);
            self.ns("W4_add", who, add);
            self.ns("W4_expire", who, expire);
            self.ns("W4", who, add + expire);
        }
        if self.wants("W6") && self.round == 1 {
            self.samples
                .add("W6_1M", who, "bytes", memory::per_timer::<C>(M));
            if !self.options.quick {
                self.samples
                    .add("W6_10M", who, "bytes", memory::per_timer::<C>(10 * M));
            }
        }
    }

    fn threads<S: Shared>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        for threads in thread_counts() {
            let pair = threads::churn::<S>(threads);
            self.ns(&format!("W5_{threads}"), who, pair);
        }
        let pair = threads::cross::<S>();
        self.ns("W5x_2", who, pair);
    }

    fn under_load<D: Driven>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        let time = Duration::from_millis(if self.options.quick { 500 } else { 3_000 });
        for adders in [2, 4, 16] {
            let name = format!("W9_{adders}_");
            if !self.wants(&name) {
                continue;
            }
            let load = threads::load::<D>(adders, time);
            for (what, unit, value) in [
                ("early", "timers", load.lateness.early),
                ("p50", "us", load.lateness.p50),
                ("bare_sleep_p50", "us", load.bare_sleep.p50),
                ("p99", "us", load.lateness.p99),
                ("bare_sleep_p99", "us", load.bare_sleep.p99),
                ("add_max", "us", load.longest_add),
                ("pair", "ns", load.pair),
            ] {
                self.sample(&format!("{name}{what}"), who, unit, value);
            }
        }
    }

    fn memory(&mut self) {
        let count = if self.options.quick {
            1_000_000
        } else {
            10_000_000
        };
        self.ours("W6_churn", "x live", memory::after_churn(count));
        self.ours("W6_burst", "x start", memory::after_burst(count));
    }

    fn purgatory(&mut self) {
        for threads in thread_counts() {
            let work = format!("P{threads}");
            if self.wants(&work) {
                self.ours(&work, "ns", operations::million(threads));
            }
        }
        if self.wants("P_small") {
            self.ours("P_small", "ns", operations::small_batches());
        }
        if self.wants("P_expire") {
            self.ours(
                "P_expire",
                "ns",
                operations::expire_operations(self.count()),
            );
        }
        if self.wants("K_expire") {
            self.ours("K_expire", "ns", operations::expire_keys(self.count()));
        }
        if self.wants("K_memory") && self.round == 1 {
            for (work, count) in [("K_memory_100k", 100_000), ("K_memory_1M", 1_000_000)] {
                self.ours(work, "bytes", memory::per_key(count));
            }
        }
        if self.wants("P_memory") && self.round == 1 {
            let (bytes, left) = memory::per_operation(1_000_000);
            self.ours("P_memory", "bytes", bytes);
            self.ours("P_left", "KiB", left / 1024.0);
            self.ours(
                "P_memory_lone",
                "bytes",
                memory::per_lone_operation(1_000_000),
            );
        }
    }

    fn live(&mut self) {
        let quick = self.options.quick;
        if self.wants("W7") && self.round == 1 {
            let (wakeups, cpu) = live::idle(if quick { 2 } else { 10 });
            self.ours("W7", "wake-ups", wakeups);
            self.ours("W7_cpu", "ms", cpu);
        }
        if self.wants("W8") && self.round <= 3 {
            let (count, seconds) = if quick { (20_000, 2) } else { (100_000, 10) };
            for (name, tick) in [("1ms", 1_000), ("100us", 100)] {
                let tick = Duration::from_micros(tick);
                let ours = live::lateness(tick, count, seconds);
                let bare = live::bare_sleep(tick, Duration::from_secs(if quick { 1 } else { 5 }));
                self.ours(&format!("W8_{name}_early"), "timers", ours.early);
                for (quantile, ours, bare) in [
                    ("p50", ours.p50, bare.p50),
                    ("p99", ours.p99, bare.p99),
                    ("p999", ours.p999, bare.p999),
                    ("max", ours.max, bare.max),
                ] {
                    self.ours(&format!("W8_{name}_{quantile}"), "us", ours);
                    self.ours(&format!("W8_{name}_{quantile}_bare_sleep"), "us", bare);
                }
            }
        }
        if self.wants("X") {
            let (add, late) = live::cascade(1_000_000);
            let (add_idle, late_idle) = live::cascade(0);
            self.ours("X1", "us", add);
            self.ours("X1_no_cascade", "us", add_idle);
            self.ours("X2", "us", late);
            self.ours("X2_no_cascade", "us", late_idle);
        }
        if self.wants("X3") {
            let timers = if quick { 100 } else { 500 };
            self.ours(
                "X3_is_shutdown",
                "us",
                live::asked(timers, |own, _| _ = own.is_shutdown()),
            );
            self.ours(
                "X3_stats",
                "us",
                live::asked(timers, |own, _| _ = own.stats()),
            );
            self.ours(
                "X3_others_stats",
                "us",
                live::asked(timers, |_, other| _ = other.stats()),
            );
        }
    }
}
