//! The report: what was measured, as a table and as JSON.

use crate::generator::Generated;
use crate::ledger::Book;
use crate::options::{CompleteBy, Options};
use demos::figures::{Lateness, grouped, rate};
use serde::Serialize;
use std::fmt;
use tickwheel::purgatory::PurgatoryStats;

/// What `main` measured.
pub(crate) struct Measured {
    pub(crate) generated: Generated,
    pub(crate) triggers: u64,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) stats: PurgatoryStats,
    /// Timeouts that fired when their request had ended.
    pub(crate) in_vain: u64,
    pub(crate) left: Left,
    pub(crate) start_bytes: Option<u64>,
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) end_bytes: Option<u64>,
    pub(crate) book: Book,
    pub(crate) lost: u64,
    pub(crate) twice: u64,
}

/// What was left when all requests had ended.
pub(crate) struct Left {
    pub(crate) watched: usize,
    pub(crate) delayed: usize,
    pub(crate) expiries: usize,
    pub(crate) completions: usize,
}

#[derive(Serialize)]
pub(crate) struct Report {
    num: u32,
    keys: u32,
    key_space_size: u32,
    /// All requests wait on the same keys.
    kafka: bool,
    complete_by: &'static str,
    target_rate: u32,
    enqueue_rate: u64,
    max_delay_ms: f64,
    elapsed_s: f64,
    cpu_s: Option<f64>,
    completed: u64,
    expired: u64,
    overtaken: u64,
    missed: u64,
    lost: u64,
    twice: u64,
    early: u64,
    refused: u64,
    triggers: u64,
    checks: u64,
    /// The condition did not hold yet: at the least two for each request that was watched.
    checks_in_vain: u64,
    fired_in_vain: u64,
    /// More of these than there is a reason for: a completion and a timeout met at the deadline,
    /// or a timeout met a check and had to be added once more.
    uncancelled: u64,
    completion_lateness_us: Lateness,
    expiry_lateness_us: Lateness,
    start_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    end_bytes: Option<u64>,
    end_watched: usize,
    end_delayed: usize,
    /// Left in the timer.
    end_expiries: usize,
    /// Left in the completer's queue.
    end_completions: usize,
    /// Whether the purgatory's own counts are the ledger's.
    stats_agree: bool,
    #[serde(skip)]
    stats: PurgatoryStats,
}

impl Report {
    pub(crate) fn new(options: &Options, measured: Measured) -> Self {
        let Measured { generated, triggers, cpu_seconds, stats, left, book, lost, twice, .. } =
            measured;
        let elapsed_s = generated.elapsed.as_secs_f64();
        let (completed, expired) = (book.completed.len(), book.expired.len());
        let by_check = stats.completed_at_once + stats.completed_by_trigger;
        Report {
            num: options.num,
            keys: options.keys,
            key_space_size: options.key_space_size,
            kafka: options.kafka,
            complete_by: match options.complete_by {
                CompleteBy::Trigger => "trigger",
                CompleteBy::Force => "force",
            },
            target_rate: options.rate,
            enqueue_rate: rate(options.num.into(), elapsed_s),
            max_delay_ms: generated.longest_delay.as_secs_f64() * 1e3,
            elapsed_s,
            cpu_s: cpu_seconds,
            completed,
            expired,
            overtaken: book.overtaken,
            missed: book.missed,
            lost,
            twice,
            early: book.early,
            refused: generated.refused,
            triggers,
            checks: book.checks,
            checks_in_vain: book.checks.saturating_sub(by_check),
            fired_in_vain: measured.in_vain,
            uncancelled: measured.in_vain.saturating_sub(book.past_deadline + expired),
            completion_lateness_us: Lateness::new(&book.completed),
            expiry_lateness_us: Lateness::new(&book.expired),
            start_bytes: measured.start_bytes,
            peak_bytes: measured.peak_bytes,
            end_bytes: measured.end_bytes,
            end_watched: left.watched,
            end_delayed: left.delayed,
            end_expiries: left.expiries,
            end_completions: left.completions,
            stats_agree: (stats.completed(), stats.expired) == (completed, expired)
                && (stats.cancelled, stats.panicked) == (0, 0),
            stats,
        }
    }

