//! Overload: up to ten times more than can be done, and what gives way.
//!
//! ```text
//! cargo run --profile bench -p demos --bin overload
//! cargo run --profile bench -p demos --bin overload -- --seconds 1 --check
//! ```
//!
//! What expires is handed to a service that finishes 20,000 a second, and no more. The load is a
//! share of that, up to ten times as much, and at last as much as the threads can add. The service
//! is run in place, on the reaper, or by a worker with a bounded queue. At most 20,000 timers may
//! be pending. Then the load falls to a half, and it is measured how long lateness lasts. Every
//! timer is in a ledger. Each measurement is a process of its own, because memory that was used
//! once is seldom given back.

use clap::{Parser, ValueEnum, value_parser};
use demos::ledger::{End, Ledger, Request};
use demos::{peak_resident, progress, rounded, table};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::error::Error;
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};
use tickwheel::{Timer, TimerEntry, Worker};

/// What the service finishes in a second.
const CAPACITY: f64 = 20_000.0;
/// How many may be pending: what the service can do in a second.
const MAX_PENDING: usize = 20_000;
/// How many may be queued for the worker: what the service can do in a tenth of a second.
const QUEUE: usize = 2_000;
/// Slots of a thread in the ledger: as many as can be pending, or be on their way.
const SLOTS: usize = MAX_PENDING + 10_000;
/// What a process may take with all pending that may be; without any it takes about 5 MB.
const MOST_RESIDENT_MB: f64 = 64.0;
/// Later than that is late, for a recovery: other programs make timers late as well.
const LATE: Duration = Duration::from_millis(50);
/// As much as the threads can add.
const ALL: f64 = f64::INFINITY;

/// Up to ten times more than can be done, and what gives way.
///
/// The exit status is 1 if a timer was early, lost, or ended twice, or if what was pending or
/// resident was not bounded.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// How long each load lasts
    #[arg(long, value_name = "S", default_value_t = 3)]
    #[arg(value_parser = value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Only half of what can be served, ten times as much, and all
    #[arg(long)]
    check: bool,

    /// One measurement, in this process
    #[arg(long, hide = true, requires = "load")]
    only: Option<Place>,

    #[arg(long, hide = true)]
    load: Option<f64>,
}

/// Where it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    Reaper,
    Worker,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    place: Place,
    /// What was offered, as a multiple of what can be served.
    load: f64,
    served_per_s: u64,
    /// By the worker.
    shed_per_s: u64,
    /// By `add`.
    refused_per_s: u64,
    late_p50_ms: f64,
    late_p99_ms: f64,
    /// At the end of the load.
    pending: usize,
    resident_mb: f64,
    /// How long lateness lasted after the load had fallen to a half.
    recovery_ms: u64,
    early: u64,
    lost: u64,
    twice: u64,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = Options::parse();
    if let Some((place, load)) = options.only.zip(options.load) {
        let row = measure(place, load, Duration::from_secs(options.seconds))?;
        writeln!(io::stdout(), "{}", json!(row))?;
        return Ok(ExitCode::SUCCESS);
    }
    let loads: &[f64] = if options.check {
        &[0.5, 10.0, ALL]
    } else {
        &[0.25, 0.5, 0.8, 1.25, 2.0, 5.0, 10.0, ALL]
    };
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for (name, place) in [("reaper", Place::Reaper), ("worker", Place::Worker)] {
        for load in loads {
            progress(&format!("{place:?} at {load}"));
            let row = in_a_process(&options, name, *load)?;
            let is_refused = row.shed_per_s + row.refused_per_s > 0 || *load != ALL;
            let is_bounded = row.pending <= MAX_PENDING && row.resident_mb <= MOST_RESIDENT_MB;
            if row.early + row.lost + row.twice > 0 || !is_refused || !is_bounded {
                wrong.push(row.clone());
            }
            rows.push(row);
        }
    }
    let objects: Vec<_> = rows
        .iter()
        .filter_map(|row| json!(row).as_object().cloned())
        .collect();
    // Nobody may be listening any more: the exit status tells all the same.
    let _ = writeln!(io::stdout(), "{}", table(&objects));
    wrong
        .iter()
        .for_each(|row| eprintln!("overload: this must not be: {row:?}"));
    Ok(ExitCode::from(u8::from(!wrong.is_empty())))
}

