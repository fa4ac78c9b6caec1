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
//! one percent, or could not be read. `.ci/time` stops the process for seconds, sets its wall clock
//! and takes its cores away meanwhile; the report says how much of that it noticed.

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
    let (stop, mut samples) = (AtomicBool::new(false), Samples::default());
    let lasts = Duration::from_secs(options.seconds);
    thread::scope(|scope| {
        for thread in 0..options.threads {
            let (load, stop) = (&load, &stop);
            let first = thread * options.slots;
            scope.spawn(move || Worker::new(load, first, options.slots).work(stop));
        }
        samples.take_for(lasts, &load);
        stop.store(true, SeqCst);
    });
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
    for (name, values, is_judged) in [
        ("in_use_growth_percent", &samples.in_use, true),
        ("resident_growth_percent", &samples.resident, lasts >= 2 * WARM_UP),
    ] {
        let growth = growth(values);
        report.figure(name, growth.unwrap_or(0.0), "");
        let is_flat = growth.is_some_and(|percent| percent <= 1.0 || !is_judged);
        report.require(is_flat || !options.flat, name);
    }
    let ends = [End::Expired, End::Completed, End::Cancelled].map(|end| load.ledger.ended(end));
    let happened = [stats.refused, stats.panicked].iter().chain(&ends).all(|count| *count > 0);
    report.require(happened, "something has never happened");
    report.print(false)
}

/// What was measured while it lasted: memory, and which faults came from outside.
#[derive(Default)]
struct Samples {
    /// In bytes for each entry that is pending, as the process asked its allocator for them: how
    /// many are pending depends on how fast the machine is just now.
    in_use: Vec<f64>,
    resident: Vec<f64>,
    /// The time that passed while the process was stopped, or had no core.
    stopped: Duration,
    /// How far the wall clock went from the monotonic one, in seconds: the least and the most.
    wall: [f64; 2],
}

impl Samples {
    fn take_for(&mut self, time: Duration, load: &Load) {
        let (start, wall) = (Instant::now(), SystemTime::now());
        let mut last = start;
        for step in 1.. {
            thread::sleep(Duration::from_millis(20));
            let gap = last.elapsed();
            last += gap;
            if gap > Duration::from_millis(200) {
                self.stopped += gap;
            }
            let since = match wall.elapsed() {
                Ok(since) => since.as_secs_f64(),
                Err(error) => -error.duration().as_secs_f64(),
            };
            let ahead = since - start.elapsed().as_secs_f64();
            self.wall = [self.wall[0].min(ahead), self.wall[1].max(ahead)];
            // Less often: the system walks the page tables for that.
            if step % 25 == 0 {
                self.in_use.push(counting::in_use() as f64 / load.timer.len() as f64);
                self.resident.push(resident() as f64);
            }
            if start.elapsed() >= time {
                return;
            }
        }
    }

    /// Says which faults were noticed, for the scripts that made them.
    fn tell(&self) {
        // Only `Debug` tells the clock that instants are made of.
        let text = format!("{:?}", Instant::now());
        let seconds = text.split_once("tv_sec: ").and_then(|(_, rest)| rest.split(',').next());
        println!(
            "monotonic clock {} s, stopped {:.1} s, wall clock set by {:.0} s",
            seconds.unwrap_or("0"),
            self.stopped.as_secs_f64(),
            self.wall[1] - self.wall[0],
        );
    }
}

/// Returns by how many percent the samples of the last quarter are greater than those of the third:
/// the first half is for warming up. `None` if they are too few, or zero.
fn growth(samples: &[f64]) -> Option<f64> {
    let median = |quarter: usize| {
        let size = samples.len() / 4;
        let mut values = samples[quarter * size..(quarter + 1) * size].to_vec();
        values.sort_by(f64::total_cmp);
        values.get(size / 2).copied()
    };
    let (third, last) = (median(2)?, median(3)?);
    (third > 0.0).then_some((last / third - 1.0) * 100.0)
}
