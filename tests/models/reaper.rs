//! Models of the reaper's sleep: a wake-up that is lost is a deadlock.

use crate::harness::{all, both, explore};
use crate::world::World;
use shuttle::thread;
use std::time::Duration;

/// The reaper sleeps, or is about to, for a far timer when an earlier one is added.
///
/// Fails when an offer is compared with what the sleeper sleeps for before the gate is locked.
#[test]
fn earlier_timer_wakes() {
    explore("earlier_timer_wakes", 1, || {
        let world = World::with_reaper();
        world.add_at(0, 90);
        both(|| world.add_at(1, 3), || world.pass(3));
        world.end_after([1])
    });
}

/// The first timers of an empty timer, without delay: no clock has to move.
///
/// Fails when an offer wakes nobody because it is compared with a queue that holds it already.
#[test]
fn first_timer_wakes() {
    explore("first_timer_wakes", 2, || {
        let world = World::with_reaper();
        all(|| world.add(0, 0), || world.add(1, 0), || world.add(2, 9));
        world.end_after([0, 1])
    });
}

/// The clock moves while the reaper goes to sleep.
///
/// Fails when moving the clock wakes without taking the gate's lock.
#[test]
fn moving_the_clock_wakes() {
    explore("moving_the_clock_wakes", 2, || {
        let world = World::with_reaper();
        world.add_at(0, 3);
        world.pass(3);
        world.end_after([0])
    });
}

/// The clock is moved once while timers are added, moved up and cascaded.
///
/// Fails when a timer that is moved up does not wake the reaper.
#[test]
fn earlier_deadline_wakes() {
    explore("earlier_deadline_wakes", 1, || {
        let world = World::with_reaper();
        let timeout = world.add_at(0, 90);
        both(|| world.reschedule(0, &timeout, 0, false), || (world.add_at(1, 6), world.pass(6)));
        world.end_after([0, 1])
    });
}

/// Somebody else has the bucket in hand, and cascades it, when the reaper looks for the next.
///
/// Fails when what a flush arms wakes nobody.
#[test]
fn flush_by_hand_wakes() {
    explore("flush_by_hand_wakes", 1, || {
        let world = World::with_reaper();
        world.add_at(0, 6);
        all(
            || world.timer.advance_clock(Duration::ZERO),
            || (world.pass(5), world.timer.advance_clock(Duration::ZERO)),
            || {
                world.pass(1);
                world.book.wait_for(0);
            },
        );
        world.end_after([])
    });
}

/// Before it sleeps the reaper takes empty buckets off the queue; others add to them.
///
/// Fails when the cell's lock is released between seeing that a bucket is empty and disarming it.
#[test]
fn pruned_bucket_wakes() {
    explore("pruned_bucket_wakes", 2, || {
        let world = World::with_reaper();
        let timeout = world.add_at(0, 3);
        all(
            || world.cancel(0, &timeout),
            || (world.add_at(1, 3), world.pass(3)),
            || {
                let _ = world.timer.next_expiration();
                world.book.wait_for(1);
            },
        );
        world.end_after([])
    });
}

/// Somebody else flushes a bucket of more than a batch, and is kept by a task of the first batch
/// until the last timer has fired: which the reaper has to see to.
///
/// Fails when a bucket that is put back after a batch is not compared with what sleepers sleep for.
#[test]
fn rest_of_a_bucket_wakes() {
    explore("rest_of_a_bucket_wakes", 1, || {
        let world = World::with_reaper();
        let book = std::sync::Arc::clone(&world.book);
        world.add_with(0, 3, move || book.wait_for(129));
        for id in 1..130 {
            world.add_at(id, 3);
        }
        thread::scope(|scope| {
            scope.spawn(|| (world.pass(3), world.timer.advance_clock(Duration::ZERO)));
        });
        world.end_after([129])
    });
}
