//! Endurance: timers, keys and operations on the real clock, with faults, for as long as one likes.
//!
//! ```text
//! cargo run --release -p tickwheel-soak --bin endurance -- --seconds 60 --flat
//! ```
//!
//! Threads add, move, cancel and trigger as fast as they can. The executor refuses some tasks,
//! panics, and hangs now and then; tasks and checks panic. A ledger follows every entry: if one is
//! early, is lost, or ends twice, the exit status is 1. It is also 1 if nothing has expired,
//! completed, been cancelled, refused or panicked; and with `--flat`, if memory grew by more than
//! one percent, or could not be read. The bytes in use are compared at rest, when everything has
//! ended: how many are pending under load depends on how fast the machine is just then.
//! `.ci/time` stops the process for seconds, sets its wall clock and takes its cores away
//! meanwhile; the report says how much of that it noticed.

#[path = "../counting.rs"]
mod counting;
mod load;

use clap::{Parser, value_parser};
use demos::ledger::{End, Ledger};
use demos::{Report, resident};
use load::{Load, Worker, report_unplanted_panics};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How often the load begins anew, from an empty timer.
const ROUNDS: u32 = 4;
/// Pages come with the highest peak so far, and new peaks become rare only after five minutes.
const WARM_UP: Duration = Duration::from_secs(300);

/// Timers, keys and operations on the real clock, with faults.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// How long it lasts
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Threads that work
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = value_parser!(u32).range(1..=64))]
    threads: u32,

    /// Entries that each thread keeps pending
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    slots: u32,

    /// How finely the timer tells deadlines apart, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 1_000_000)]
    #[arg(value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    tick_ns: u64,

    /// Fail if memory grows by more than one percent; the resident one if it lasts ten minutes
    #[arg(long)]
    flat: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    report_unplanted_panics();
    let slots = (options.threads * options.slots) as usize;
    let load = Load::new(Duration::from_nanos(options.tick_ns), Ledger::open(slots));
    let mut samples = Samples::begin();
    let lasts = Duration::from_secs(options.seconds);
    let worker = |thread| Worker::new(&load, thread * options.slots, options.slots);
    let mut workers: Vec<_> = (0..options.threads).map(worker).collect();
    for _ in 0..ROUNDS {
        workers.iter_mut().for_each(Worker::cancel_all);
        samples.take_at_rest(&load);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.work(&stop));
            }
            samples.take_for(lasts / ROUNDS);
            stop.store(true, SeqCst);
        });
    }
    let overdue = load.ledger.wait_for_those_due(Instant::now());
    let stats = load.timer.stats();
    load.end();

    samples.tell();
    let mut report = Report::default();
    load.ledger.report(&mut report);
    report.none("overdue", overdue, "a minute after their time");
    report.count("refused", stats.refused, "");
    report.count("panicked", stats.panicked, "");
    let late = stats.lateness.quantile(0.99).unwrap_or_default();
    report.figure("late_p99_us", late.as_secs_f64() * 1e6, "");
    for (name, growth, is_judged) in [
        ("in_use_growth_percent", growth(&samples.at_rest), true),
        (
            "resident_growth_percent",
            growth(&medians(&samples.resident)),
            lasts >= 2 * WARM_UP,
        ),
    ] {
        report.figure(name, growth.unwrap_or(0.0), "");
        let is_flat = growth.is_some_and(|percent| percent <= 1.0 || !is_judged);
        report.require(is_flat || !options.flat, name);
    }
    let ends = [End::Expired, End::Completed, End::Cancelled].map(|end| load.ledger.ended(end));
    let happened = [stats.refused, stats.panicked]
        .iter()
        .chain(&ends)
        .all(|count| *count > 0);
    report.require(happened, "something has never happened");
    report.print(false)
}

/// What was measured while it lasted: memory, and which faults came from outside.
struct Samples {
    begun: (Instant, SystemTime),
    last: Instant,
    /// The bytes in use, before each round: the timer is empty.
    at_rest: Vec<f64>,
    resident: Vec<f64>,
    /// The time that passed while the process was stopped, or had no core.
    stopped: Duration,
    /// How far the wall clock went from the monotonic one, in seconds: the least and the most.
    wall: [f64; 2],
}

impl Samples {
    fn begin() -> Self {
        let now = Instant::now();
        Samples {
            begun: (now, SystemTime::now()),
            last: now,
            at_rest: Vec::new(),
            resident: Vec::new(),
            stopped: Duration::ZERO,
            wall: [0.0; 2],
        }
    }

    /// Waits until everything has ended, and what ended it has let go of its memory.
    fn take_at_rest(&mut self, load: &Load) {
        let mut before = 0;
        while before != counting::in_use() || load.ledger.left() > 0 || !load.timer.is_empty() {
            before = counting::in_use();
            self.sleep_for(Duration::from_millis(100));
        }
        self.at_rest.push(before as f64);
    }

    fn take_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.sleep_for(Duration::from_millis(500));
            self.resident.push(resident() as f64);
        }
    }

    /// Sleeps, and notices what happens to the process and to its clocks meanwhile.
    fn sleep_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            thread::sleep(Duration::from_millis(20));
            let gap = self.last.elapsed();
            self.last += gap;
            if gap > Duration::from_millis(200) {
                self.stopped += gap;
            }
            let since = match self.begun.1.elapsed() {
                Ok(since) => since.as_secs_f64(),
                Err(error) => -error.duration().as_secs_f64(),
            };
            let ahead = since - self.begun.0.elapsed().as_secs_f64();
            self.wall = [self.wall[0].min(ahead), self.wall[1].max(ahead)];
        }
    }

    /// Says which faults were noticed, for the scripts that made them.
    fn tell(&self) {
        // Only `Debug` tells the clock that instants are made of.
        let text = format!("{:?}", Instant::now());
        let seconds = text
            .split_once("tv_sec: ")
            .and_then(|(_, rest)| rest.split(',').next());
        println!(
            "monotonic clock {} s, stopped {:.1} s, wall clock set by {:.0} s",
            seconds.unwrap_or("0"),
            self.stopped.as_secs_f64(),
            self.wall[1] - self.wall[0],
        );
    }
}

/// Returns by how many percent the last value is greater than the one before. `None` if they are
/// too few, or zero.
fn growth(values: &[f64]) -> Option<f64> {
    let [.., before, last] = *values else {
        return None;
    };
    (before > 0.0).then_some((last / before - 1.0) * 100.0)
}

/// Returns the medians of the third and of the last quarter: the first half is for warming up.
fn medians(samples: &[f64]) -> Vec<f64> {
    let quarters = samples
        .chunks_exact((samples.len() / 4).max(1))
        .take(4)
        .skip(2);
    let median = |quarter: &[f64]| {
        let mut values = quarter.to_vec();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    quarters.map(median).collect()
}
