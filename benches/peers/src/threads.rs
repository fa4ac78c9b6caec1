//! W5 and W9: several threads on one timer, those contenders that are thread-safe; and how late
//! timers are while adders keep the timer, and the cores, busy.

use crate::live::{Lateness, Recorder, bare_sleep};
use crate::work::{Contender, Random, nanos_per};
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
        self.timer
            .add(TimerEntry::at(deadline, task))
            .expect("there is no limit")
    }

    fn cancel(&self, handle: Timeout<u64>) -> bool {
        handle.cancel().is_cancelled()
    }
}

impl Driven for Live {
    type Handle = Timeout<u64>;

    fn start(origin: Instant, run: impl Fn(u64) + Send + Sync + 'static) -> Self {
        let timer = Timer::builder().executor(run).start().expect("a thread");
        Live {
            start: origin,
            timer,
        }
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
    (0..count)
        .map(|_| shared.deadline(60_000 + random.below(30_000)))
        .collect()
}

/// Runs W2 with 100 k outstanding on each of `threads` threads. Returns nanoseconds per pair and
/// thread.
pub fn churn<S: Shared>(threads: u64) -> f64 {
    let shared = Arc::new(S::new());
    let barrier = Arc::new(Barrier::new(threads as usize));
    let run = |n| {
        let shared = Arc::clone(&shared);
        let barrier = Arc::clone(&barrier);
        thread::spawn(move || {
            let first = deadlines(&*shared, n, OUTSTANDING);
            let mut handles: VecDeque<_> = first
                .into_iter()
                .map(|deadline| shared.add(deadline, n))
                .collect();
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
    let sum: f64 = running
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .sum();
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
        let shared = Arc::clone(&shared);
        let barrier = Arc::clone(&barrier);
        thread::spawn(move || {
            let add = |deadlines: &[S::Deadline]| {
                deadlines
                    .iter()
                    .map(|deadline| shared.add(*deadline, n))
                    .collect()
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
                handles
                    .into_iter()
                    .for_each(|handle| assert!(shared.cancel(handle)));
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

/// Of all adders together.
const MILLISECOND: Duration = Duration::from_millis(1);
const LONGEST_SHORT: Duration = Duration::from_millis(50);
/// How long the last short timers may take before they are given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A timer that has a thread of its own. A deadline is in nanoseconds from its origin, and that is
/// also the task.
pub trait Driven: Send + Sync + 'static {
    type Handle: Send;

    /// Starts the thread, which calls `run` with what is due.
    fn start(origin: Instant, run: impl Fn(u64) + Send + Sync + 'static) -> Self;

    fn add(&self, due: u64) -> Self::Handle;

    fn cancel(&self, handle: Self::Handle) -> bool;
}

pub struct Load {
    /// Of the short timers.
    pub lateness: Lateness,
    /// Of a thread that only slept meanwhile.
    pub bare_sleep: Lateness,
    /// The longest call of `add`, in microseconds.
    pub longest_add: f64,
    /// Nanoseconds per pair of `add` and `cancel`, and adder.
    pub pair: f64,
}

/// What an adder did.
struct Tally {
    shorts: u64,
    longest_add: Duration,
    pair: f64,
}

/// Runs the adders for so long: each adds a far timer and cancels its oldest as fast as it can, and
/// once in a millisecond adds a short one, which expires.
pub fn load<D: Driven>(adders: u64, time: Duration) -> Load {
    let origin = Instant::now();
    let recorder = Recorder::new();
    let record = recorder.clone();
    let run = move |due| record.record(origin + Duration::from_nanos(due));
    let timer = Arc::new(D::start(origin, run));
    let barrier = Arc::new(Barrier::new(adders as usize + 1));
    let start = |number| {
        let timer = Arc::clone(&timer);
        let barrier = Arc::clone(&barrier);
        thread::spawn(move || {
            let mut adder = Adder::new(&*timer, origin, number);
            adder.fill(OUTSTANDING / adders);
            barrier.wait();
            adder.run(time)
        })
    };
    let running: Vec<_> = (0..adders).map(start).collect();
    barrier.wait();
    let bare_sleep = bare_sleep(MILLISECOND, time);
    let tallies: Vec<Tally> = running
        .into_iter()
        .map(|adder| adder.join().expect("no panic"))
        .collect();
    let shorts: u64 = tallies.iter().map(|tally| tally.shorts).sum();
    let give_up = Instant::now() + PATIENCE;
    while recorder.count() < shorts && Instant::now() < give_up {
        thread::sleep(MILLISECOND);
    }
    drop(timer); // And with it the thread: nothing runs any more.
    assert_eq!(
        recorder.count(),
        shorts,
        "each short timer has expired, and nothing else"
    );
    let longest_add = tallies
        .iter()
        .map(|tally| tally.longest_add)
        .max()
        .unwrap_or_default();
    Load {
        lateness: recorder.lateness(),
        bare_sleep,
        longest_add: longest_add.as_nanos() as f64 / 1e3,
        pair: tallies.iter().map(|tally| tally.pair).sum::<f64>() / adders as f64,
    }
}

struct Adder<'a, D: Driven> {
    timer: &'a D,
    origin: Instant,
    random: Random,
    /// The far timers, the oldest first.
    handles: VecDeque<D::Handle>,
    longest_add: Duration,
}

impl<'a, D: Driven> Adder<'a, D> {
    fn new(timer: &'a D, origin: Instant, number: u64) -> Self {
        let mut random = Random::new();
        (0..number).for_each(|_| _ = random.below(2)); // Each has deadlines of its own.
        Adder {
            timer,
            origin,
            random,
            handles: VecDeque::new(),
            longest_add: Duration::ZERO,
        }
    }

    fn fill(&mut self, count: u64) {
        for _ in 0..count {
            self.add_far();
        }
    }

    fn run(mut self, time: Duration) -> Tally {
        let start = Instant::now();
        let mut now = start;
        let mut pairs = 0;
        let mut shorts = 0;
        let mut next_short = start;
        self.longest_add = Duration::ZERO; // That of the filling does not count.
        while now < start + time {
            now = self.add_far();
            let oldest = self.handles.pop_front().expect("as many as before");
            assert!(self.timer.cancel(oldest), "it is far away");
            pairs += 1;
            // All expire while there is load: those after it would be late by less.
            if next_short <= now && now + LONGEST_SHORT < start + time {
                next_short += MILLISECOND;
                shorts += 1;
                now = self.add_short();
            }
        }
        let pair = start.elapsed().as_nanos() as f64 / pairs as f64;
        Tally {
            shorts,
            longest_add: self.longest_add,
            pair,
        }
    }

    /// Adds a timer that is half a minute and more away. The present after that.
    fn add_far(&mut self) -> Instant {
        let timeout = Duration::from_millis(30_000 + self.random.below(30_000));
        let (handle, after) = self.add(timeout);
        self.handles.push_back(handle);
        after
    }

    /// Adds a timer that will expire.
    fn add_short(&mut self) -> Instant {
        let range = (LONGEST_SHORT - MILLISECOND).as_nanos() as u64;
        let timeout = MILLISECOND + Duration::from_nanos(self.random.below(range + 1));
        self.add(timeout).1
    }

    fn add(&mut self, timeout: Duration) -> (D::Handle, Instant) {
        let before = Instant::now();
        let due = (before + timeout).duration_since(self.origin).as_nanos() as u64;
        let handle = self.timer.add(due);
        let after = Instant::now();
        self.longest_add = self.longest_add.max(after - before);
        (handle, after)
    }
}
