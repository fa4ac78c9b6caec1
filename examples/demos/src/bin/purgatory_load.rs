//! Kafka's own benchmark of its purgatory, `TestPurgatoryPerformance`, on this one.
//!
//! ```text
//! cargo run --profile bench -p demos --bin purgatory_load
//! cargo run --profile bench -p demos --bin purgatory_load -- --num 5000000 --rate 1500000 \
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
//! the rate and the latency, and shrinks with `--key-space-size`.
//!
//! The original draws the keys once, for all requests, completes requests by force, and never
//! triggers a key. `--kafka` does so, for figures that compare with Kafka's. Its completions wait
//! in a `DelayQueue`, and here in plain lists: no second timer runs beside the measured one.
//!
//! Every request is entered into a ledger, so that one that ends early, twice or never is found for
//! certain. The exit status is 1 if there was one, or if anything was left behind.

use clap::{Parser, ValueEnum, value_parser};
use demos::ledger::{End, Ledger, Request};
use demos::{Lateness, Report, peak_resident, resident, watch};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::f64::consts::TAU;
use std::mem;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};

/// Where the standard normal distribution has its 75th percentile: the original's constant.
const NORMAL_PCT75: f64 = 0.674490;
/// Keys of a request, as in the original.
const KEYS: usize = 3;
/// At most so many samples are drawn, as in the original, and used again and again.
const SAMPLES: u32 = 1_000_000;

/// Kafka's own benchmark of the purgatory, with the same options, and with all the books kept.
///
/// The exit status is 1 if a request ended early, twice or never, or if anything was left behind.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    #[arg(default_value_if("check", "true", "100000"))]
    #[arg(value_parser = value_parser!(u32).range(1..=100_000_000))]
    num: u32,

    /// Requests per second
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    #[arg(default_value_if("check", "true", "100000"))]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    rate: u32,

    /// Timeout of a request
    #[arg(long, value_name = "MS", default_value_t = 200)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600_000))]
    timeout: u64,

    /// Median of the latency
    #[arg(long, value_name = "MS", default_value_t = 20)]
    #[arg(value_parser = value_parser!(u32).range(1..=3_600_000))]
    pct50: u32,

    /// 75th percentile of the latency
    #[arg(long, value_name = "MS", default_value_t = 60)]
    #[arg(value_parser = value_parser!(u32).range(1..=3_600_000))]
    pct75: u32,

    /// Different keys that there are: as many as a large broker has partitions; 100 with --kafka
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(default_value_if("kafka", "true", "100"))]
    #[arg(value_parser = value_parser!(u32).range(1..=100_000_000))]
    key_space_size: u32,

    /// How requests are completed
    #[arg(long, value_name = "HOW", value_enum, default_value_t = CompleteBy::Trigger)]
    #[arg(default_value_if("kafka", "true", "force"))]
    complete_by: CompleteBy,

    /// Kafka's own set-up: keys drawn once, for all requests, which are completed by force
    #[arg(long, conflicts_with = "complete_by")]
    kafka: bool,

    /// Run briefly: 100,000 requests in a second, unless told otherwise
    #[arg(long)]
    check: bool,

    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompleteBy {
    /// Make its condition true, and trigger one of its keys: each key once in a millisecond
    Trigger,
    /// Force it by its handle, as the original does
    Force,
}

/// What is known of the requests, beside the purgatory.
struct Books {
    ledger: &'static Ledger,
    /// The conditions of the requests.
    holds: Box<[AtomicBool]>,
    completed_late: Lateness,
}

/// A request that waits in the purgatory.
struct Waiting {
    books: &'static Books,
    request: Request,
    /// It must not be completed before.
    due: Instant,
    end: Option<(End, Instant)>,
}

impl DelayedOperation for Waiting {
    fn try_complete(&mut self) -> bool {
        self.books.holds[self.request.slot as usize].load(Ordering::Acquire)
    }

    fn on_complete(&mut self) {
        self.end = Some((End::Completed, Instant::now()));
    }

    fn on_expiration(&mut self) {
        self.end = self.end.map(|(_, at)| (End::Expired, at));
    }
}

