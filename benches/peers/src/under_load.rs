//! W9: how late timers are while adders keep the timer, and the cores, busy.

use crate::lateness::{self, Lateness, Recorder};
use crate::work::Random;
use std::collections::VecDeque;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Of all adders together.
const OUTSTANDING: u64 = 100_000;
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
        let (timer, barrier) = (Arc::clone(&timer), Arc::clone(&barrier));
        thread::spawn(move || {
            let mut adder = Adder::new(&*timer, origin, number);
            adder.fill(OUTSTANDING / adders);
            barrier.wait();
            adder.run(time)
        })
    };
    let running: Vec<_> = (0..adders).map(start).collect();
    barrier.wait();
    let bare_sleep = lateness::bare_sleep(MILLISECOND, time);
    let tallies: Vec<Tally> =
        running.into_iter().map(|adder| adder.join().expect("no panic")).collect();
    let shorts: u64 = tallies.iter().map(|tally| tally.shorts).sum();
    let give_up = Instant::now() + PATIENCE;
    while recorder.count() < shorts && Instant::now() < give_up {
        thread::sleep(MILLISECOND);
    }
    drop(timer); // And with it the thread: nothing runs any more.
    assert_eq!(recorder.count(), shorts, "each short timer has expired, and nothing else");
    let longest_add = tallies.iter().map(|tally| tally.longest_add).max().unwrap_or_default();
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
        Adder { timer, origin, random, handles: VecDeque::new(), longest_add: Duration::ZERO }
    }

    fn fill(&mut self, count: u64) {
        for _ in 0..count {
            self.add_far();
        }
    }

    fn run(mut self, time: Duration) -> Tally {
        let start = Instant::now();
        let (mut now, mut pairs, mut shorts) = (start, 0, 0);
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
        Tally { shorts, longest_add: self.longest_add, pair }
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
