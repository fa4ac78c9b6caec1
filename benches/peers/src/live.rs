//! Work on the real clock, with a live reaper: W7, W8, X1 to X3, each beside what the same loop
//! shows without a timer, or without a cascade. How late something was is in microseconds.

use crate::work::Random;
use hdrhistogram::Histogram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{fs, thread};
use tickwheel::{Timer, TimerEntry};

/// Measures the wake-ups of the reaper, and its processor time in milliseconds, while 1 M timers
/// are at least an hour away.
pub fn idle(seconds: u64) -> (f64, f64) {
    let timer: Timer<u64> = Timer::builder()
        .name("w7")
        .executor(|_| ())
        .start()
        .expect("a thread");
    let start = Instant::now();
    let mut random = Random::new();
    for task in 0..1_000_000 {
        let deadline =
            start + Duration::from_secs(3_600) + Duration::from_millis(random.below(3_600_000));
        timer
            .add(TimerEntry::at(deadline, task))
            .expect("there is no limit");
    }
    thread::sleep(Duration::from_millis(100));
    let reaper = Thread::named("w7").expect("it runs");
    let cpu = reaper.cpu_ms();
    let wakeups = timer.stats().wakeups;
    thread::sleep(Duration::from_secs(seconds));
    (
        (timer.stats().wakeups - wakeups) as f64,
        reaper.cpu_ms() - cpu,
    )
}

/// A thread of this process, as Linux counts what it does.
pub struct Thread(PathBuf);

impl Thread {
    pub fn named(name: &str) -> Option<Self> {
        let tasks = fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        let is_named = |task: &PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        tasks.map(|task| task.path()).find(is_named).map(Thread)
    }

    pub fn cpu_ms(&self) -> f64 {
        let schedstat = fs::read_to_string(self.0.join("schedstat")).expect("it runs");
        let ns = schedstat
            .split(' ')
            .next()
            .and_then(|ns| ns.parse::<f64>().ok());
        ns.expect("a number") / 1e6
    }

    /// Returns how often it has gone to sleep, and so has woken up again.
    pub fn wakeups(&self) -> f64 {
        let status = fs::read_to_string(self.0.join("status")).expect("it runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok())
            .expect("a number")
    }
}

/// Lateness of `count` timers over `seconds`, at the given tick.
pub fn lateness(tick: Duration, count: u64, seconds: u64) -> Lateness {
    let recorder = Recorder::new();
    let record = recorder.clone();
    let timer: Timer<Instant> = Timer::builder()
        .tick(tick)
        .executor(move |deadline: Instant| record.record(deadline))
        .start()
        .expect("a thread");
    let mut random = Random::new();
    let start = Instant::now() + Duration::from_millis(200);
    for _ in 0..count {
        let deadline = start + Duration::from_nanos(random.below(seconds * 1_000_000_000));
        timer
            .add(TimerEntry::at(deadline, deadline))
            .expect("there is no limit");
    }
    let last = start + Duration::from_secs(seconds) + Duration::from_millis(100);
    thread::sleep(last.saturating_duration_since(Instant::now()));
    assert!(timer.is_empty(), "all have expired");
    assert_eq!(recorder.count(), count);
    recorder.lateness()
}

/// Measures the longest `add` + `cancel`, and the worst lateness of timers that are due every
/// millisecond, in microseconds, over a second during which `load` timers cascade from one bucket.
/// Without a load, it measures the same loop without a cascade.
pub fn cascade(load: u64) -> (f64, f64) {
    let worst = Arc::new(Mutex::new(Duration::ZERO));
    let record = Arc::clone(&worst);
    let timer: Timer<Option<Instant>> = Timer::builder()
        .executor(move |probe: Option<Instant>| {
            if let Some(deadline) = probe {
                let late = deadline.elapsed();
                let mut worst = record.lock().expect("no panic");
                *worst = late.max(*worst);
            }
        })
        .start()
        .expect("a thread");
    // A bucket of level 1 spans 256 ms, and cascades 255 ms before its first tick. The timer has
    // begun a little before `start`, so the last part of the bucket stays empty.
    let start = Instant::now();
    let bucket = start + Duration::from_millis(256 * 16);
    let mut random = Random::new();
    for _ in 0..load {
        let deadline = bucket + Duration::from_micros(1 + random.below(200_000));
        timer
            .add(TimerEntry::at(deadline, None))
            .expect("there is no limit");
    }
    let begin = bucket - Duration::from_millis(400);
    let end = bucket - Duration::from_millis(5);
    for ms in 0..390 {
        let deadline = begin + Duration::from_millis(ms);
        timer
            .add(TimerEntry::at(deadline, Some(deadline)))
            .expect("there is no limit");
    }
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    let far = start + Duration::from_secs(60);
    let mut longest = Duration::ZERO;
    let mut before = Instant::now();
    while before < end {
        let timeout = timer
            .add(TimerEntry::at(far, None))
            .expect("there is no limit");
        assert!(timeout.cancel().is_cancelled());
        let after = Instant::now();
        longest = longest.max(after - before);
        before = after;
    }
    let cascaded = timer.stats().cascaded;
    assert!(
        cascaded >= load,
        "the bucket cascades while the loop runs: {cascaded}"
    );
    let worst = *worst.lock().expect("no panic");
    (
        longest.as_nanos() as f64 / 1e3,
        worst.as_nanos() as f64 / 1e3,
    )
}

/// Measures the median lateness, in microseconds, of timers of 3 ms while four threads `ask`
/// something of their timer, or of another one, without a pause.
pub fn asked(timers: u32, ask: fn(&Timer, &Timer)) -> f64 {
    const DELAY: Duration = Duration::from_millis(3);
    let timer = Timer::builder().start().expect("a thread");
    let other = Timer::builder().build().expect("in range");
    let recorder = Recorder::new();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    ask(&timer, &other);
                }
            });
        }
        for _ in 0..timers {
            let record = recorder.clone();
            let deadline = Instant::now() + DELAY;
            timer
                .at(deadline, move || record.record(deadline))
                .expect("there is no limit");
            thread::sleep(DELAY);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    while !timer.is_empty() {
        thread::sleep(DELAY);
    }
    recorder.lateness().p50
}

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
        records
            .late
            .record(late.as_nanos() as u64)
            .expect("it grows");
    }

    pub fn count(&self) -> u64 {
        self.lock().late.len()
    }

    pub fn lateness(&self) -> Lateness {
        let Records { late, early } = &*self.lock();
        let at = |quantile| late.value_at_quantile(quantile) as f64 / 1e3;
        let max = late.max() as f64 / 1e3;
        Lateness {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max,
            early: *early as f64,
        }
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