    /// Lists what is wrong, a line each: nothing, if every request ended exactly once, in its time,
    /// and nothing was left behind.
    pub(crate) fn faults(&self) -> Vec<String> {
        let counts = [
            (self.lost, "requests were lost: they never ended"),
            (self.early, "requests ended before their time"),
            (self.twice, "requests ended twice"),
            (self.missed, "requests expired although a trigger had come in time"),
            (self.uncancelled, "timeouts went on when their requests had ended"),
            (self.refused, "requests were refused, without a reason"),
            (self.end_watched as u64, "entries were left among the watched"),
            (self.end_delayed as u64, "requests were left among the delayed"),
            (self.end_expiries as u64, "timeouts were left in the timer"),
            (self.end_completions as u64, "completions were left in their queue"),
        ];
        let faults = counts.iter().filter(|(count, _)| *count > 0);
        let mut faults: Vec<_> = faults.map(|(count, what)| format!("{count} {what}")).collect();
        if !self.stats_agree {
            faults.push("the purgatory's stats() do not agree with the ledger".to_owned());
        }
        faults
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are always JSON")
    }

    fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String, note: &str| {
            writeln!(f, "{}", format!("{name:<26} {value:>14}  {note}").trim_end())
        };
        let each = |count: u64| count as f64 / f64::from(self.num);
        let decimal =
            |number: Option<f64>| number.map_or("n/a".to_owned(), |it| format!("{it:.1}"));
        let mib = |bytes: Option<u64>| decimal(bytes.map(|bytes| bytes as f64 / 1048576.0));
        row("target rate, requests/s", grouped(self.target_rate.into()), "")?;
        row("enqueue rate, requests/s", grouped(self.enqueue_rate), "by one thread")?;
        row(
            "  longest delay, ms",
            decimal(Some(self.max_delay_ms)),
            "of an add, after its arrival",
        )?;
        let note =
            self.cpu_s.map(|cpu| format!("{:.2} us a request", cpu * 1e6 / f64::from(self.num)));
        row("CPU seconds", decimal(self.cpu_s), &note.unwrap_or_default())?;
        row("requests", grouped(self.num.into()), "")?;
        row("  completed", grouped(self.completed), &format!("by {}", self.complete_by))?;
        row("  expired", grouped(self.expired), "")?;
        row("    overtaken", grouped(self.overtaken), "of these: the completion came too late")?;
        row("  lost", grouped(self.lost), "none of the two")?;
        row("early", grouped(self.early), "before the drawn latency, or the deadline")?;
        row("missed", grouped(self.missed), "expired, although a trigger had come in time")?;
        row("twice", grouped(self.twice), "more than one of the two")?;
        row("refused", grouped(self.refused), "without a reason")?;
        row("triggers", grouped(self.triggers), "keys, each once in a millisecond")?;
        row("checks", grouped(self.checks), &format!("{:.1} a request", each(self.checks)))?;
        let note = format!("{:.1} a request; a watched one has two", each(self.checks_in_vain));
        row("  in vain", grouped(self.checks_in_vain), &note)?;
        row("fired in vain", grouped(self.fired_in_vain), "timeouts, while the request was ended")?;
        let ends = [
            ("completion", &self.completion_lateness_us, "from the drawn latency"),
            ("expiry", &self.expiry_lateness_us, "from the deadline"),
        ];
        for (name, Lateness { p50, p99, p999, max }, note) in ends {
            row(&format!("{name} lateness p50, us"), decimal(*p50), note)?;
            row("  p99, us", decimal(*p99), "")?;
            row("  p99.9, us", decimal(*p999), "")?;
            row("  max, us", decimal(*max), "")?;
        }
        row("memory before, MiB", mib(self.start_bytes), "resident; the ledger is in it")?;
        row("  at the peak, MiB", mib(self.peak_bytes), "")?;
        row("  after, MiB", mib(self.end_bytes), "all requests ended, the purgatory still there")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { keys, key_space_size, elapsed_s, .. } = self;
        let requests = if self.kafka { "all requests" } else { "each request" };
        writeln!(f, "\n{keys} keys of {key_space_size} for {requests}, {elapsed_s:.1} s\n")?;
        self.write_rows(f)?;
        writeln!(f, "\nthe purgatory's stats() at the end:\n{}\n", self.stats)?;
        f.write_str(if self.faults().is_empty() {
            "OK: every request ended once, none early, and nothing was left behind"
        } else {
            "FAILED: stderr says what is wrong"
        })
    }
}
