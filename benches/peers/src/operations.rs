//! Delayed operations, end to end: P1 and P2.

use crate::work::{Random, measured, nanos_per};
use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

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
    assert_eq!(purgatory.delayed() as u64, operations);
    GATE.store(true, Ordering::Release);
    let completed = on_each(threads, trigger);
    let operation = nanos_per(started, operations);
    assert_eq!(completed as u64, operations);
    assert_eq!((purgatory.watched(), purgatory.delayed()), (0, 0));
    operation
}

/// Does the work on so many threads, given the thread's number: the sum of what they return. They
/// have ended then: the next ones get their thread numbers, and their places in the allocator.
fn on_each(threads: u64, work: impl Fn(u64) -> usize + Sync) -> usize {
    let work = &work;
    thread::scope(|scope| {
        let spawn = |thread| scope.spawn(move || measured(|| work(thread)));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}
