//! What the programs of load share: a ledger, how late things were, a progress line, a report.

pub mod ledger;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How late things were, by any thread.
pub struct Lateness(Mutex<Histogram<u64>>);

/// Its quantiles, in microseconds; zero if there were none.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Default for Lateness {
    fn default() -> Self {
        let hour = Duration::from_secs(3600).as_nanos() as u64;
        Lateness(Mutex::new(
            Histogram::new_with_max(hour, 3).expect("these bounds are valid"),
        ))
    }
}

impl Lateness {
    pub fn record(&self, nanos: u64) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .saturating_record(nanos);
    }

    pub fn quantiles(&self) -> Quantiles {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| rounded(histogram.value_at_quantile(quantile) as f64 / 1e3);
        Quantiles {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }
}

/// Returns the bytes of the process that are resident now; zero where there is no Linux to ask.
pub fn resident() -> u64 {
    memory("/proc/self/smaps_rollup", "Rss:")
}

/// Returns the most bytes that were ever resident; zero where there is no Linux to ask.
pub fn peak_resident() -> u64 {
    memory("/proc/self/status", "VmHWM:")
}

fn memory(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Shows on stderr, once a second until it is over, how many operations there were in that second
/// and how things stand.
pub fn watch(is_over: impl Fn() -> bool, total: impl Fn() -> u64, state: impl Fn() -> String) {
    let start = Instant::now();
    let mut next = Instant::now();
    let mut before = total();
    while !is_over() {
        thread::sleep(Duration::from_millis(20));
        if next.elapsed() >= Duration::from_secs(1) {
            let now = Instant::now();
            let total = total();
            let rate = total.saturating_sub(before) as f64 / (now - next).as_secs_f64();
            let second = (now - start).as_secs();
            progress(&format!(
                "{second:>4} s  {rate:>10.0} operations/s  {}",
                state()
            ));
            next = now;
            before = total;
        }
    }
}

/// Shows a line on stderr, in the place of the one before if that is a terminal.
pub fn progress(line: &str) {
    let (before, after) = if io::stderr().is_terminal() {
        ("\r\x1b[2K", "")
    } else {
        ("", "\n")
    };
    // A closed stderr is no reason to stop.
    let _ = write!(io::stderr(), "{before}{line}{after}");
}

/// The report: figures with their names, as a table or as JSON, and what is wrong.
#[derive(Default)]
pub struct Report {
    rows: Vec<(&'static str, Value, &'static str)>,
    /// Figures and counts, for one line.
    summary: Vec<String>,
    faults: Vec<String>,
}

impl Report {
    /// Adds a figure, and a note on it.
    pub fn figure(&mut self, name: &'static str, figure: f64, note: &'static str) {
        let figure = rounded(figure);
        self.rows.push((name, json!(figure), note));
        self.summary.push(format!("{name} {figure}"));
    }

    pub fn count(&mut self, name: &'static str, count: u64, note: &'static str) {
        self.rows.push((name, json!(count), note));
        self.summary.push(format!("{name} {count}"));
    }

    /// Adds a count that has to be zero.
    pub fn none(&mut self, name: &'static str, count: u64, note: &'static str) {
        self.count(name, count, note);
        self.require(count == 0, name);
    }

    pub fn quantiles(&mut self, name: &'static str, of: Quantiles, note: &'static str) {
        self.rows.push((name, json!(of), note));
    }

    /// Fails the run unless something holds.
    pub fn require(&mut self, holds: bool, otherwise: &str) {
        self.faults.extend((!holds).then(|| otherwise.to_owned()));
    }

    /// Returns the names of what is wrong.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Prints the report. Returns the exit status: 1 if anything is wrong.
    pub fn print(self, as_json: bool) -> ExitCode {
        let is_clean = self.faults.is_empty();
        let verdict = if is_clean {
            "clean".to_owned()
        } else {
            self.faults.join(", ") + ": FAILED"
        };
        let mut text = String::new();
        if as_json {
            let rows = self
                .rows
                .into_iter()
                .map(|(name, value, _)| (name.to_owned(), value));
            text = Value::Object(rows.collect::<Map<_, _>>()).to_string();
        } else {
            for (name, value, note) in &self.rows {
                text += format!("{name:<22} {:>14}  {note}", shown(value)).trim_end();
                text.push('\n');
            }
            text += &format!("{verdict}: {}", self.summary.join(", "));
        }
        // Nobody may be listening any more: the exit status tells all the same.
        let _ = writeln!(io::stdout(), "{text}");
        if !is_clean {
            let _ = writeln!(io::stderr(), "{verdict}");
        }
        ExitCode::from(u8::from(!is_clean))
    }
}

/// Formats objects with the same fields as a table, a line for each.
pub fn table(rows: &[Map<String, Value>]) -> String {
    let line = |cells: Vec<String>| {
        let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:>13}")).collect();
        cells.join(" ") + "\n"
    };
    let head = rows.first().map(|row| line(row.keys().cloned().collect()));
    let rows = rows
        .iter()
        .map(|row| line(row.values().map(shown).collect()));
    head.into_iter().chain(rows).collect()
}

/// Shows 1234567 as "1,234,567", and quantiles in a row.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(quantiles) => {
            let each = |(name, value): (&String, &Value)| format!("{name} {value}");
            quantiles.iter().map(each).collect::<Vec<_>>().join(", ")
        }
        Value::String(text) => text.clone(),
        number => grouped(&number.to_string()),
    }
}

fn grouped(number: &str) -> String {
    let end = number.find('.').unwrap_or(number.len());
    let digits = end - usize::from(number.starts_with('-'));
    let mut text = number.to_owned();
    (1..=digits.saturating_sub(1) / 3).for_each(|group| text.insert(end - 3 * group, ','));
    text
}

/// Rounds a figure to a tenth: nobody reads more.
pub fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
