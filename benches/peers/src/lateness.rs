//! How late something was, in microseconds.

use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

pub struct Lateness {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub early: f64,
}

/// Where who runs tasks enters each. One thread does, so its lock is never waited for.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Records>>);

struct Records {
    late: Histogram<u64>,
    early: u64,
}

impl Recorder {
    pub fn new() -> Self {
        let late = Histogram::new(3).expect("three digits are possible");
        Recorder(Arc::new(Mutex::new(Records { late, early: 0 })))
    }

    /// Records an event that happens now and was due at `deadline`.
    pub fn record(&self, deadline: Instant) {
        let now = Instant::now();
        let mut records = self.lock();
        records.early += u64::from(now < deadline);
        let late = now.saturating_duration_since(deadline);
        records.late.record(late.as_nanos() as u64).expect("it grows");
    }

    pub fn count(&self) -> u64 {
        self.lock().late.len()
    }

    pub fn lateness(&self) -> Lateness {
        let Records { late, early } = &*self.lock();
        let at = |quantile| late.value_at_quantile(quantile) as f64 / 1e3;
        let max = late.max() as f64 / 1e3;
        Lateness { p50: at(0.5), p99: at(0.99), p999: at(0.999), max, early: *early as f64 }
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock().expect("no panic")
    }
}

/// Lateness of a bare thread that sleeps from tick to tick. It is late for each tick that it slept
/// through, as timers of that tick would be.
pub fn bare_sleep(tick: Duration, time: Duration) -> Lateness {
    let recorder = Recorder::new();
    let start = Instant::now();
    let mut due = start + tick;
    while due <= start + time {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        recorder.record(due);
        due += tick;
    }
    recorder.lateness()
}
