//! Models of the end: shutting down and dropping.

use crate::harness::{all, both, explore};
use crate::world::World;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Each timer is returned, or its adder gets it back.
///
/// Fails when `add` looks whether the cell is closed before it locks it, or when `shutdown` takes
/// the entries out before it closes.
#[test]
fn shutdown_against_add() {
    explore("shutdown_against_add", 4, || {
        let world = World::new(|builder| builder.shards(4).max_pending(4).build());
        world.add_at(0, 3);
        all(
            || (world.try_add(1, 2), world.try_add(2, 9)),
            || world.try_add(3, 0),
            || world.shutdown(),
        );
        assert!(world.try_add(4, 2).is_none(), "it is shut down");
        world.settle()
    });
}

/// Each timer is fired or returned, though it changes its bucket meanwhile.
///
/// Fails when a cascade moves entries behind the place up to which `shutdown` has taken them out.
#[test]
fn shutdown_against_cascade() {
    explore("shutdown_against_cascade", 3, || {
        let world = World::by_hand();
        world.add_at(0, 3);
        world.add_at(1, 6);
        both(|| (world.pass(5), world.timer.advance_clock(Duration::ZERO)), || world.shutdown());
        world.settle()
    });
}

/// Two shut down a timer whose reaper fires; when either returns nothing fires any more.
///
/// Fails when the second to come does not wait for the reaper.
#[test]
fn shutdown_twice() {
    explore("shutdown_twice", 3, || {
        let world = World::with_reaper();
        world.add_at(0, 2);
        world.add_at(1, 6);
        world.pass(4);
        let shutdown = || {
            world.shutdown();
            world.book.close();
        };
        both(shutdown, shutdown);
        world.settle()
    });
}

/// The last timer is dropped while its reaper fires.
///
/// Fails when a stop wakes the reaper before it is written down, when tasks are taken out before
/// the reaper has ended, or when they are left to the handles.
#[test]
fn drop_against_reaper() {
    explore("drop_against_reaper", 2, || {
        let world = World::with_reaper();
        let kept = [world.add_at(0, 2), world.add_at(1, 6), world.add_at(2, 90)];
        let World { timer, clock, book, .. } = world;
        both(
            || clock.advance(Duration::from_nanos(6)),
            || {
                drop(timer);
                book.close();
            },
        );
        assert!(kept.iter().all(|timeout| !timeout.is_pending()));
        book.settle().0
    });
}

/// A task drops the last timer, on the reaper.
///
/// Fails when the reaper waits for its own end.
#[test]
fn drop_inside_a_task() {
    explore("drop_inside_a_task", 2, || {
        let world = World::with_reaper();
        let last = Arc::new(Mutex::new(None));
        let held = Arc::clone(&last);
        world.add_with(0, 2, move || {
            let timer = held.lock().unwrap().take();
            drop(timer);
        });
        world.add_at(1, 1);
        world.add_at(2, 2);
        world.add_at(3, 90);
        let World { timer, clock, book, .. } = world;
        *last.lock().unwrap() = Some(timer);
        both(|| clock.advance(Duration::from_nanos(1)), || clock.advance(Duration::from_nanos(1)));
        (0..4).for_each(|id| book.wait_for(id));
        book.settle().0
    });
}

/// A task shuts the timer down, on the reaper, while another thread does as well.
///
/// Fails when the reaper waits for its own end.
#[test]
fn shutdown_inside_a_task() {
    explore("shutdown_inside_a_task", 3, || {
        let world = World::with_reaper();
        let inner = world.clone();
        world.add_with(0, 2, move || inner.shutdown());
        world.add_at(1, 2);
        world.add_at(2, 90);
        both(|| world.pass(2), || world.shutdown());
        (0..3).for_each(|id| world.book.wait_for(id));
        world.settle()
    });
}
