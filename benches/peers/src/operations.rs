//! Delayed operations: end to end, on the system's clock (P1, P2), and how long it takes to expire
//! them, and keys, in virtual time (P_expire, K_expire).

use crate::keyed::add_key;
use crate::work::{Random, measured, nanos_per};
use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether operations can be completed.
static GATE: AtomicBool = AtomicBool::new(false);

pub struct Operation {
    id: u64,
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        GATE.load(Ordering::Acquire)
    }

    fn on_complete(&mut self) {
        black_box(self.id);
    }
}

/// Measures a million operations on 10,000 keys, as a service has them: on the system's clock, with
/// the reaper running.
pub fn million(threads: u64) -> f64 {
    let timer = Timer::builder().start().expect("a thread");
    end_to_end(&Purgatory::new(&timer), threads, 1_000_000, 10_000)
}

/// Measures the same million in batches of 10,000 on 100 keys, so that all live operations fit into
/// the caches.
pub fn small_batches() -> f64 {
    const BATCHES: u64 = 100;
    let timer = Timer::builder().start().expect("a thread");
    let purgatory = Purgatory::new(&timer);
    let batch = |_| end_to_end(&purgatory, 1, 1_000_000 / BATCHES, 100);
    (0..BATCHES).map(batch).sum::<f64>() / BATCHES as f64
}

/// Adds so many operations, each on two random keys, from so many threads; then triggers all keys
/// until all operations are complete. Returns nanoseconds per operation.
pub fn end_to_end<S>(
    purgatory: &Purgatory<u64, Operation, S>,
    threads: u64,
    operations: u64,
    keys: u64,
) -> f64
where
    S: BuildHasher + Sync,
{
    let watch = |thread| {
        let mut random = Random::numbered(thread);
        for id in 0..operations / threads {
            let pair = [random.below(keys), random.below(keys)];
            let watch = purgatory.try_complete_else_watch(Operation { id }, TIMEOUT, &pair);
            assert!(watch.is_ok_and(|watch| !watch.is_completed()));
        }
        0
    };
    let trigger = |thread| {
        let keys = (thread..keys).step_by(threads as usize);
        keys.map(|key| purgatory.check_and_complete(&key)).sum()
    };
    GATE.store(false, Ordering::Release);
    let started = Instant::now();
    on_each(threads, watch);
    assert_eq!(purgatory.len() as u64, operations);
    GATE.store(true, Ordering::Release);
    let completed = on_each(threads, trigger);
    let operation = nanos_per(started, operations);
    assert_eq!(completed as u64, operations);
    assert_eq!((purgatory.stats().watched, purgatory.len()), (0, 0));
    operation
}

/// Does the work on so many threads, given the thread's number: the sum of what they return. They
/// have ended then: the next ones get their thread numbers, and their places in the allocator.
fn on_each(threads: u64, work: impl Fn(u64) -> usize + Sync) -> usize {
    let work = &work;
    thread::scope(|scope| {
        let spawn = |thread| scope.spawn(move || measured(|| work(thread)));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    })
}

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
pub fn expire_operations(count: u64) -> f64 {
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
pub fn expire_keys(count: u64) -> f64 {
    let (timer, clock, expired) = world();
    let counts = Arc::clone(&expired);
    let keyed = KeyedTimer::new(&timer, move |_: u64, ()| {
        counts.fetch_add(1, Ordering::Relaxed);
    });
    let mut random = Random::new();
    for key in 0..count {
        let timeout = Duration::from_millis(1 + random.below(SPAN));
        add_key(&keyed, key, timeout, ());
    }
    expire(&timer, &clock, &expired, count)
}

fn world() -> (Timer, ManualClock, Arc<AtomicU64>) {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).shards(4);
    let timer = builder.build().expect("the options are valid");
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