fn in_a_process(options: &Options, place: &str, load: f64) -> Result<Row, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--only", place, "--load", &load.to_string()]);
    command.args(["--seconds", &options.seconds.to_string()]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{place} at {load}: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// So many turns a second, in the long run.
struct Pace {
    period: Duration,
    next: Instant,
}

impl Pace {
    fn new(per_second: f64) -> Self {
        Pace {
            period: Duration::from_secs_f64(1.0 / per_second),
            next: Instant::now(),
        }
    }

    /// Waits for the next turn. It may be a millisecond ahead, for systems wake nobody for less,
    /// and make up for a tenth of a second.
    fn wait(&mut self) {
        let now = Instant::now();
        self.next = self.next.max(now - Duration::from_millis(100)) + self.period;
        if self.next > now + Duration::from_millis(1) {
            thread::sleep(self.next - now);
        }
    }
}

/// A timer's task: a request, and when it is due.
type Due = (Request, Instant);

/// Where what has expired is served, one at a time.
struct Service {
    ledger: &'static Ledger,
    turns: Mutex<Pace>,
    start: Instant,
    /// Requests that the worker refused.
    shed: AtomicU64,
    /// When the last one was served late, in nanoseconds since the start.
    last_late: AtomicU64,
}

impl Service {
    fn serve(&self, (request, deadline): Due) {
        self.ledger
            .early
            .fetch_add(u64::from(Instant::now() < deadline), Relaxed);
        self.turns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wait();
        self.ledger.end(request, End::Expired);
        if deadline.elapsed() > LATE {
            self.last_late
                .store(self.start.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    fn shed(&self, (request, _): Due) {
        self.shed.fetch_add(1, Relaxed);
        self.ledger.end(request, End::Returned);
    }

    /// Adds requests from each thread until the end. Returns how many were offered, and how many of
    /// them refused.
    fn load(&self, timer: &Timer<Due>, load: f64, end: Instant) -> (u64, u64) {
        let offered = AtomicU64::new(0);
        let refused = AtomicU64::new(0);
        let threads = threads();
        let add = |thread: usize| {
            let mut random = Rng::with_seed(0);
            let mut slots = (0..SLOTS).cycle();
            let mut pace = Pace::new(load * CAPACITY / threads as f64);
            while Instant::now() < end {
                pace.wait();
                let deadline = Instant::now() + Duration::from_micros(random.u64(10_000..50_000));
                let enter = |slot| self.ledger.enter(thread * SLOTS + slot, deadline);
                // Some slots are taken still when their turn comes again; there are enough.
                let Some(request) = slots.find_map(enter) else {
                    return;
                };
                offered.fetch_add(1, Relaxed);
                if timer
                    .add(TimerEntry::at(deadline, (request, deadline)))
                    .is_err()
                {
                    self.ledger.end(request, End::Returned);
                    refused.fetch_add(1, Relaxed);
                }
            }
        };
        let add = &add;
        thread::scope(|scope| (0..threads).for_each(|thread| _ = scope.spawn(move || add(thread))));
        (offered.into_inner(), refused.into_inner())
    }
}

fn threads() -> usize {
    available_parallelism().map_or(1, usize::from).min(16)
}

/// Measures a load, and the recovery from it.
fn measure(place: Place, load: f64, lasts: Duration) -> Result<Row, Box<dyn Error>> {
    let ledger = Ledger::open(threads() * SLOTS);
    let service = Arc::new(Service {
        ledger,
        turns: Mutex::new(Pace::new(CAPACITY)),
        start: Instant::now(),
        shed: AtomicU64::new(0),
        last_late: AtomicU64::new(0),
    });
    let serving = Arc::clone(&service);
    let shedding = Arc::clone(&service);
    let serve = move |due| serving.serve(due);
    let shed = move |due| shedding.shed(due);
    let builder = Timer::builder().name("overload").max_pending(MAX_PENDING);
    let timer = match place {
        Place::Reaper => builder.executor(serve).start()?,
        Place::Worker => builder
            .executor(Worker::bounded("worker", QUEUE, serve)?)
            .on_refused(shed)
            .start()?,
    };
    let (offered, refused) = service.load(&timer, load, service.start + lasts);
    let eased = Instant::now();
    let pending = timer.len();
    let served = ledger.ended(End::Expired);
    let shed = service.shed.load(Relaxed);
    let late = ledger.lateness.quantiles();
    // The other half of its time is left to catch up.
    service.load(&timer, 0.5, eased + lasts + Duration::from_secs(1));

    ledger.wait_for_those_due(Instant::now() + LATE);
    drop(timer.shutdown());
    let last_late = service.start + Duration::from_nanos(service.last_late.load(Relaxed));
    let recovery = last_late.saturating_duration_since(eased);
    let per_s = |count: u64| (count as f64 / (eased - service.start).as_secs_f64()) as u64;
    Ok(Row {
        place,
        load: (per_s(offered) as f64 / CAPACITY * 100.0).round() / 100.0,
        served_per_s: per_s(served),
        shed_per_s: per_s(shed),
        refused_per_s: per_s(refused),
        late_p50_ms: rounded(late.p50 / 1e3),
        late_p99_ms: rounded(late.p99 / 1e3),
        pending,
        resident_mb: rounded(peak_resident() as f64 / 1e6),
        recovery_ms: recovery.as_millis() as u64,
        early: ledger.early.load(Relaxed),
        lost: ledger.left(),
        twice: ledger.twice(),
    })
}
