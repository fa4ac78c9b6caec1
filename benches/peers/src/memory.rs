//! W6: bytes per outstanding timer, exactly, as the allocator counts them.

use crate::contenders::Tickwheel;
use crate::keyed::add_key;
use crate::work::{Contender, Random};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

/// Returns the number of bytes that are allocated now.
#[allow(unsafe_code)]
pub fn allocated() -> f64 {
    // SAFETY: reads glibc's counters; takes and changes nothing.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as f64
}

/// Adds `count` timers over 60 s: bytes per timer, the empty structure included.
pub fn per_timer<C: Contender>(count: u64) -> f64 {
    let mut random = Random::new();
    let before = allocated();
    let mut contender = C::new();
    for task in 0..count {
        let deadline = contender.deadline(1 + random.below(60_000));
        contender.add(deadline, task);
    }
    (allocated() - before) / count as f64
}

/// Adds and cancels `pairs` more, with 1 k timers alive. Returns the memory as a multiple of the
/// memory before.
pub fn after_churn(pairs: u64) -> f64 {
    const ALIVE: usize = 1_000;
    let mut random = Random::new();
    let mut handles = Vec::with_capacity(ALIVE);
    let before = allocated();
    let mut contender = Tickwheel::new();
    for task in 0..ALIVE as u64 {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        handles.push(contender.add(deadline, task));
    }
    let live = allocated() - before;
    for n in 0..pairs {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        let handle = contender.add(deadline, n);
        let victim = random.below(ALIVE as u64) as usize;
        assert!(contender.cancel(std::mem::replace(&mut handles[victim], handle)));
    }
    (allocated() - before) / live
}

/// Adds a burst of `count` and cancels it, with 10 k timers alive. Returns the memory as a multiple
/// of the memory before.
pub fn after_burst(count: u64) -> f64 {
    let mut random = Random::new();
    let mut burst = Vec::with_capacity(count as usize);
    let before = allocated();
    let mut contender = Tickwheel::new();
    let mut kept = Vec::with_capacity(10_000);
    for task in 0..10_000 {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        kept.push(contender.add(deadline, task));
    }
    let start = allocated() - before;
    for task in 0..count {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        burst.push(contender.add(deadline, task));
    }
    burst
        .drain(..)
        .for_each(|handle| assert!(contender.cancel(handle)));
    (allocated() - before) / start
}

/// A delayed operation that is completed once `held` says so.
struct Operation {
    held: &'static AtomicBool,
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    fn on_complete(&mut self) {}
}

/// Schedules `count` keys, none of which expires: bytes per key, timer included.
pub fn per_key(count: u64) -> f64 {
    let mut random = Random::new();
    let before = allocated();
    let timer = Timer::builder()
        .build()
        .expect("the options are in their ranges");
    let keyed = KeyedTimer::new(&timer, |_: u64, _: u64| ());
    for key in 0..count {
        let timeout = Duration::from_millis(3_600_000 + random.below(1_800_000));
        add_key(&keyed, key, timeout, key);
    }
    (allocated() - before) / count as f64
}

/// Watches `count` operations on two of 10,000 keys each, at random: bytes per operation, timer
/// included. Then completes them all: the bytes that are left of the empty purgatory and its timer.
pub fn per_operation(count: u64) -> (f64, f64) {
    const KEYS: u64 = 10_000;
    let mut random = Random::new();
    watch_and_complete(count, KEYS, |_| [random.below(KEYS), random.below(KEYS)])
}

/// Returns the same for operations of which each has two keys of its own.
pub fn per_lone_operation(count: u64) -> f64 {
    watch_and_complete(count, 2 * count, |number| [2 * number, 2 * number + 1]).0
}

fn watch_and_complete(count: u64, keys: u64, mut pair: impl FnMut(u64) -> [u64; 2]) -> (f64, f64) {
    static HELD: AtomicBool = AtomicBool::new(false);
    HELD.store(false, Ordering::Relaxed);
    let before = allocated();
    let timer = Timer::builder()
        .build()
        .expect("the options are in their ranges");
    let purgatory = Purgatory::new(&timer);
    for number in 0..count {
        let pair = pair(number);
        let timeout = Duration::from_secs(30);
        let watch = purgatory.try_complete_else_watch(Operation { held: &HELD }, timeout, &pair);
        assert!(watch.is_ok_and(|watch| !watch.is_completed()));
    }
    let bytes = (allocated() - before) / count as f64;
    HELD.store(true, Ordering::Relaxed);
    let completed: usize = (0..keys)
        .map(|key| purgatory.check_and_complete(&key))
        .sum();
    assert_eq!(completed as u64, count);
    (bytes, allocated() - before)
}
