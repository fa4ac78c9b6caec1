//! How long it takes to expire operations and keys, in virtual time: P_expire and K_expire.

use crate::work::{Random, measured, nanos_per};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer, TimerEntry};

/// Over which the deadlines lie, and how far the clock is moved at once.
const SPAN: u64 = 60_000;
const STEP: Duration = Duration::from_millis(10);

struct Expires(Arc<AtomicU64>);

impl DelayedOperation for Expires {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Measures operations on two of 10,000 keys each, cascades included. Returns nanoseconds per
/// operation.
pub fn operations(count: u64) -> f64 {
    let (timer, clock, expired) = world();
    let purgatory = Purgatory::new(&timer);
    let mut random = Random::new();
    for _ in 0..count {
        let keys = [random.below(10_000), random.below(10_000)];
        let timeout = Duration::from_millis(1 + random.below(SPAN));
        let operation = Expires(Arc::clone(&expired));
        let watch = purgatory.try_complete_else_watch(operation, timeout, &keys);
        assert!(watch.is_ok_and(|watch| !watch.is_completed()));
    }
    expire(&timer, &clock, &expired, count)
}

/// Measures the same with keys. Returns nanoseconds per key.
pub fn keys(count: u64) -> f64 {
    let (timer, clock, expired) = world();
    let counts = Arc::clone(&expired);
    let keyed = KeyedTimer::new(&timer, move |_: u64, ()| {
        counts.fetch_add(1, Ordering::Relaxed);
    });
    let mut random = Random::new();
    for key in 0..count {
        let timeout = Duration::from_millis(1 + random.below(SPAN));
        assert!(keyed.schedule(key, TimerEntry::after(timeout, ())).is_ok());
    }
    expire(&timer, &clock, &expired, count)
}

fn world() -> (Timer, ManualClock, Arc<AtomicU64>) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("the options are valid");
    (timer, clock, Arc::default())
}

fn expire(timer: &Timer, clock: &ManualClock, expired: &AtomicU64, count: u64) -> f64 {
    let started = Instant::now();
    measured(|| {
        while expired.load(Ordering::Relaxed) < count {
            clock.advance(STEP);
            timer.advance_clock(Duration::ZERO);
        }
    });
    nanos_per(started, count)
}
