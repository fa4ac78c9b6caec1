//! What one call costs: add, churn (add + cancel), expire, reschedule, and the same from several
//! threads. Each benchmark asserts that the work was really done.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timeout, Timer, TimerEntry};

const OUTSTANDING: u64 = 100_000;

/// A timer that counts nothing on a clock that stands still, and deadlines 30 to 60 s away.
struct Bench {
    clock: ManualClock,
    timer: Timer<u64>,
    random: u64,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().clock(clock.clone()).shards(4);
        let timer = builder
            .executor(|task: u64| {
                black_box(task);
            })
            .build()
            .expect("valid");
        Bench {
            clock,
            timer,
            random: 0x2545_F491_4F6C_DD1D,
        }
    }

    fn deadline(&mut self) -> Instant {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.clock.now() + Duration::from_millis(30_000 + self.random % 30_000)
    }

    fn add(&self, deadline: Instant) -> Timeout<u64> {
        self.timer
            .add(TimerEntry::at(deadline, 1_u64))
            .expect("there is no limit")
    }

    fn fill(&mut self) -> VecDeque<Timeout<u64>> {
        (0..OUTSTANDING)
            .map(|_| {
                let deadline = self.deadline();
                self.add(deadline)
            })
            .collect()
    }
}

fn add(c: &mut Criterion) {
    let mut bench = Bench::new();
    let deadlines: Vec<Instant> = (0..OUTSTANDING).map(|_| bench.deadline()).collect();
    let mut group = c.benchmark_group("add");
    group.throughput(Throughput::Elements(OUTSTANDING));
    group.bench_function("100k", |b| {
        b.iter_batched_ref(
            Bench::new,
            |fresh| {
                for deadline in &deadlines {
                    black_box(fresh.add(*deadline));
                }
                assert_eq!(fresh.timer.len() as u64, OUTSTANDING);
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn churn(c: &mut Criterion) {
    let mut bench = Bench::new();
    let mut handles = bench.fill();
    let timer = bench.timer.clone();
    c.bench_function("churn/add and cancel the oldest of 100k", |b| {
        b.iter_batched(
            || bench.deadline(),
            |deadline| {
                handles.push_back(timer.add(TimerEntry::at(deadline, 1_u64)).expect("room"));
                let oldest = handles.pop_front().expect("as many as before");
                assert!(oldest.cancel().is_cancelled());
            },
            BatchSize::LargeInput,
        );
    });
}

fn expire(c: &mut Criterion) {
    let mut group = c.benchmark_group("expire");
    group.throughput(Throughput::Elements(OUTSTANDING));
    group.bench_function("100k in steps of 1 ms", |b| {
        b.iter_batched_ref(
            || {
                let mut bench = Bench::new();
                bench.fill();
                bench
            },
            |bench| {
                let expired: usize = (0..60_000)
                    .map(|_| {
                        bench.clock.advance(Duration::from_millis(1));
                        bench.timer.advance_clock(Duration::ZERO)
                    })
                    .sum();
                assert_eq!(expired as u64, OUTSTANDING);
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn reschedule(c: &mut Criterion) {
    let mut bench = Bench::new();
    let mut handles = bench.fill();
    let mut later = bench.clock.now() + Duration::from_secs(60);
    let mut earlier = later;
    let mut group = c.benchmark_group("reschedule");
    group.bench_function("later (touch)", |b| {
        b.iter(|| {
            later += Duration::from_nanos(1);
            handles.rotate_left(1);
            assert!(handles[0].touch(later));
        });
    });
    group.bench_function("earlier", |b| {
        b.iter(|| {
            earlier -= Duration::from_nanos(1);
            handles.rotate_left(1);
            assert!(handles[0].reschedule(earlier));
        });
    });
    group.finish();
}

fn contention(c: &mut Criterion) {
    let mut group = c.benchmark_group("contention");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, cores] {
        let name = format!("add and cancel from each of {threads} threads");
        group.bench_function(name, |b| {
            b.iter_custom(|pairs| {
                let bench = Bench::new();
                let deadline = bench.clock.now() + Duration::from_secs(30);
                let barrier = Barrier::new(threads);
                let run = || {
                    barrier.wait();
                    let started = Instant::now();
                    for _ in 0..pairs {
                        assert!(bench.add(deadline).cancel().is_cancelled());
                    }
                    started.elapsed()
                };
                let longest = thread::scope(|scope| {
                    let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                    running
                        .into_iter()
                        .map(|thread| thread.join().expect("no panic"))
                        .max()
                });
                assert_eq!(bench.timer.stats().cancelled, pairs * threads as u64);
                longest.expect("at least one thread")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, add, churn, expire, reschedule, contention);
criterion_main!(benches);
