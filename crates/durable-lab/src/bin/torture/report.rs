//! What the ledgers say, and whether each promise was kept.

use crate::LEASE;
use crate::clock::Settings;
use crate::faults::{Fault, Kind, SHADOW, Scene};
use crate::load::{Cancel, Told, Written};
use crate::node::Fire;
use crate::probe::Look;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

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
    /// Timers that were given up and ended no process.
    innocent_dead: i64,
    /// How many nodes rested in each silence of the load.
    rested: Vec<i64>,
    /// How late the first timers after a silence were, at most, where nothing else befell.
    woken_ms: u64,
    faults: BTreeMap<String, u64>,
}

/// In milliseconds.
#[derive(Serialize)]
struct Lateness {
    all: Percentiles,
    /// Of what was due while nothing befell.
    calm: Percentiles,
    /// What the machine took in calm by itself: a commit longer, a sleep longer than it should.
    /// What other programs use of it is in both.
    bare_commit: Percentiles,
    bare_sleep: Percentiles,
    /// Of those of which very many were due at the same moment; nothing beside them is calm.
    mass: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    count: u64,
    p50: f64,
    p99: f64,
    max: f64,
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
        told: Told,
        aborts: &[i64],
        scene: &Scene<'_>,
        looks: &[Look],
        (left, innocent_dead): (i64, i64),
    ) -> Self {
        let Told {
            mut written,
            silences,
        } = told;
        let early = reckon(&mut written, &scene.settings);
        // Those that were seen as well, which may have been a while after: as what was in flight.
        let abort = |at: &i64| Fault {
            kind: Kind::Abort,
            from: *at,
            to: *at,
            in_flight: 0,
        };
        let wake = |(at, _): &(i64, i64)| Fault {
            kind: Kind::Wake,
            ..abort(at)
        };
        let more = aborts.iter().map(abort).chain(silences.iter().map(wake));
        let mut faults: Vec<Fault> = scene.faults.iter().copied().chain(more).collect();
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for fault in &faults {
            *kinds
                .entry(format!("{:?}", fault.kind).to_lowercase())
                .or_default() += 1;
        }
        faults.retain(|fault| fault.kind.disturbs());
        faults.sort_by_key(|fault| fault.from); // One may touch what another one has touched.
        let certain: Vec<_> = written.iter().filter(|it| it.answered.is_some()).collect();
        let count = |of: fn(&Written) -> bool| certain.iter().filter(|it| of(it)).count() as u64;
        let fires: usize = written.iter().map(|it| it.fires.len()).sum();
        let fired = written.iter().filter(|it| !it.fires.is_empty()).count();
        Report {
            seed,
            scheduled: certain.len() as u64,
            fired: fired as u64,
            cancelled: count(|it| it.cancel == Cancel::Cancelled),
            lost: count(|it| it.cancel == Cancel::None && it.fires.is_empty()),
            cancelled_yet_fired: count(|it| it.cancel == Cancel::Cancelled && !it.fires.is_empty()),
            early,
            duplicates: (fires - fired) as u64,
            // What came just after a fault also counts: it was in flight as its consequence.
            in_flight_bound: faults
                .iter()
                .map(|it| it.in_flight.unsigned_abs() + 500)
                .sum(),
            lateness_ms: lateness(&written, &faults, looks),
            takeover_ms: latest_after(&written, &faults, Kind::Kill, LEASE),
            too_late: too_late(&written, &faults),
            left,
            innocent_dead,
            rested: silences.iter().map(|(_, rested)| *rested).collect(),
            woken_ms: latest_after(&written, &faults, Kind::Wake, SHADOW),
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
            (
                "more ran twice than were in flight",
                self.duplicates > self.in_flight_bound,
            ),
            ("timers were later than they may be", self.too_late > 0),
            ("timers had not ended", self.left > 0),
            (
                "timers were given up that ended no process",
                self.innocent_dead > 0,
            ),
            (
                "no node ever rested",
                self.rested.len() > 4 && self.rested.iter().sum::<i64>() == 0,
            ),
        ];
        let broken: Vec<&str> = broken
            .iter()
            .filter(|(_, is)| *is)
            .map(|(what, _)| *what)
            .collect();
        if broken.is_empty() {
            Ok(())
        } else {
            Err(broken.join("; "))
        }
    }
}

