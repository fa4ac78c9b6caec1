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
mod faults;
mod ledger;
mod load;
#[path = "../../../common/random.rs"]
mod random;
mod report;
mod samples;

use clap::{Parser, value_parser};
use ledger::Ledger;
use load::{Load, Worker};
use report::Report;
use samples::Samples;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// Only a timer that has forgotten something takes that long, wherever the cores went.
const PATIENCE: Duration = Duration::from_secs(60);

/// Timers, keys and operations on the real clock, with faults.
#[derive(Clone, Debug, Parser)]
#[command(name = "endurance")]
pub(crate) struct Options {
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

    /// Fail if memory grows by more than one percent; the resident one if it lasts five minutes
    #[arg(long)]
    flat: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    faults::report_unplanted_panics();
    let ledger = Arc::new(Ledger::new(options.threads, options.slots));
    let load = Load::new(&options, &ledger);
    let (stop, mut samples) = (AtomicBool::new(false), Samples::new());
    thread::scope(|scope| {
        for thread in 0..options.threads {
            let (load, stop) = (&load, &stop);
            scope.spawn(move || Worker::new(load, thread).work(stop));
        }
        samples.take_for(Duration::from_secs(options.seconds));
        stop.store(true, SeqCst);
    });
    let start = Instant::now();
    let unsettled = || ledger.due(load.timer.now() - Duration::from_nanos(options.tick_ns));
    // Looked at once a time: more fall due meanwhile.
    let overdue = loop {
        let overdue = unsettled();
        if overdue == 0 || start.elapsed() >= PATIENCE {
            break overdue;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let stats = load.timer.stats();
    load.end();
    let report = Report { ledger: &ledger, samples: &samples, stats, overdue, flat: options.flat };
    println!("{report}");
    ExitCode::from(u8::from(!report.is_clean()))
}
