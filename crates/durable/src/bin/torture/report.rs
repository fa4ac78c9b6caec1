//! What the ledgers say, and whether each promise was kept.

use crate::LEASE;
use crate::faults::{Fault, Kind, SHADOW, Scene};
use crate::load::{Cancel, Written};
use crate::node::{Fire, Ledgers};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

#[derive(Serialize)]
pub(crate) struct Report {
    seed: u64,
    scheduled: u64,
    fired: u64,
    cancelled: u64,
    lost: u64,
    cancelled_yet_fired: u64,
    early: u64,
    duplicates: u64,
    /// What was claimed and not acknowledged as faults came.
    in_flight_bound: u64,
    lateness_ms: Lateness,
    /// How late the latest timer was of those due while a killed node's were nobody's, and nothing
    /// else befell.
    takeover_ms: u64,
    /// Fires later than the page's bound.
    too_late: u64,
    /// Timers that had not ended when it was waited for them.
    left: i64,
    faults: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct Lateness {
    p50: f64,
    p99: f64,
    max: f64,
    /// Of timers that were due while nothing befell.
    calm_p50: f64,
    calm_p99: f64,
}

/// How late a timer may be in calm, and after a fault's consequences: far more than it is, so that
/// a busy machine breaks no promise.
const SLACK: i64 = 5_000_000;
/// The same as said there, in microseconds.
const BEFORE: i64 = SHADOW.as_micros() as i64;

fn aftermath(kind: Kind) -> i64 {
    kind.aftermath().as_micros() as i64
}

impl Report {
    pub(crate) fn new(
        seed: u64,
        written: &HashMap<u64, Written>,
        ledgers: Ledgers,
        scene: &Scene<'_>,
        left: i64,
    ) -> Self {
        let Ledgers { mut fired, aborts } = ledgers;
        let Scene { faults, settings, .. } = scene;
        // Those that were seen as well, which may have been a while after: as what was in flight.
        let abort = |at: i64| Fault { kind: Kind::Abort, from: at, to: at, in_flight: 0 };
        let faults = &[faults.clone(), aborts.into_iter().map(abort).collect()].concat();
        let early = |fire: &&Fire| settings.at_most(fire.at) < fire.due;
        let early = fired.values().flatten().filter(early);
        let early = early.inspect(|fire| {
            let by = (fire.due - settings.at_most(fire.at)) / 1_000;
            eprintln!("{by} ms early: {fire:?}, {settings:?}");
        });
        let early = early.count() as u64;
        // From here on by this machine's clock. Late is what fires after it could: after its
        // schedule was answered.
        for (number, fires) in &mut fired {
            let answered = written.get(number).and_then(|written| written.answered);
            for fire in fires {
                // What was never answered was committed at some time or other.
                fire.due = settings.reached(fire.due, fire.at).max(answered.unwrap_or(fire.at));
            }
        }
        let fired = &fired;
        let certain = || written.iter().filter(|(_, written)| written.answered.is_some());
        let count = |of: &dyn Fn(u64, &Written) -> bool| {
            certain().filter(|(number, written)| of(**number, written)).count() as u64
        };
        let has_fired = |number| fired.contains_key(&number);
        let fires = || fired.values().flatten();
        // What came just after a fault also counts: it was in flight as its consequence.
        let in_flight = faults.iter().map(|fault| fault.in_flight.unsigned_abs() + 500).sum();
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for fault in faults {
            *kinds.entry(format!("{:?}", fault.kind).to_lowercase()).or_default() += 1;
        }
        Report {
            seed,
            scheduled: count(&|_, _| true),
            fired: fired.len() as u64,
            cancelled: count(&|_, written| written.cancel == Cancel::Cancelled),
            lost: count(&|number, w| w.cancel == Cancel::None && !has_fired(number)),
            cancelled_yet_fired: count(&|number, w| {
                w.cancel == Cancel::Cancelled && has_fired(number)
            }),
            early,
            duplicates: (fires().count() - fired.len()) as u64,
            in_flight_bound: in_flight,
            lateness_ms: lateness(fired, faults),
            takeover_ms: takeover(fired, faults),
            too_late: too_late(fired, faults),
            left,
            faults: kinds,
        }
    }

