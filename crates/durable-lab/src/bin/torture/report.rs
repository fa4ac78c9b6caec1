//! What the ledger says, and whether each promise was kept.

use crate::LEASE;
use crate::book::Written;
use crate::faults::{Ends, Fault, Scene};
use crate::node::Deed;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error;

#[derive(Serialize)]
pub(crate) struct Report {
    seed: u64,
    scheduled: usize,
    fired: usize,
    cancelled: usize,
    effects: usize,
    /// Runs that followed another one of their timer.
    run_again: usize,
    /// What calls were answered.
    answers: BTreeMap<String, u64>,
    faults: BTreeMap<String, u64>,
    /// Of the first runs, in milliseconds, faults included: p50, p99 and p99.9.
    lateness_ms: [i64; 3],

    /// Timers whose runs did not come to their end, though nothing had ended them.
    lost: usize,
    early: usize,
    /// Timers with a run that began after it was certain that there would be none.
    fired_after_cancel: usize,
    /// Timers whose cancel was answered that they run, and whose last run did not end.
    silent: usize,
    /// First runs more than a minute late.
    too_late: usize,
    effects_twice: usize,
    /// Two runs of a key at once, where no node was suspended or cut off and no clock leapt.
    at_once: usize,
    /// The same, where one was.
    at_once_parted: usize,
    /// Timers that had not ended when the run gave up waiting for them.
    left: i64,
    /// Dead timers whose handlers had not asked for that, without poison and refused deaths.
    innocent_dead: i64,
}

/// A run of a handler. Times are this machine's, in microseconds; `due` is the server's.
#[derive(Clone, Debug)]
struct Run {
    number: usize,
    process: usize,
    token: i64,
    due: i64,
    begun: i64,
    /// When it began to commit its end.
    commits: Option<i64>,
    ended: Option<(i64, String)>,
}

/// What the ledger says.
struct Ledger {
    runs: Vec<Run>,
    /// From when to when a process did not run.
    stalls: Vec<(i64, i64)>,
}

/// How late a first run may be: far later than it is, so that a busy machine breaks no promise.
const LATE: i64 = 60_000_000;

fn read(text: &str) -> Result<Ledger, Box<dyn Error>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut open: HashMap<(usize, i64, usize), usize> = HashMap::new();
    let mut stalls = Vec::new();
    for line in text.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        let process: usize = parts[0].parse()?;
        let at: i64 = parts[1].parse()?;
        match parts[2..] {
            ["S", stall] => stalls.push((at - stall.parse::<i64>()?, at)),
            ["B", number, due, _, token] => {
                let run = Run {
                    number: number.parse()?,
                    process,
                    token: token.parse()?,
                    due: due.parse()?,
                    begun: at,
                    commits: None,
                    ended: None,
                };
                open.insert((process, run.token, run.number), runs.len());
                runs.push(run);
            }
            ["C", number, token] => {
                let name = (process, token.parse()?, number.parse()?);
                let index = open.get(&name).ok_or("a commit without a beginning")?;
                runs[*index].commits = Some(at);
            }
            ["E", number, end, token] => {
                let name = (process, token.parse()?, number.parse()?);
                let index = open.remove(&name).ok_or("an end without a beginning")?;
                runs[index].ended = Some((at, end.to_owned()));
            }
            _ => return Err(format!("half a line: {line:?}").into()),
        }
    }
    Ok(Ledger { runs, stalls })
}

impl Report {
    pub(crate) fn new(seed: u64, scene: &Scene, ends: Ends) -> Result<Self, Box<dyn Error>> {
        let ledger = read(&std::fs::read_to_string(scene.fleet.ledger.path())?)?;
        let written = scene.book.all();
        let mut runs: Vec<Vec<&Run>> = vec![Vec::new(); written.len()];
        for run in &ledger.runs {
            runs[run.number].push(run);
        }
        let count = |name: &str, is: &dyn Fn(&Written, &[&Run]) -> bool| {
            let all = written.iter().zip(&runs).enumerate();
            let broken = all.filter(|(_, (timer, runs))| is(timer, runs));
            broken
                .inspect(|(number, (timer, runs))| {
                    if !name.is_empty() {
                        eprintln!("{name}: {number} {timer:?} {runs:?}");
                    }
                })
                .count()
        };
        let mut lates: Vec<i64> = written
            .iter()
            .zip(&runs)
            .filter_map(|(timer, runs)| late(timer, runs))
            .collect();
        lates.sort_unstable();
        let percentile = |part: usize| {
            lates
                .get(lates.len() * part / 1_000)
                .map_or(0, |it| it / 1_000)
        };
        let mut faults: BTreeMap<String, u64> = BTreeMap::new();
        for fault in &scene.faults {
            *faults.entry(format!("{:?}", fault.kind)).or_default() += 1;
        }
        let effects: HashSet<i64> = ends.effects.iter().copied().collect();
        let (at_once, at_once_parted) = at_once(&written, &ledger, scene);
        Ok(Report {
            seed,
            scheduled: count("", &|it, _| it.answered.is_some()),
            fired: count("", &|_, runs| !runs.is_empty()),
            cancelled: count("", &|it, _| it.cancelled.is_some_and(|at| at > 0)),
            effects: ends.effects.len(),
            run_again: runs.iter().map(|runs| runs.len().saturating_sub(1)).sum(),
            answers: scene.book.answers(),
            faults,
            lateness_ms: [percentile(500), percentile(990), percentile(999)],
            lost: count("lost", &|it, runs| {
                // The effect proves the end: a handler may not learn that its commit took place.
                let had_effect = |run: &&Run| effects.contains(&(run.number as i64));
                is_lost(it, runs) && !runs.iter().any(had_effect)
            }),
            early: count("early", &|it, runs| is_early(it, runs, scene)),
            fired_after_cancel: count("fired after its cancel", &|it, runs| {
                let after = |at| runs.iter().any(|run| run.begun > at);
                it.cancelled.is_some_and(after)
            }),
            silent: count("silent", &|it, runs| {
                it.runs && !it.may_be_gone && runs.last().is_none_or(|run| run.ended.is_none())
            }),
            too_late: count("too late", &|it, runs| {
                late(it, runs).is_some_and(|it| it > LATE)
            }),
            effects_twice: ends.effects.len() - effects.len(),
            at_once,
            at_once_parted,
            left: ends.left,
            innocent_dead: ends.innocent_dead,
        })
    }

