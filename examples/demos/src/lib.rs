//! What the programs of load share: a ledger, how late things were, a progress line, a report.

pub mod ledger;
pub mod report;

use hdrhistogram::Histogram;
use report::rounded;
use serde::Serialize;
use std::fs;
use std::io::{self, IsTerminal, Write};
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
        Lateness(Mutex::new(Histogram::new_with_max(hour, 3).expect("these bounds are valid")))
    }
}

impl Lateness {
    pub fn record(&self, nanos: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
    }

    pub fn quantiles(&self) -> Quantiles {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| rounded(histogram.value_at_quantile(quantile) as f64 / 1e3);
        Quantiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
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
    let (start, mut next, mut before) = (Instant::now(), Instant::now(), total());
    while !is_over() {
        thread::sleep(Duration::from_millis(20));
        if next.elapsed() >= Duration::from_secs(1) {
            let (now, total) = (Instant::now(), total());
            let rate = total.saturating_sub(before) as f64 / (now - next).as_secs_f64();
            let second = (now - start).as_secs();
            progress(&format!("{second:>4} s  {rate:>10.0} operations/s  {}", state()));
            (next, before) = (now, total);
        }
    }
}

/// Shows a line on stderr, in the place of the one before if that is a terminal.
pub fn progress(line: &str) {
    let (before, after) = if io::stderr().is_terminal() { ("\r\x1b[2K", "") } else { ("", "\n") };
    // A closed stderr is no reason to stop.
    let _ = write!(io::stderr(), "{before}{line}{after}");
}
