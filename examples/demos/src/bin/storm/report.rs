//! The report: what was measured, as a table and as JSON.

use crate::client::Tally;
use crate::options::Options;
use crate::scheduling::Scheduling;
use demos::figures::{Lateness, grouped, microseconds, rate};
use demos::ledger::{Ledger, Request};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::time::Duration;
use tickwheel::{Snapshot, Stats, Timeout};

/// With fewer timers, what the allocator does beside would drown what they cost.
const ENOUGH_TO_WEIGH: usize = 100_000;

/// What `main` measured itself.
pub(crate) struct Measured {
    pub(crate) filled_in: Duration,
    /// By how many bytes the process grew when it filled.
    pub(crate) grown: Option<u64>,
    /// How late a thread that only sleeps woke during the storm, in nanoseconds.
    pub(crate) bare_sleep: Histogram<u64>,
    /// What the reaper went through during the storm.
    pub(crate) reaper: Scheduling,
    pub(crate) idle_wakeups: u64,
    pub(crate) returned: u64,
    pub(crate) overdue: u64,
    pub(crate) snapshot: Snapshot,
    pub(crate) stats: Stats,
}

#[derive(Serialize)]
pub(crate) struct Report {
    threads: usize,
    outstanding: usize,
    shards: usize,
    tick_us: u64,
    seconds: f64,
    adds_per_s: u64,
    cancels_per_s: u64,
    operations_per_s: u64,
    fill_adds_per_s: u64,
    add_max_us: f64,
    held_back: u64,
    added: u64,
    cancelled: u64,
    expired: u64,
    returned: u64,
    early: u64,
    lost: u64,
    twice: u64,
    overdue: u64,
    refused: u64,
    /// Whether the timer's own counts are the ledger's.
    stats_agree: bool,
    lateness_us: Lateness,
    bare_sleep_us: Lateness,
    reaper_involuntary_switches: Option<u64>,
    reaper_ran_ms: Option<f64>,
    reaper_waited_ms: Option<f64>,
    bytes_per_timer: Option<f64>,
    bytes_per_handle: usize,
    idle_seconds: f64,
    idle_wakeups: u64,
    #[serde(skip)]
    histogram: Histogram<u64>,
    #[serde(skip)]
    snapshot: Snapshot,
    #[serde(skip)]
    stats: Stats,
}

impl Report {
    pub(crate) fn new(
        options: &Options,
        ledger: &Ledger,
        tally: &Tally,
        measured: Measured,
    ) -> Self {
        let Measured { filled_in, grown, reaper, returned, snapshot, stats, .. } = measured;
        let milliseconds = |nanos: u64| nanos as f64 / 1e6;
        let expired = ledger.expired().clone();
        let seconds = tally.elapsed.as_secs_f64();
        let weighed = grown.filter(|_| options.outstanding() >= ENOUGH_TO_WEIGH);
        let agree = (stats.added, stats.cancelled) == (tally.added, tally.cancelled)
            && (stats.expired, stats.returned) == (expired.count, returned);
        Report {
            threads: options.threads(),
            outstanding: options.outstanding(),
            shards: snapshot.shards,
            tick_us: options.tick_us,
            seconds,
            adds_per_s: rate(tally.stormed, seconds),
            cancels_per_s: rate(tally.cancelled, seconds),
            operations_per_s: rate(tally.stormed + tally.cancelled, seconds),
            fill_adds_per_s: rate(options.outstanding() as u64, filled_in.as_secs_f64()),
            add_max_us: microseconds(tally.longest_add.as_nanos() as u64),
            held_back: tally.held_back,
            added: tally.added,
            cancelled: tally.cancelled,
            expired: expired.count,
            returned,
            early: expired.early,
            lost: ledger.pending_in_all(),
            twice: ledger.twice(),
            overdue: measured.overdue,
            refused: tally.refused,
            stats_agree: agree,
            lateness_us: Lateness::new(&expired.lateness),
            bare_sleep_us: Lateness::new(&measured.bare_sleep),
            reaper_involuntary_switches: reaper.involuntary_switches,
            reaper_ran_ms: reaper.ran.map(milliseconds),
            reaper_waited_ms: reaper.waited.map(milliseconds),
            bytes_per_timer: weighed.map(|grown| grown as f64 / options.outstanding() as f64),
            bytes_per_handle: size_of::<Timeout<Request>>(),
            idle_seconds: options.idle().as_secs_f64(),
            idle_wakeups: measured.idle_wakeups,
            histogram: expired.lateness,
            snapshot,
            stats,
        }
    }