/// Reckons from here on by this machine's clock, and returns how many fires were early. Late is
/// what fires after it could: after its schedule was answered, and nobody had it locked any more.
fn reckon(written: &mut [Written], settings: &Settings) -> u64 {
    let mut early = 0;
    for Written {
        answered,
        locked,
        fires,
        ..
    } in written
    {
        for fire in fires {
            let by = fire.due - settings.at_most(fire.at);
            if by > 0 {
                early += 1;
                eprintln!("{} ms early: {fire:?}, {settings:?}", by / 1_000);
            }
            // What was never answered was committed at some time or other; where a crash has ended
            // the lock it fires sooner.
            let could = answered
                .unwrap_or(fire.at)
                .max(locked.unwrap_or(i64::MIN).min(fire.at));
            fire.due = settings.reached(fire.due, fire.at).max(could);
        }
    }
    early
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
fn too_late(written: &[Written], faults: &[Fault]) -> u64 {
    let mut count = 0;
    for (number, timer) in written.iter().enumerate() {
        for fire in timer
            .fires
            .iter()
            .filter(|fire| fire.at > latest(fire.due, faults))
        {
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

fn late(fire: &Fire) -> u64 {
    (fire.at - fire.due).max(0).unsigned_abs()
}

fn lateness(written: &[Written], faults: &[Fault], looks: &[Look]) -> Lateness {
    // The first time each: a later one is a duplicate or a retry.
    let fired = written.iter().filter_map(|it| {
        let first = it.fires.iter().min_by_key(|fire| fire.at)?;
        Some((it, first))
    });
    let fired: Vec<(&Written, &Fire)> = fired.collect();
    // Until when something was due of which very much was due at once: others wait behind it.
    let mut masses: BTreeMap<i64, i64> = BTreeMap::new();
    for (_, fire) in fired.iter().filter(|(it, _)| it.mass) {
        let end = masses.entry(fire.due).or_insert(fire.at);
        *end = fire.at.max(*end);
    }
    let is_calm = |at: i64| {
        !faults.iter().any(|fault| touches(fault, at))
            && !masses
                .iter()
                .any(|(from, to)| (from - BEFORE..=*to).contains(&at))
    };
    let of = |which: &dyn Fn(&Written, &Fire) -> bool| {
        ms(fired
            .iter()
            .filter(|(it, fire)| which(it, fire))
            .map(|(_, fire)| late(fire)))
    };
    let calm: Vec<&Look> = looks.iter().filter(|look| is_calm(look.at)).collect();
    Lateness {
        all: of(&|_, _| true),
        calm: of(&|it, fire| it.locked.is_none() && is_calm(fire.due)),
        bare_commit: ms(calm.iter().map(|look| look.committed)),
        bare_sleep: ms(calm.iter().map(|look| look.slept)),
        mass: of(&|it, _| it.mass),
    }
}

/// Returns the percentiles of times in microseconds.
fn ms(times: impl Iterator<Item = u64>) -> Percentiles {
    let mut all = Histogram::<u64>::new(3).expect("three digits");
    times.for_each(|time| _ = all.record(time)); // It grows as it must.
    let at = |part| all.value_at_quantile(part) as f64 / 1_000.0;
    Percentiles {
        count: all.len(),
        p50: at(0.5),
        p99: at(0.99),
        max: at(1.0),
    }
}

/// Returns how late the latest was of those due so long after a fault of that kind began, or was
/// over, where nothing else befell.
fn latest_after(written: &[Written], faults: &[Fault], kind: Kind, time: Duration) -> u64 {
    let time = time.as_micros() as i64;
    let within = |due: i64| {
        let mut all = faults.iter().filter(|fault| touches(fault, due));
        let only = all.next().filter(|_| all.next().is_none());
        only.is_some_and(|it| it.kind == kind && (it.from..it.from + time).contains(&due))
    };
    let late = written
        .iter()
        .flat_map(|it| &it.fires)
        .filter(|fire| within(fire.due))
        .map(late);
    late.max().unwrap_or(0) / 1_000
}
