//! W5: several threads on one timer, those contenders that are thread-safe.

use crate::contender::Contender;
use crate::under_load::Driven;
use crate::work::{Random, nanos_per};
use std::collections::VecDeque;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{Timeout, Timer, TimerEntry};

const OUTSTANDING: u64 = 100_000;
const PAIRS: u64 = 1_000_000;
/// Handles that go from thread to thread at once in W5x.
const BATCH: u64 = 1_000;

/// A timer structure that several threads share.
pub trait Shared: Send + Sync + 'static {
    type Deadline: Copy + Send;
    type Handle: Send;

    fn new() -> Self;
    fn deadline(&self, at_ms: u64) -> Self::Deadline;
    fn add(&self, deadline: Self::Deadline, task: u64) -> Self::Handle;
    fn cancel(&self, handle: Self::Handle) -> bool;
}

/// One that can step a virtual clock as well: then it takes part in the single-threaded work, too.
pub trait Expiring: Shared {
    /// Expires all timers, as [`Contender::expire_all`] does.
    fn expire_all(&self, last_ms: u64) -> (u64, u64);
}

impl<S: Expiring> Contender for S {
    type Deadline = S::Deadline;
    type Handle = S::Handle;

    fn new() -> Self {
        Shared::new()
    }

    fn deadline(&self, at_ms: u64) -> Self::Deadline {
        Shared::deadline(self, at_ms)
    }

    fn add(&mut self, deadline: Self::Deadline, task: u64) -> Self::Handle {
        Shared::add(self, deadline, task)
    }

    fn cancel(&mut self, handle: Self::Handle) -> bool {
        Shared::cancel(self, handle)
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        Expiring::expire_all(self, last_ms)
    }
}

/// tickwheel as a service has it: on the system's clock, with its reaper running.
pub struct Live {
    start: Instant,
    timer: Timer<u64>,
}

impl Shared for Live {
    type Deadline = Instant;
    type Handle = Timeout<u64>;

    fn new() -> Self {
        Driven::start(Instant::now(), |_| ())
    }

    fn deadline(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms)
    }

    fn add(&self, deadline: Instant, task: u64) -> Timeout<u64> {
        self.timer.add(TimerEntry::at(deadline, task)).expect("there is no limit")
    }

    fn cancel(&self, handle: Timeout<u64>) -> bool {
        handle.cancel().is_cancelled()
    }
}

impl Driven for Live {
    type Handle = Timeout<u64>;

    fn start(origin: Instant, run: impl Fn(u64) + Send + Sync + 'static) -> Self {
        let timer = Timer::builder().executor(run).start().expect("a thread");
        Live { start: origin, timer }
    }

    fn add(&self, due: u64) -> Timeout<u64> {
        Shared::add(self, self.start + Duration::from_nanos(due), due)
    }

    fn cancel(&self, handle: Timeout<u64>) -> bool {
        Shared::cancel(self, handle)
    }
}

fn deadlines<S: Shared>(shared: &S, seed: u64, count: u64) -> Vec<S::Deadline> {
    let mut random = Random::new();
    for _ in 0..seed {
        random.below(2);
    }
    (0..count).map(|_| shared.deadline(60_000 + random.below(30_000))).collect()
}

/// Runs W2 with 100 k outstanding on each of `threads` threads. Returns nanoseconds per pair and
/// thread.
pub fn churn<S: Shared>(threads: u64) -> f64 {
    let shared = Arc::new(S::new());
    let barrier = Arc::new(Barrier::new(threads as usize));
    let run = |n| {
        let (shared, barrier) = (Arc::clone(&shared), Arc::clone(&barrier));
        thread::spawn(move || {
            let first = deadlines(&*shared, n, OUTSTANDING);
            let mut handles: VecDeque<_> =
                first.into_iter().map(|deadline| shared.add(deadline, n)).collect();
            let more = deadlines(&*shared, n + 9, PAIRS);
            barrier.wait();
            let started = Instant::now();
            for deadline in more {
                handles.push_back(shared.add(deadline, n));
                let oldest = handles.pop_front().expect("as many as before");
                assert!(shared.cancel(oldest));
            }
            nanos_per(started, PAIRS)
        })
    };
    let running: Vec<_> = (0..threads).map(run).collect();
    let sum: f64 = running.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    sum / threads as f64
}

/// Runs two threads, each of which cancels what the other one added 100 k timers ago. Returns
/// nanoseconds per pair and thread.
pub fn cross<S: Shared>() -> f64 {
    let shared = Arc::new(S::new());
    let barrier = Arc::new(Barrier::new(2));
    let (to_a, from_b) = mpsc::channel();
    let (to_b, from_a) = mpsc::channel();
    let run = |n, to_other: mpsc::Sender<Vec<S::Handle>>, from_other: mpsc::Receiver<_>| {
        let (shared, barrier) = (Arc::clone(&shared), Arc::clone(&barrier));
        thread::spawn(move || {
            let add = |deadlines: &[S::Deadline]| {
                deadlines.iter().map(|deadline| shared.add(*deadline, n)).collect()
            };
            for batch in deadlines(&*shared, n, OUTSTANDING).chunks(BATCH as usize) {
                to_other.send(add(batch)).expect("the other one lives");
            }
            let more = deadlines(&*shared, n + 9, PAIRS);
            barrier.wait();
            let started = Instant::now();
            for batch in more.chunks(BATCH as usize) {
                to_other.send(add(batch)).expect("the other one lives");
                let handles: Vec<S::Handle> = from_other.recv().expect("the other one lives");
                handles.into_iter().for_each(|handle| assert!(shared.cancel(handle)));
            }
            let pair = nanos_per(started, PAIRS);
            barrier.wait(); // Neither channel closes while the other thread still uses it.
            pair
        })
    };
    let a = run(0, to_b, from_b);
    let b = run(1, to_a, from_a);
    (a.join().expect("no panic") + b.join().expect("no panic")) / 2.0
}
