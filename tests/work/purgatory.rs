//! Purgatories.

use crate::{DIRECTORY, SIZES, check_with, millis, timer_of_tasks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tickwheel::purgatory::{Cancelled, DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Timer};

/// Complete as soon as all are.
struct Operation(Arc<AtomicBool>);

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn on_complete(&mut self) {}
}

struct Fixture {
    timer: Timer,
    clock: ManualClock,
    purgatory: Purgatory<u64, Operation>,
    are_complete: Arc<AtomicBool>,
    handles: Vec<Pending<u64, Operation>>,
}

/// A key that all of them have.
const CROWDED: u64 = u64::MAX;

/// So many operations: each has a key that all have, and one of its own.
fn filled(size: u64, first: impl Fn(u64) -> [u64; 2]) -> Fixture {
    let (timer, clock) = timer_of_tasks();
    let purgatory = Purgatory::new(&timer);
    let are_complete = Arc::new(AtomicBool::new(false));
    let watch = |number| {
        let operation = Operation(Arc::clone(&are_complete));
        let watch = purgatory.try_complete_else_watch(operation, millis(1_000), &first(number));
        watch.expect("there is no limit").pending().expect("it is not complete")
    };
    let handles = check_with("watch", size / DIRECTORY, || (0..size).map(watch).collect());
    Fixture { timer, clock, purgatory, are_complete, handles }
}

/// All records lie in one shard, or in all of them.
fn each_way(test: impl Fn(Fixture, u64)) {
    for size in SIZES {
        test(filled(size, |number| [CROWDED, number]), size);
        test(filled(size, |number| [number, CROWDED]), size);
    }
}

#[test]
fn triggers() {
    each_way(|it, size| {
        check_with("a trigger of all", size / DIRECTORY, || {
            assert_eq!(it.purgatory.check_and_complete(&CROWDED), 0)
        });
        check_with("triggers of each", size / DIRECTORY, || {
            (0..size).for_each(|key| assert_eq!(it.purgatory.check_and_complete(&key), 0));
        });
        check_with("questions", size / DIRECTORY, || {
            assert_eq!(it.purgatory.watched() as u64, 2 * size);
            assert_eq!(it.purgatory.watched_for(&CROWDED) as u64, size);
            assert_eq!(it.purgatory.delayed() as u64, size);
            assert_eq!(it.purgatory.stats().delayed as u64, size);
            assert!(it.handles.iter().all(|handle| !handle.is_completed()));
        });
        it.are_complete.store(true, Ordering::Relaxed);
        let all = check_with("completion", size / DIRECTORY, || {
            it.purgatory.check_and_complete(&CROWDED)
        });
        assert_eq!(all as u64, size);
        check_with("drop of handles", size / DIRECTORY, || drop(it.handles));
    });
}

#[test]
fn ends_one_by_one() {
    each_way(|it, size| {
        check_with("cancel and force", size / DIRECTORY, || {
            for (number, handle) in (0_u64..).zip(&it.handles) {
                match number % 3 {
                    0 => assert!(matches!(handle.cancel(), Cancelled::Returned(_))),
                    1 => assert!(handle.force_complete()),
                    _ => {}
                }
            }
        });
        check_with("a trigger of the others", size / DIRECTORY, || {
            it.purgatory.check_and_complete(&CROWDED)
        });
        check_with("expiry", size / DIRECTORY, || {
            it.clock.advance(millis(1_000));
            assert_eq!(it.timer.advance_clock(Duration::ZERO) as u64, size / 3);
        });
        assert_eq!(it.purgatory.delayed(), 0);
    });
}

/// All but each 1,024th have left a line before it is visited.
#[test]
fn a_line_with_few_left() {
    each_way(|it, size| {
        for (number, handle) in (0_u64..).zip(&it.handles) {
            if number % 1024 != 0 {
                assert!(matches!(handle.cancel(), Cancelled::Returned(_)));
            }
        }
        check_with("a trigger", size / DIRECTORY, || {
            assert_eq!(it.purgatory.check_and_complete(&CROWDED), 0)
        });
        let left = check_with("cancel_for_key", size / DIRECTORY, || {
            it.purgatory.cancel_for_key(&CROWDED)
        });
        assert_eq!(left.len() as u64, size.div_ceil(1024));
    });
}

#[test]
fn cancel_for_key() {
    each_way(|it, size| {
        let all = check_with("cancel_for_key", size / DIRECTORY, || {
            it.purgatory.cancel_for_key(&CROWDED)
        });
        assert_eq!(all.len() as u64, size);
    });
}

#[test]
fn shutdown() {
    each_way(|it, size| {
        let all = check_with("shutdown", size / DIRECTORY, || it.purgatory.shutdown());
        assert_eq!(all.len() as u64, size);
        check_with("another one", size / DIRECTORY, || assert!(it.purgatory.shutdown().is_empty()));
        check_with("drop", size / DIRECTORY, || drop(it.purgatory));
    });
}

#[test]
fn dropped() {
    each_way(|mut it, size| {
        it.handles.truncate(it.handles.len() / 2);
        check_with("drop", size / DIRECTORY, || drop(it.purgatory));
        assert!(it.timer.is_empty());
        check_with("drop of handles", size / DIRECTORY, || drop(it.handles));
    });
}
