//! Kafka's own benchmark of its purgatory, `TestPurgatoryPerformance`, on this one.
//!
//! ```text
//! cargo run --release -p demos --bin purgatory_load
//! cargo run --release -p demos --bin purgatory_load -- --num 5000000 --rate 1500000 \
//!     --timeout 200 --pct50 20 --pct75 60 --complete-by force
//! ```
//!
//! One thread adds requests, as a Poisson process. Each is watched on a few keys, with a timeout,
//! and has a latency from a log-normal distribution: if that is less than the timeout, a second
//! thread completes the request when the latency has passed; otherwise it expires.
//!
//! This one does what brokers do: in each millisecond it makes the conditions of all requests true
//! that are due, and triggers one key of each, every key once. A trigger checks all requests that
//! wait on its key, and all but the one or the few that are due in vain: their number grows with
//! the rate and the latency, and shrinks with `--key-space-size`. If that takes longer than a
//! millisecond, more completions come together in the next round, and are late.
//!
//! The original draws the keys once, for all requests, completes requests by force, and never
//! triggers a key. `--kafka` does so, for figures that compare with Kafka's.
//!
//! What is measured is the purgatory and its timer, so little else is to run: the samples are drawn
//! beforehand, requests wait for their completion in plain lists, and a look at the clock is good
//! for several of them. So the lateness that is reported lacks some microseconds, and more where a
//! thread was held up between its look and an end. Whether an end was early is certain.
//!
//! Every request is entered into a ledger, so that one that ends early, twice or never is found for
//! certain. The exit status is 1 if there was one, or if anything was left behind.

mod clock;
mod completer;
mod generator;
mod ledger;
mod options;
mod process;
mod report;
mod sampler;

use completer::Completer;
use demos::figures::{grouped, rate};
use demos::memory;
use demos::progress::Progress;
use generator::Generator;
use ledger::{Book, Ledger, Request};
use options::Options;
use report::{Left, Measured, Report};
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::purgatory::Purgatory;

/// How long the last requests may take to end before they are given up.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let options = Options::from_command_line();
    match load(&options) {
        Ok(report) => {
            let text = if options.json { report.to_json() } else { report.to_string() };
            // Nobody may be listening any more: the exit status tells all the same.
            let _ = writeln!(std::io::stdout(), "{text}");
            for fault in report.faults() {
                let _ = writeln!(std::io::stderr(), "purgatory_load: {fault}");
            }
            ExitCode::from(u8::from(!report.faults().is_empty()))
        }
        Err(error) => {
            eprintln!("purgatory_load: {error}");
            ExitCode::from(2)
        }
    }
}

fn load(options: &Options) -> Result<Report, Box<dyn Error>> {
    let ledger = Ledger::open(options.num, options.timeout_nanos());
    let timer = Timer::builder().name("expiry").executor(ledger.clock).start()?;
    let purgatory: Purgatory<u32, Request> = Purgatory::new(&timer);
    let completer = Completer::start(purgatory.clone(), ledger, options.key_space_size)?;
    let queue = completer.queue.clone();
    let generator = Generator::new(options, ledger, purgatory.clone(), queue.clone());

    let start_bytes = memory::resident();
    let cpu = process::cpu_seconds();
    let (done, is_done) = mpsc::channel();
    let run = move || {
        let generated = generator.run();
        let _ = done.send(());
        generated
    };
    let generator = thread::Builder::new().name("generator".to_owned()).spawn(run)?;
    watch(&purgatory, &is_done);
    let generated = generator.join().map_err(|_| "the generator has died")?;
    wait_for_last(options, &purgatory, ledger);

    let triggers = completer.stop().ok_or("the completer has died")?;
    let cpu_seconds = process::cpu_seconds().zip(cpu).map(|(after, before)| after - before);
    let stats = purgatory.stats();
    let fired = timer.stats().expired;
    let left = Left {
        watched: purgatory.watched(),
        delayed: purgatory.delayed(),
        expiries: timer.len(),
        completions: queue.len(),
    };
    let (peak_bytes, end_bytes) = (process::peak_memory(), memory::resident());
    drop(purgatory.shutdown());
    drop(timer.shutdown()); // This ends the last thread that keeps a book.
    let measured = Measured {
        generated,
        triggers,
        cpu_seconds,
        stats,
        in_vain: fired.saturating_sub(stats.expired),
        left,
        start_bytes,
        peak_bytes,
        end_bytes,
        book: Book::total(),
        lost: ledger.open_requests(),
        twice: ledger.twice(),
    };
    Ok(Report::new(options, measured))
}

/// Shows every second how the purgatory stands, until the generator is done.
fn watch(purgatory: &Purgatory<u32, Request>, is_done: &Receiver<()>) {
    let progress = Progress::default();
    let start = Instant::now();
    let mut last = (start, 0);
    for second in 1.. {
        let next = start + Duration::from_secs(second);
        let pause = next.saturating_duration_since(Instant::now());
        if is_done.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let (now, stats) = (Instant::now(), purgatory.stats());
        let completed =
            stats.completed_at_once + stats.completed_by_trigger + stats.completed_by_force;
        let added = stats.delayed as u64 + completed + stats.expired;
        progress.show(&format!(
            "{second:>4} s  {:>10} requests/s  delayed {:>9}  completed {:>11}  expired {:>10}",
            grouped(rate(added - last.1, (now - last.0).as_secs_f64())),
            grouped(stats.delayed as u64),
            grouped(completed),
            grouped(stats.expired),
        ));
        last = (now, added);
    }
    progress.end();
}

/// Waits until all requests have ended.
fn wait_for_last(options: &Options, purgatory: &Purgatory<u32, Request>, ledger: &Ledger) {
    let give_up = Instant::now() + options.timeout() + PATIENCE;
    // The purgatory's own count first: that is quick.
    let is_waiting = || purgatory.delayed() > 0 || ledger.open_requests() > 0;
    while is_waiting() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(10));
    }
}
