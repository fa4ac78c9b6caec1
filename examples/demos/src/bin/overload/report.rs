//! The report: a row for each system and load, and what must never be.

use crate::service::CAPACITY;
use demos::figures::grouped;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a process may take with all pending that may be; without any it takes about 10 MB.
const MOST_RESIDENT_MB: f64 = 64.0;
/// How much of what it was offered, or can serve, a service may lose for want of a core. This and
/// the bounds below are loose: they have to hold on any busy machine, and to fail for defects.
const LEAST_SERVED: f64 = 0.5;
/// It may catch up what it could not do before it was measured.
const MOST_SERVED: f64 = 1.1;
/// Lateness may be so many times what can lie ahead, and a second.
const MOST_LATE: f64 = 4.0;
/// A recovery may take so much longer: any hiccup in it prolongs it.
const HICCUPS_MS: f64 = 10_000.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) system: String,
    /// What was offered, as a multiple of what can be served.
    pub(crate) load: f64,
    pub(crate) flat_out: bool,
    pub(crate) offered_per_s: u64,
    /// By `add`.
    pub(crate) refused_per_s: u64,
    /// By the worker.
    pub(crate) shed_per_s: u64,
    pub(crate) served_per_s: u64,
    /// How long it takes to serve all that can lie ahead of one: what bounds lateness.
    pub(crate) bound_ms: f64,
    /// From the deadline until it was served.
    pub(crate) late_p50_ms: f64,
    pub(crate) late_p99_ms: f64,
    pub(crate) late_max_ms: f64,
    /// From the deadline until the timer handed it over; up to twice too long.
    pub(crate) handed_over_p99_ms: f64,
    /// Roughly: shards are counted one after the other, while threads add.
    pub(crate) pending_max: usize,
    pub(crate) resident_max_mb: f64,
    /// How long lateness lasted after the load had fallen to a half.
    pub(crate) recovery_ms: f64,
    pub(crate) early: u64,
    pub(crate) lost: u64,
    pub(crate) twice: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report(pub(crate) Vec<Row>);

impl Row {
    /// Returns how many entries went wrong.
    fn wrong(&self) -> u64 {
        self.early + self.lost + self.twice
    }
}

impl Report {
    /// Returns the largest value of all rows, or zero if none is larger.
    pub(crate) fn most(&self, value: impl Fn(&Row) -> f64) -> f64 {
        self.0.iter().map(value).fold(0.0, f64::max)
    }

    /// Returns what was wrong with the entries.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let is_wrong = |row: &&Row| row.wrong() > 0;
        self.0.iter().filter(is_wrong).map(|row| format!("an entry went wrong: {row:?}")).collect()
    }

    /// Returns what was wrong, and what has given way that never may, or has not that had to.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut complaints = self.wrong();
        let mut add = |what: &str, row: &Row| complaints.push(format!("{what}: {row:?}"));
        for row in &self.0 {
            if row.resident_max_mb > MOST_RESIDENT_MB {
                add("memory is not bounded", row);
            }
            let served = row.served_per_s as f64 / CAPACITY;
            if !(LEAST_SERVED * row.load.min(1.0)..=MOST_SERVED).contains(&served) {
                add("the service did not run at its rate", row);
            }
            let most_late_ms = row.bound_ms * MOST_LATE + 1e3;
            if row.late_p99_ms > most_late_ms {
                add("lateness is not bounded", row);
            }
            if row.recovery_ms > most_late_ms + HICCUPS_MS {
                add("it did not recover", row);
            }
            if row.flat_out && row.refused_per_s + row.shed_per_s == 0 {
                add("nothing was refused: this was no overload", row);
            }
        }
        complaints
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["load", "served/s", "worker's", "add's", "p50, ms", "p99, ms", "max, ms"];
        let more = ["handed on", "pending", "MB", "recovery", "wrong"];
        let mut line = |system: &str, cells: [String; 12]| {
            let cells: String = cells.iter().map(|cell| format!(" {cell:>9}")).collect();
            writeln!(f, "{system:<19}{cells}")
        };
        let names: Vec<_> = names.iter().chain(&more).map(|name| name.to_string()).collect();
        line("system", names.try_into().expect("there are twelve"))?;
        for row in &self.0 {
            let ms = |time: f64| format!("{time:.1}");
            let cells = [
                format!("{:.2}", row.load),
                grouped(row.served_per_s),
                grouped(row.shed_per_s),
                grouped(row.refused_per_s),
                ms(row.late_p50_ms),
                ms(row.late_p99_ms),
                ms(row.late_max_ms),
                ms(row.handed_over_p99_ms),
                grouped(row.pending_max as u64),
                format!("{:.1}", row.resident_max_mb),
                format!("{:.0}", row.recovery_ms),
                row.wrong().to_string(),
            ];
            line(&row.system, cells)?;
        }
        writeln!(f, "worker's and add's: refusals/s; handed on: p99 in ms, up to twice too long")?;
        write!(
            f,
            "up to {:.0} times what can be served: {} early, lost or twice; at most {:.0} MB \
             resident, {:.0} ms late at p99, {:.0} ms until it had recovered",
            self.most(|row| row.load),
            self.0.iter().map(Row::wrong).sum::<u64>(),
            self.most(|row| row.resident_max_mb),
            self.most(|row| row.late_p99_ms),
            self.most(|row| row.recovery_ms),
        )
    }
}
