//! What single triggers cost. Each benchmark asserts that the work was really done. Operations end
//! to end, P1 and P2, are in the peers' benchmark.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

struct Waits;

impl DelayedOperation for Waits {
    fn try_complete(&mut self) -> bool {
        black_box(false)
    }

    fn on_complete(&mut self) {}
}

fn triggers(c: &mut Criterion) {
    let timer = Timer::builder().start().expect("a thread can be started");
    let purgatory: Purgatory<u64, Waits> = Purgatory::new(&timer);
    let watch = purgatory.try_complete_else_watch(Waits, Duration::from_secs(3_600), &[1]);
    assert!(watch.is_ok_and(|watch| !watch.is_completed()));
    let mut group = c.benchmark_group("trigger");
    group.bench_function("of a key that nobody watches", |b| {
        b.iter(|| assert_eq!(purgatory.check_and_complete(black_box(&2)), 0));
    });
    group.bench_function("of an operation whose condition does not hold", |b| {
        b.iter(|| assert_eq!(purgatory.check_and_complete(black_box(&1)), 0));
    });
    assert_eq!(purgatory.len(), 1);
    group.finish();
}

criterion_group!(benches, triggers);
criterion_main!(benches);
