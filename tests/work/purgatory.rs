//! Purgatories.

use crate::{DIRECTORY, SIZES, check_with, millis, timer_of_tasks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::purgatory::{Cancel, DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Timer, work};

/// Complete as soon as all are, or when it gets an item.
struct Operation(Arc<Condition>);

#[derive(Default)]
struct Condition {
    holds: AtomicBool,
    items: AtomicU64,
    checks: AtomicU64,
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        self.0.checks.fetch_add(1, Ordering::Relaxed);
        let take = |items: u64| items.checked_sub(1);
        let took = self.0.items.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        took || self.0.holds.load(Ordering::Relaxed)
    }

    fn on_complete(&mut self) {}
}

struct Fixture {
    timer: Timer,
    clock: ManualClock,
    purgatory: Purgatory<u64, Operation>,
    condition: Arc<Condition>,
    handles: Vec<Pending<u64, Operation>>,
}

/// A key that all of them have.
const CROWDED: u64 = u64::MAX;

/// Adds so many operations: each has a key that all share, and one of its own.
fn filled(size: u64, first: impl Fn(u64) -> [u64; 2]) -> Fixture {
    let (timer, clock) = timer_of_tasks();
    let purgatory = Purgatory::new(&timer);
    let condition = Arc::new(Condition::default());
    let watch = |number| {
        let operation = Operation(Arc::clone(&condition));
        let watch = purgatory.try_complete_else_watch(operation, millis(1_000), &first(number));
        watch.expect("there is no limit").pending().expect("it is not complete")
    };
    let handles = check_with("watch", size / DIRECTORY, || (0..size).map(watch).collect());
    Fixture { timer, clock, purgatory, condition, handles }
}

/// Runs the test with all records in one shard, and with records in all shards.
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
            assert_eq!(it.purgatory.stats().watched as u64, 2 * size);
            assert_eq!(it.purgatory.watched_for(&CROWDED) as u64, size);
            assert_eq!(it.purgatory.len() as u64, size);
            assert_eq!(it.purgatory.stats().delayed as u64, size);
            assert!(it.handles.iter().all(|handle| handle.is_pending()));
        });
        it.condition.holds.store(true, Ordering::Relaxed);
        let all = check_with("completion", size / DIRECTORY, || {
            it.purgatory.check_and_complete(&CROWDED)
        });
        assert_eq!(all as u64, size);
        check_with("drop of handles", size / DIRECTORY, || drop(it.handles));
    });
}

/// The most units under a shard's lock where one operation, or a batch of them, is asked for items.
const FEW: u64 = 3 * 32 + 8;

/// The work of a call, and its checks under a lock, follow from its limit, and not from the number
/// of waiting operations.
#[test]
fn items_for_some() {
    each_way(|it, size| {
        let checks = || it.condition.checks.load(Ordering::Relaxed);
        for (limit, items, checked) in [(1, 1, 1), (1, 1, 1), (5, 5, 5), (100, 100, 100)] {
            let before = checks();
            it.condition.items.store(items, Ordering::Relaxed);
            work::reset();
            assert_eq!(it.purgatory.check_and_complete_up_to(&CROWDED, limit), limit);
            assert_eq!(checks() - before, checked, "{limit} of {size}");
            let most = work::longest();
            let shard =
                most.iter().find(|(lock, _)| lock.contains("purgatory::operations::Operations"));
            let units = *shard.expect("it was locked").1;
            assert!(units <= if limit == 1 { 8 } else { FEW }, "{units} for {limit} of {size}");
        }
        check_with("a call that finds nothing", size / DIRECTORY, || {
            assert_eq!(it.purgatory.check_and_complete_up_to(&CROWDED, 1), 0);
        });
    });
}

#[test]
fn ends_one_by_one() {
    each_way(|it, size| {
        check_with("cancel and force", size / DIRECTORY, || {
            for (number, handle) in (0_u64..).zip(&it.handles) {
                match number % 3 {
                    0 => assert!(matches!(handle.cancel(), Cancel::Cancelled(_))),
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
        assert_eq!(it.purgatory.len(), 0);
    });
}

/// All but each 1,024th have left a line before it is visited.
#[test]
fn a_line_with_few_left() {
    each_way(|it, size| {
        for (number, handle) in (0_u64..).zip(&it.handles) {
            if number % 1024 != 0 {
                assert!(matches!(handle.cancel(), Cancel::Cancelled(_)));
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