    /// Returns whether every timer had exactly one outcome, and none came too soon.
    pub(crate) fn is_clean(&self) -> bool {
        let Report { early, lost, twice, overdue, refused, .. } = *self;
        [early, lost, twice, overdue, refused] == [0; 5]
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are always JSON")
    }

    fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String, note: &str| {
            writeln!(f, "{}", format!("{name:<22} {value:>14}  {note}").trim_end())
        };
        let count = |count: u64| grouped(count);
        let decimal =
            |value: Option<f64>| value.map_or("n/a".to_owned(), |value| format!("{value:.1}"));
        row("operations/s", count(self.operations_per_s), "adds and cancels of all threads")?;
        row("  adds/s", count(self.adds_per_s), "each add is timed: two clock reads included")?;
        row("  cancels/s", count(self.cancels_per_s), "")?;
        row("longest add, us", decimal(Some(self.add_max_us)), "by the clock, preempted or not")?;
        row("added", count(self.added), "those of the filling included")?;
        row("  cancelled", count(self.cancelled), "")?;
        row("  expired", count(self.expired), "")?;
        row("  returned", count(self.returned), "by shutdown")?;
        row("  lost", count(self.lost), "none of the three")?;
        row("early", count(self.early), "before the exact deadline")?;
        row("twice", count(self.twice), "more than one of the three")?;
        if self.overdue + self.refused + self.held_back > 0 {
            row("overdue", count(self.overdue), "returned a second or more after the deadline")?;
            row("refused", count(self.refused), "by add, which had no reason to")?;
            row("held back", count(self.held_back), "not added: too many waited to expire")?;
        }
        let whose = [
            ("lateness", &self.lateness_us, "from the exact deadline until the task runs"),
            ("bare sleep", &self.bare_sleep_us, "how late a thread wakes that only sleeps"),
        ];
        for (name, Lateness { p50, p99, p999, max }, note) in whose {
            row(&format!("{name} p50, us"), decimal(*p50), note)?;
            row("  p99, us", decimal(*p99), "")?;
            row("  p99.9, us", decimal(*p999), "")?;
            row("  max, us", decimal(*max), "")?;
        }
        let switches = self.reaper_involuntary_switches.map_or("n/a".to_owned(), count);
        row("reaper ran, ms", decimal(self.reaper_ran_ms), "during the storm")?;
        row("  waited, ms", decimal(self.reaper_waited_ms), "ready, while others had the cores")?;
        row("  switched out", switches, "times with more to do: preempted, or it yielded")?;
        let note = format!("resident; and {} per handle that is kept", self.bytes_per_handle);
        row("bytes per timer", decimal(self.bytes_per_timer), &note)?;
        let note = format!("of the reaper in {} s, no short timer pending", self.idle_seconds);
        row("idle wake-ups", count(self.idle_wakeups), &note)
    }

    fn write_histogram(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bars = || {
            let bars = self.histogram.iter_log(1000, 2.0);
            bars.map(|bar| (bar.value_iterated_to(), bar.count_since_last_iteration()))
        };
        let most = bars().map(|(_, count)| count).max().unwrap_or(0);
        writeln!(f, "lateness until the task runs:")?;
        for (up_to, times) in bars().filter(|(_, count)| *count > 0) {
            let up_to = format!("{:.1?}", Duration::from_nanos(up_to));
            let bar = "#".repeat((times as f64 / most as f64 * 40.0).ceil() as usize);
            writeln!(f, "  <= {up_to:>9} {:>12} {bar}", grouped(times))?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { threads, outstanding, shards, tick_us, seconds, .. } = self;
        writeln!(
            f,
            "\n{threads} threads, {} outstanding, {shards} shards, a tick of {tick_us} us, \
             {seconds:.1} s\n",
            grouped(*outstanding as u64),
        )?;
        self.write_rows(f)?;
        writeln!(f)?;
        self.write_histogram(f)?;
        writeln!(f, "\nthe timer's snapshot() before the shutdown:\n{}", self.snapshot)?;
        writeln!(f, "\nthe timer's stats() after it:\n{}\n", self.stats)?;
        if !self.stats_agree {
            writeln!(f, "NOTE: stats() does not agree with the ledger above")?;
        }
        f.write_str(if self.is_clean() {
            "OK: every timer had exactly one outcome, and none came early"
        } else {
            "FAILED: see early, lost, twice, overdue and refused above"
        })
    }
}
