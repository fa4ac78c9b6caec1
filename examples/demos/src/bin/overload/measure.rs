//! One measurement: a system under a load, and its recovery.

use crate::adder::{self, SLOTS};
use crate::options::{Load, Options};
use crate::report::Row;
use crate::service::CAPACITY;
use crate::system::{Kind, System};
use demos::figures::{Lateness, rate};
use demos::memory;
use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

/// The load after the overload: a half leaves the other half to catch up.
const AFTER: Load = Load::Times(0.5);
/// Only a system that has forgotten something takes that long to its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most that was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    pending: usize,
    resident: u64,
}

pub(crate) fn measure(options: &Options, kind: Kind, load: Load) -> Result<Row, Box<dyn Error>> {
    let threads = available_parallelism().map_or(1, usize::from).min(16);
    let system = System::new(kind, u32::try_from(threads * SLOTS)?)?;
    let (most, stop) = (Mutex::new(Most::default()), AtomicBool::new(false));
    let (start, expiry) = (Instant::now(), &system.expiry);
    let lasts = Duration::from_secs(options.seconds);
    let (tally, served, handed_over, shed, eased) = thread::scope(|scope| {
        scope.spawn(|| watch(&system, &most, &stop));
        let tally = adder::add(&system, threads, load, start + lasts);
        let eased = Instant::now();
        let (served, shed) = (expiry.ledger.expired().clone(), expiry.shed.load(Relaxed));
        let handed_over = system.timer.stats().lateness.quantile(0.99).unwrap_or_default();
        adder::add(&system, threads, AFTER, eased + lasts + Duration::from_secs(1));
        stop.store(true, Relaxed);
        (tally, served, handed_over, shed, eased)
    });
    let expiry = system.end(PATIENCE);
    let seconds = (eased - start).as_secs_f64();
    let most = *most.lock().expect("nobody panics with it");
    if most.resident == 0 {
        return Err("resident memory cannot be read".into());
    }
    let Lateness { p50, p99, max, .. } = Lateness::new(&served.lateness);
    let milliseconds = |microseconds: Option<f64>| microseconds.unwrap_or(0.0) / 1e3;
    Ok(Row {
        system: kind.name().to_owned(),
        load: tally.offered as f64 / seconds / CAPACITY,
        flat_out: load == Load::FlatOut,
        offered_per_s: rate(tally.offered, seconds),
        refused_per_s: rate(tally.refused, seconds),
        shed_per_s: rate(shed, seconds),
        served_per_s: rate(served.count, seconds),
        bound_ms: kind.most_ahead() as f64 / CAPACITY * 1e3,
        late_p50_ms: milliseconds(p50),
        late_p99_ms: milliseconds(p99),
        late_max_ms: milliseconds(max),
        handed_over_p99_ms: handed_over.as_secs_f64() * 1e3,
        pending_max: most.pending,
        resident_max_mb: most.resident as f64 / 1e6,
        recovery_ms: expiry.late_after(eased).as_secs_f64() * 1e3,
        early: expiry.early.load(Relaxed) + expiry.ledger.expired().early,
        lost: expiry.ledger.pending_in_all(),
        twice: expiry.ledger.twice(),
    })
}

fn watch(system: &System, most: &Mutex<Most>, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        thread::sleep(Duration::from_millis(20));
        let (pending, resident) = (system.timer.len(), memory::resident().unwrap_or(0));
        let mut most = most.lock().expect("nobody panics with it");
        most.pending = pending.max(most.pending);
        most.resident = resident.max(most.resident);
    }
}
