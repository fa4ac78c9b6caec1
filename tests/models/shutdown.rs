//! Models of the end: shutting down and dropping, and owners of wheels that come and go.

use crate::futures::{NANO, by_hand, pass, with_reaper};
use crate::harness::{all, both, explore};
use crate::limbo::KeyHasher;
use crate::world::World;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Timer, TimerEntry};

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
        both(
            || (world.pass(5), world.timer.advance_clock(Duration::ZERO)),
            || world.shutdown(),
        );
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
        let World {
            timer, clock, book, ..
        } = world;
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
        let World {
            timer, clock, book, ..
        } = world;
        *last.lock().unwrap() = Some(timer);
        both(
            || clock.advance(Duration::from_nanos(1)),
            || clock.advance(Duration::from_nanos(1)),
        );
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

type Keyed = KeyedTimer<u64, (), KeyHasher>;

/// Returns keyed timers that count how many keys have expired.
fn keyed(timer: &Timer, expired: &Arc<AtomicUsize>) -> Keyed {
    let expired = Arc::clone(expired);
    let count = move |_, ()| _ = expired.fetch_add(1, Ordering::SeqCst);
    Keyed::with_hasher(timer, KeyHasher::default(), count)
}

fn schedule(keyed: &Keyed, key: u64, nanos: u64) {
    assert!(
        keyed
            .add(key, Duration::from_nanos(nanos), ())
            .is_ok_and(|former| former.is_none())
    );
}

/// The last clone is dropped while a turn expires its keys, and others take its number.
///
/// Fails when an owner's buckets stay behind in the delay queue.
#[test]
fn end_of_keyed_timers_against_turn() {
    explore("end_of_keyed_timers_against_turn", 2, || {
        let (timer, clock) = by_hand();
        let expired = Arc::default();
        let own = Arc::new(AtomicUsize::new(0));
        let first = keyed(&timer, &expired);
        schedule(&first, 0, 1);
        schedule(&first, 1, 1);
        assert!(first.touch(&1, Duration::from_nanos(7)));
        let counted = Arc::clone(&own);
        let count = move || _ = counted.fetch_add(1, Ordering::SeqCst);
        assert!(timer.add(TimerEntry::after(NANO, count)).is_ok());
        clock.advance(NANO);
        both(
            || timer.advance_clock(Duration::ZERO),
            || {
                drop(first);
                let next = keyed(&timer, &expired);
                schedule(&next, 0, 9);
                timer.advance_clock(Duration::ZERO);
                assert!(next.contains(&0), "its time has not come");
            },
        );
        assert_eq!(own.load(Ordering::SeqCst), 1, "the turn saw to all others");
        timer.assert_invariants();
        assert!(
            timer.is_empty() && timer.next_expiration().is_none(),
            "nothing is left behind"
        );
        format!("{}", expired.load(Ordering::SeqCst))
    });
}

/// The last clone is dropped when a turn has just found its shard busy, and others may take its
/// number.
///
/// Fails when what was passed over is not forgotten with its source.
#[test]
fn end_of_keyed_timers_that_were_put_aside() {
    explore("end_of_keyed_timers_that_were_put_aside", 2, || {
        let (timer, clock) = by_hand();
        let expired = Arc::default();
        let first = keyed(&timer, &expired);
        schedule(&first, 1, 1);
        clock.advance(NANO);
        let (in_time, next) = both(
            || timer.advance_clock(Duration::ZERO),
            || {
                let held = first.entry(2);
                thread::yield_now();
                drop(held);
                drop(first);
                let next = keyed(&timer, &expired);
                schedule(&next, 1, 9);
                next
            },
        );
        assert_eq!(expired.load(Ordering::SeqCst), in_time);
        assert!(next.contains(&1), "its time has not come");
        pass(&timer, &clock, 9);
        assert_eq!(expired.load(Ordering::SeqCst), in_time + 1);
        let stats = timer.stats();
        assert_eq!(
            (stats.expired, stats.cancelled),
            (in_time as u64 + 1, 1 - in_time as u64)
        );
        assert!(
            timer.is_empty() && timer.next_expiration().is_none(),
            "nothing is left behind"
        );
        format!("{in_time}")
    });
}

/// Keyed timers are made, and a key is scheduled there, while a thread waits for something earlier.
///
/// Fails when what a new owner arms wakes nobody.
#[test]
fn new_keyed_timers_against_wait() {
    explore("new_keyed_timers_against_wait", 1, || {
        let (timer, clock) = with_reaper();
        let expired = Arc::default();
        let first = keyed(&timer, &expired);
        schedule(&first, 0, 5);
        let other = thread::spawn({
            let timer = timer.clone();
            let expired = Arc::clone(&expired);
            move || {
                let second = keyed(&timer, &expired);
                schedule(&second, 1, 2);
                second
            }
        });
        clock.advance(Duration::from_nanos(2));
        let second = other.join().expect("it does not panic");
        clock.advance(Duration::from_nanos(5));
        while expired.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        assert!(first.is_empty() && second.is_empty());
        String::new()
    });
}
