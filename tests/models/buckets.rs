//! Models of buckets: adding, flushing, cascading, leaping and pruning.

use crate::harness::{all, both, explore};
use crate::world::World;
use std::time::Duration;

/// Fails when a flush disarms its bucket after it has released the cell's lock.
#[test]
fn add_against_flush() {
    explore("add_against_flush", 6, || {
        let world = World::by_hand();
        all(
            || (world.add_at(0, 2), world.add_at(1, 2)),
            || (world.add(2, 2), world.add(3, 0)),
            || world.turns([2, 2]),
        );
        world.finish()
    });
}

/// Ticks 4 to 7 lie in the overflow wheel at first.
///
/// Fails when a bucket is offered to the queue after the cell's lock was released, or when the
/// shard's time leaps without asking whether a bucket is due.
#[test]
fn add_against_cascade() {
    explore("add_against_cascade", 6, || {
        let world = World::by_hand();
        world.add_at(0, 6);
        all(
            || (world.add_at(1, 7), world.add_at(2, 5)),
            || (world.add(3, 5), world.add_at(4, 6)),
            || world.turns([3, 3, 1]),
        );
        world.finish()
    });
}

/// The same with two cells in use, which share the delay queue.
///
/// Fails when the queue takes buckets of two cells for one, because level, slot and tick agree.
#[test]
fn add_against_cascade_of_another_cell() {
    explore("add_against_cascade_of_another_cell", 6, || {
        let world = World::new(|builder| builder.shards(4).build());
        world.add_at(0, 6);
        all(
            || (world.add_at(1, 6), world.add_at(2, 3)),
            || (world.add_at(3, 6), world.add_at(4, 3)),
            || world.turns([3, 3]),
        );
        world.finish()
    });
}

/// Two shards are used by threads while a reaper and another thread take turns.
///
/// Fails when a turn forgets one of several buckets that it has passed over.
#[test]
fn add_against_busy_turns() {
    explore("add_against_busy_turns", 6, || {
        let world = World::new(|builder| builder.shards(4).start());
        world.add_at(0, 1);
        all(
            || (world.add_at(1, 1), world.add(2, 0)),
            || (world.add_at(3, 6), world.cancel(4, &world.add_at(4, 1))),
            || {
                for step in [1, 5] {
                    world.pass(step);
                    world.timer.advance_clock(Duration::ZERO);
                }
            },
        );
        world.end_after(0..4)
    });
}

/// A bucket of 130 is flushed in two batches, between which others may come in.
///
/// Fails when a bucket that is not empty after its first batch is not put back into the queue.
#[test]
fn add_between_batches() {
    explore("add_between_batches", 2, || {
        let world = World::by_hand();
        for id in 0..130 {
            world.add_at(id, 3);
        }
        both(|| world.add_at(130, 3), || world.turns([3]));
        world.finish()
    });
}

/// All is due before two threads advance. When both have returned it has fired, and each thread
/// has fired its share in order.
///
/// Fails when a batch is polled and flushed without the turn's lock.
#[test]
fn two_advance() {
    explore("two_advance", 2, || {
        let world = World::by_hand();
        for (id, at) in [(0, 6), (1, 1), (2, 7), (3, 3), (4, 5)] {
            world.add_at(id, at);
        }
        world.pass(7);
        both(
            || world.timer.advance_clock(Duration::ZERO),
            || world.timer.advance_clock(Duration::ZERO),
        );
        (0..5).for_each(|id| assert!(world.has_ended(id), "timer {id} is late"));
        world.assert_fired_in_order();
        world.finish()
    });
}

/// Each moves the clock and advances; when both have returned all that is due has fired.
///
/// Fails when a turn ends at once because the only due bucket is in the hands of an earlier turn.
#[test]
fn two_move_the_clock_and_advance() {
    explore("two_move_the_clock_and_advance", 2, || {
        let world = World::by_hand();
        world.add_at(0, 5);
        let moves = || (world.pass(3), world.timer.advance_clock(Duration::ZERO));
        both(moves, moves);
        assert!(world.has_ended(0), "it is late");
        world.finish()
    });
}

/// An idle shard's time leaps while a due bucket is flushed.
///
/// Fails when the time leaps although a bucket is due.
#[test]
fn leap_against_flush() {
    explore("leap_against_flush", 4, || {
        let world = World::by_hand();
        world.add_at(0, 6);
        world.add_at(1, 90);
        world.pass(6);
        both(
            || {
                world.pass(14);
                world.add(2, 5);
                world.add(3, 1);
            },
            || {
                world.turn();
                world.pass(1);
                world.turn();
            },
        );
        world.finish()
    });
}

/// Two clocks that disagree: an adder has read the time, and files under tick 1 while the bucket of
/// tick 3 is being flushed. What that adds a revolution after tick 1 belongs into the same bucket.
///
/// Fails when a bucket is polled before its cell is locked: then the wheels' time leaps over the
/// bucket of tick 1, whose flush files the later timer into it again, endlessly.
#[test]
fn add_by_an_older_clock_against_flush() {
    explore("add_by_an_older_clock_against_flush", 2, || {
        let world = World::by_hand();
        let inner = world.clone();
        world.add_with(0, 3, move || drop(inner.add_at(2, 5)));
        both(|| world.add(1, 1), || world.turns([3]));
        world.finish()
    });
}

/// `next_expiration` takes empty buckets off the queue while others add to them.
///
/// Fails when the cell's lock is released between seeing that a bucket is empty and disarming it.
#[test]
fn prune_against_add() {
    explore("prune_against_add", 3, || {
        let world = World::by_hand();
        let cancelled = [world.add_at(0, 3), world.add_at(1, 9)];
        all(
            || (world.add_at(2, 3), world.add_at(3, 9)),
            || {
                cancelled
                    .iter()
                    .zip(0..)
                    .for_each(|(timeout, id)| _ = world.cancel(id, timeout));
                let _ = world.timer.next_expiration();
            },
            || world.turns([3]),
        );
        world.finish()
    });
}

/// Each caller is told of the pending timer, whatever the others do.
///
/// Fails when the queue is looked at while somebody else has taken a bucket out of it.
#[test]
fn next_expiration_against_others() {
    explore("next_expiration_against_others", 1, || {
        let world = World::by_hand();
        world.add_at(0, 9);
        let next = world.clock.now() + Duration::from_nanos(9);
        all(
            || assert!(world.timer.next_expiration().is_some_and(|at| at <= next)),
            || assert!(world.timer.next_expiration().is_some_and(|at| at <= next)),
            || world.turns([8]),
        );
        world.finish()
    });
}