    /// Says which promises were broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        let broken = [
            ("nothing was fired", self.fired == 0),
            ("timers were lost", self.lost > 0),
            ("cancelled timers fired", self.cancelled_yet_fired > 0),
            ("timers were early", self.early > 0),
            ("more ran twice than were in flight", self.duplicates > self.in_flight_bound),
            ("timers were later than they may be", self.too_late > 0),
            ("timers had not ended", self.left > 0),
        ];
        let broken: Vec<&str> =
            broken.iter().filter(|(_, is)| *is).map(|(what, _)| *what).collect();
        if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
    }
}

/// Returns when a timer must have fired: faults whose consequences overlap count as one.
fn latest(due: i64, faults: &[Fault]) -> i64 {
    let mut latest = due;
    for fault in faults {
        if fault.from <= latest + BEFORE {
            latest = latest.max(fault.to + aftermath(fault.kind));
        }
    }
    latest + SLACK
}

/// Counts fires that were later than they may be, and says which.
fn too_late(fired: &HashMap<u64, Vec<Fire>>, faults: &[Fault]) -> u64 {
    let mut count = 0;
    for (number, fire) in fired.iter().flat_map(|(n, fires)| fires.iter().map(move |f| (n, f))) {
        if fire.at > latest(fire.due, faults) {
            count += 1;
            let before = faults.iter().rev().find(|fault| fault.from <= fire.at);
            let since = before.map_or(0, |fault| (fire.due - fault.from) / 1_000);
            eprintln!(
                "timer {number}, attempt {}: {} ms late, due {since} ms after {:?} began",
                fire.attempt,
                (fire.at - fire.due) / 1_000,
                before.map(|fault| fault.kind),
            );
        }
    }
    count
}

/// Returns whether a fault may make a timer late that is due then.
fn touches(fault: &Fault, due: i64) -> bool {
    due >= fault.from - BEFORE && due <= fault.to + aftermath(fault.kind) + BEFORE
}

fn lateness(fired: &HashMap<u64, Vec<Fire>>, faults: &[Fault]) -> Lateness {
    let mut all = Histogram::<u64>::new(3).expect("three digits");
    let mut calm = all.clone();
    // The first time each: a later one is a duplicate or a retry.
    for fire in fired.values().filter_map(|fires| fires.iter().min_by_key(|fire| fire.at)) {
        let late = (fire.at - fire.due).max(0).unsigned_abs();
        let _ = all.record(late); // It grows as it must.
        if !faults.iter().any(|fault| touches(fault, fire.due)) {
            let _ = calm.record(late);
        }
    }
    let ms = |of: &Histogram<u64>, at| of.value_at_quantile(at) as f64 / 1_000.0;
    let (p50, p99, max) = (ms(&all, 0.5), ms(&all, 0.99), ms(&all, 1.0));
    Lateness { p50, p99, max, calm_p50: ms(&calm, 0.5), calm_p99: ms(&calm, 0.99) }
}

fn takeover(fired: &HashMap<u64, Vec<Fire>>, faults: &[Fault]) -> u64 {
    let lease = LEASE.as_micros() as i64;
    let within = |due: i64| {
        let mut all = faults.iter().filter(|fault| touches(fault, due));
        let only = all.next().filter(|_| all.next().is_none());
        only.is_some_and(|fault| {
            fault.kind == Kind::Kill && (fault.from..fault.from + lease).contains(&due)
        })
    };
    let late = fired.values().flatten().filter(|fire| within(fire.due));
    let late = late.map(|fire| (fire.at - fire.due).max(0).unsigned_abs());
    late.max().unwrap_or(0) / 1_000
}