/// Only now is it certain how it ended: an expiry begins as a completion.
impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((end, at)) = self.end else { return };
        if self.books.ledger.end_at(self.request, end, at) && end == End::Completed {
            let early = u64::from(at < self.due);
            self.books.ledger.early.fetch_add(early, Ordering::Relaxed);
            let late = at.saturating_duration_since(self.due);
            self.books.completed_late.record(late.as_nanos() as u64);
        }
    }
}

/// How to complete a request that is due.
enum Due {
    Trigger { slot: u32, key: u32 },
    Force(Pending<u32, Waiting>),
}

/// What is to be completed, by the millisecond since the start.
struct Queue {
    start: Instant,
    due: Mutex<BTreeMap<u128, Vec<Due>>>,
}

impl Queue {
    fn add(&self, at: Instant, due: Due) {
        let millisecond = (at - self.start).as_nanos().div_ceil(1_000_000);
        self.lock().entry(millisecond).or_default().push(due);
    }

    /// Takes what is due now.
    fn take(&self) -> BTreeMap<u128, Vec<Due>> {
        let mut due = self.lock();
        let later = due.split_off(&(self.start.elapsed().as_millis() + 1));
        mem::replace(&mut *due, later)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u128, Vec<Due>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = Options::parse();
    let ledger = Ledger::open(options.num as usize);
    let holds = (0..options.num).map(|_| AtomicBool::new(false)).collect();
    let books = Books {
        ledger,
        holds,
        completed_late: Lateness::default(),
    };
    let books: &'static Books = Box::leak(Box::new(books));
    let timer = Timer::builder().name("expiry").start()?;
    let purgatory = Purgatory::new(&timer);
    let queue = Queue {
        start: Instant::now(),
        due: Mutex::default(),
    };
    let samples = samples(&options);
    let empty = resident();
    let stop = AtomicBool::new(false);

    let (generated, elapsed, triggers) = thread::scope(|scope| {
        let generator = scope.spawn(|| generate(&options, &samples, books, &purgatory, &queue));
        let completer = scope.spawn(|| complete(books, &purgatory, &queue, &stop));
        let start = Instant::now();
        let ended = || purgatory.stats().completed() + purgatory.stats().expired;
        let total = || ended() + purgatory.len() as u64;
        let state = || format!("{} delayed, {} ended", purgatory.len(), ended());
        watch(|| generator.is_finished(), total, state);
        let generated = generator.join();
        let elapsed = start.elapsed();
        let last = Instant::now() + Duration::from_millis(options.timeout);
        books.ledger.wait_for_those_due(last);
        stop.store(true, Ordering::Release);
        (generated, elapsed, completer.join())
    });
    let (longest_delay, refused) = generated.map_err(|_| "the generator has died")?;
    let triggers = triggers.map_err(|_| "the completer has died")?;

    let behind = timer.shutdown().len(); // And the reaper has finished its batch.
    let stats = purgatory.stats();
    let ledger = books.ledger;
    let mut report = Report::default();
    let rate = f64::from(options.num) / elapsed.as_secs_f64();
    report.figure("enqueue_rate", rate, "requests per second, by one thread");
    let longest_delay = longest_delay.as_secs_f64() * 1e3;
    report.figure(
        "longest_delay_ms",
        longest_delay,
        "of an add, after its arrival",
    );
    let late = books.completed_late.quantiles();
    report.quantiles("completion_late_us", late, "from the drawn latency");
    report.quantiles(
        "expiry_late_us",
        ledger.lateness.quantiles(),
        "from the deadline",
    );
    let grown = peak_resident().saturating_sub(empty) as f64;
    report.figure(
        "peak_mb",
        grown / 1e6,
        "resident, beside the ledger and the samples",
    );
    report.count("triggers", triggers, "keys, each once in a millisecond");
    ledger.report(&mut report);
    report.none("refused", refused, "without a reason");
    let left = behind + stats.watched + purgatory.shutdown().len() + queue.lock().len();
    report.none("left", left as u64, "entries, when all had ended");
    let counts = [stats.completed(), stats.expired];
    let agrees = counts == [End::Completed, End::Expired].map(|end| ledger.ended(end));
    report.require(agrees, "stats() does not agree with the ledger");
    Ok(report.print(options.json))
}

/// Draws when requests arrive, in nanoseconds after the one before, and how long they take.
///
/// Beforehand: logarithms would take as long as all that the generator does for a request.
fn samples(options: &Options) -> Vec<(f64, Duration)> {
    let mut random = Rng::with_seed(1);
    // Greater than 0, so that it has a logarithm.
    let mut uniform = || 1.0 - random.f64();
    // Mean and standard deviation of the latency's logarithm.
    let mu = (f64::from(options.pct50) * 1e6).ln();
    let sigma = (f64::from(options.pct75) / f64::from(options.pct50)).ln() / NORMAL_PCT75;
    let mut draw = |_| {
        let interval = -uniform().ln() * 1e9 / f64::from(options.rate);
        // By Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
        let normal = (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos();
        (
            interval,
            Duration::from_nanos((mu + sigma * normal).exp() as u64),
        )
    };
    (0..options.num.min(SAMPLES)).map(&mut draw).collect()
}

/// Adds all requests. Returns by how much one was added after its arrival, at most, and how many
/// the purgatory refused: it has no reason to.
fn generate(
    options: &Options,
    samples: &[(f64, Duration)],
    books: &'static Books,
    purgatory: &Purgatory<u32, Waiting>,
    queue: &Queue,
) -> (Duration, u64) {
    let timeout = Duration::from_millis(options.timeout);
    let mut random = Rng::with_seed(2);
    let mut keys = [0; KEYS];
    let start = Instant::now();
    let mut arrival = 0.0;
    let mut longest_delay = Duration::ZERO;
    let mut refused = 0;
    for (slot, (interval, latency)) in (0..options.num).zip(samples.iter().cycle()) {
        // From arrival to arrival, not from now: the code that is late catches up.
        arrival += interval;
        let arrives = start + Duration::from_nanos(arrival as u64);
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        longest_delay = longest_delay.max(now - arrives);

        if slot == 0 || !options.kafka {
            keys.fill_with(|| random.u32(0..options.key_space_size));
        }
        let due = now + *latency;
        let is_completed = *latency < timeout;
        // As in the original the completion comes first: it may overtake what follows.
        if is_completed && options.complete_by == CompleteBy::Trigger {
            queue.add(
                due,
                Due::Trigger {
                    slot,
                    key: keys[slot as usize % KEYS],
                },
            );
        }
        let Some(request) = books.ledger.enter(slot as usize, now + timeout) else {
            continue;
        };
        let waiting = Waiting {
            books,
            request,
            due,
            end: None,
        };
        match purgatory.try_complete_else_watch(waiting, now + timeout, &keys) {
            Ok(watch) if is_completed && options.complete_by == CompleteBy::Force => {
                // Here it can't come first: there is no handle before.
                if let Some(pending) = watch.pending() {
                    queue.add(due, Due::Force(pending));
                }
            }
            Ok(_) => {}
            Err(_) => refused += 1,
        }
    }
    (longest_delay, refused)
}

/// Ends requests when their latency has passed, until it is stopped. Returns how many triggers
/// there were.
fn complete(
    books: &Books,
    purgatory: &Purgatory<u32, Waiting>,
    queue: &Queue,
    stop: &AtomicBool,
) -> u64 {
    let mut keys = BTreeSet::new();
    let mut triggers = 0;
    while !stop.load(Ordering::Acquire) || !queue.lock().is_empty() {
        for due in queue.take().into_values().flatten() {
            match due {
                Due::Force(pending) => _ = pending.force_complete(),
                Due::Trigger { slot, key } => {
                    books.holds[slot as usize].store(true, Ordering::Release);
                    keys.insert(key);
                }
            }
        }
        triggers += keys.len() as u64;
        // Not a trigger for each request: it checks every request of its key. A broker does the
        // same: it triggers a partition once for a batch of records that came in together.
        for key in mem::take(&mut keys) {
            purgatory.check_and_complete(&key);
        }
        thread::sleep(Duration::from_nanos(
            1_000_000 - queue.start.elapsed().as_nanos() as u64 % 1_000_000,
        ));
    }
    triggers
}
