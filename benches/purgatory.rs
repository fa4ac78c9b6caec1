//! What delayed operations cost: a million of them, end to end, from one thread (P1) and from two
//! (P2), and single triggers. Each benchmark asserts that the work was really done.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

const OPERATIONS: u64 = 1_000_000;
const KEYS: u64 = 10_000;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether operations can be completed.
static GATE: AtomicBool = AtomicBool::new(false);

struct Operation {
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

struct Bench {
    _timer: Timer,
    purgatory: Purgatory<u64, Operation>,
}

impl Bench {
    fn new() -> Self {
        let timer = Timer::builder().start().expect("a thread can be started");
        let purgatory = Purgatory::new(&timer);
        GATE.store(false, Ordering::Release);
        Bench { _timer: timer, purgatory }
    }

    fn watch(&self, id: u64, keys: &[u64]) {
        let operation = Operation { id };
        let watch = self.purgatory.try_complete_else_watch(operation, TIMEOUT, keys);
        assert!(watch.is_ok_and(|watch| !watch.is_completed()));
    }

    /// A million operations on two keys each at random, from so many threads; then all keys are
    /// triggered until all operations are complete.
    fn end_to_end(&self, threads: u64) -> Duration {
        let completed = AtomicU64::new(0);
        let start = Instant::now();
        thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let mut random = 0x2545_F491_4F6C_DD1D + thread;
                    let mut key = || {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        random % KEYS
                    };
                    for id in 0..OPERATIONS / threads {
                        self.watch(id, &[key(), key()]);
                    }
                });
            }
        });
        assert_eq!(self.purgatory.delayed() as u64, OPERATIONS);
        GATE.store(true, Ordering::Release);
        thread::scope(|scope| {
            for thread in 0..threads {
                let completed = &completed;
                scope.spawn(move || {
                    let keys = (thread..KEYS).step_by(threads as usize);
                    let count: usize =
                        keys.map(|key| self.purgatory.check_and_complete(&key)).sum();
                    completed.fetch_add(count as u64, Ordering::Relaxed);
                });
            }
        });
        let took = start.elapsed();
        assert_eq!(completed.into_inner(), OPERATIONS);
        assert_eq!((self.purgatory.watched(), self.purgatory.delayed()), (0, 0));
        took
    }
}

fn end_to_end(c: &mut Criterion) {
    let mut group = c.benchmark_group("purgatory");
    group.throughput(Throughput::Elements(OPERATIONS)).sample_size(10);
    for (name, threads) in [("P1", 1), ("P2", 2)] {
        group.bench_function(name, |b| {
            b.iter_custom(|count| (0..count).map(|_| Bench::new().end_to_end(threads)).sum());
        });
    }
    group.finish();
}

fn triggers(c: &mut Criterion) {
    let bench = Bench::new();
    bench.watch(1, &[1]);
    let mut group = c.benchmark_group("trigger");
    group.bench_function("of a key that nobody watches", |b| {
        b.iter(|| assert_eq!(bench.purgatory.check_and_complete(black_box(&2)), 0));
    });
    group.bench_function("of an operation whose condition does not hold", |b| {
        b.iter(|| assert_eq!(bench.purgatory.check_and_complete(black_box(&1)), 0));
    });
    assert_eq!(bench.purgatory.delayed(), 1);
    group.finish();
}

criterion_group!(benches, end_to_end, triggers);
criterion_main!(benches);