    /// Says which promises were broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        let broken = [
            ("nothing was fired", self.fired == 0),
            ("timers were lost", self.lost > 0),
            ("timers were early", self.early > 0),
            ("cancelled timers fired", self.fired_after_cancel > 0),
            ("what was said to run did not", self.silent > 0),
            ("timers were later than they may be", self.too_late > 0),
            ("effects happened twice", self.effects_twice > 0),
            ("a key ran twice at once", self.at_once > 0),
            ("timers had not ended", self.left > 0),
            ("innocent timers were given up", self.innocent_dead > 0),
        ];
        let broken = broken.iter().filter(|(_, is)| *is);
        let broken: Vec<&str> = broken.map(|(what, _)| *what).collect();
        match broken.is_empty() {
            true => Ok(()),
            false => Err(broken.join("; ")),
        }
    }
}

/// Returns whether a timer did not come to the end that its handler gives it.
fn is_lost(timer: &Written, runs: &[&Run]) -> bool {
    let has_ended = |run: &&Run| {
        let end = run.ended.as_ref().map(|(_, end)| end.as_str());
        // What was cancelled in a run ends with that.
        matches!(end, Some("done" | "dead")) || timer.runs && end.is_some()
    };
    let may_be_gone = timer.may_be_gone || timer.cancelled.is_some();
    timer.answered.is_some() && !may_be_gone && !runs.iter().any(has_ended)
}

fn is_early(timer: &Written, runs: &[&Run], scene: &Scene) -> bool {
    // A retry may be due before that, if the server's clock was set back after the first run.
    let first = runs.iter().min_by_key(|run| run.token);
    let is_before = |due: i64| first.is_some_and(|first| first.due < due);
    timer.due.is_some_and(is_before)
        || runs
            .iter()
            .any(|run| run.due > scene.settings.at_most(run.begun))
}

/// Returns how late the first run was: after it was due, and scheduled.
fn late(timer: &Written, runs: &[&Run]) -> Option<i64> {
    let first = runs.iter().min_by_key(|run| run.begun)?;
    let could = first.due.max(timer.answered?);
    // Nobody hurries with what was put back, as its end was refused.
    (!timer.key.starts_with('x')).then_some(first.begun - could)
}

/// Counts runs of a key that begin before an earlier one has ended.
fn at_once(written: &[Written], ledger: &Ledger, scene: &Scene) -> (usize, usize) {
    let mut ends = scene.fleet.ends.clone();
    for run in &ledger.runs {
        if written[run.number].deed == Deed::Abort {
            ends[run.process] = ends[run.process].min(run.begun);
        }
    }
    let end = |run: &Run| {
        let ended = run.ended.as_ref().map(|(at, _)| *at);
        run.commits.or(ended).unwrap_or(ends[run.process])
    };
    let mut keys: HashMap<&str, Vec<&Run>> = HashMap::new();
    for run in &ledger.runs {
        keys.entry(&written[run.number].key).or_default().push(run);
    }
    let lease = LEASE.as_micros() as i64;
    let parted = |from: i64, to: i64| {
        let is_in = |(begun, ended): (i64, i64)| begun < to && ended > from - lease;
        let parts = |fault: &Fault| fault.kind.parts() && is_in((fault.from, fault.to));
        scene.faults.iter().any(parts) || ledger.stalls.iter().any(|stall| is_in(*stall))
    };
    let mut count = (0, 0);
    for (key, runs) in &mut keys {
        runs.sort_unstable_by_key(|run| run.begun);
        let mut former: Option<&Run> = None;
        for run in runs {
            if let Some(before) = former.filter(|before| end(before) > run.begun) {
                if parted(before.begun, run.begun) {
                    count.1 += 1;
                } else {
                    count.0 += 1;
                    eprintln!("at once: {key}: {before:?}, {run:?}");
                }
            }
            // The one that ends last may overlap with the next as well.
            former = former.filter(|before| end(before) > end(run)).or(Some(run));
        }
    }
    count
}
