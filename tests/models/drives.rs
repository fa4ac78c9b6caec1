//! Models of those that drive a timer: a reaper, a loop that waits in a call of its own and has
//! left a waker, and a future. A wake-up that is lost is a deadlock.

use crate::futures::{NANO, builder};
use crate::harness::{Bell, all, both, explore};
use crate::limbo::KeyHasher;
use crate::stand::Stand;
use crate::world::{Job, World};
use shuttle::future::block_on;
use shuttle::thread;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{ManualClock, Timer};

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// Runs a service's loop, until `is_over`. It waits without end for what a real one would wait for
/// until the next expiration: moving the clock rings. Rung before, the bell ends the next wait, as
/// an `eventfd` does.
fn run<T: Send + 'static>(timer: &Timer<T>, is_over: impl Fn() -> bool) {
    let bell = Arc::new(Bell::default());
    let listener = timer.listener();
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        timer.advance_clock(Duration::ZERO);
        if is_over() {
            return;
        }
        let next = listener.next_expiration(&waker);
        if next.is_none_or(|next| next > timer.now()) {
            *bell.wait() = false;
        }
    }
}

/// The loop waits, or is about to, for a far timer when an earlier one is added.
///
/// Fails when moving the clock does not wake the listener.
#[test]
fn earlier_timer_ends_a_wait() {
    explore("earlier_timer_ends_a_wait", 1, || {
        let world = World::by_hand();
        world.add_at(0, 90);
        all(
            || run(&world.timer, || world.has_ended(1)),
            || world.add_at(1, 3),
            || world.pass(3),
        );
        world.finish()
    });
}

/// The first timers of an empty timer, without delay: no clock has to move.
///
/// Fails when `next_expiration` looks for its answer and notes it in two steps, and when the
/// listener is not woken after the answer that there is none.
#[test]
fn first_timer_ends_a_wait() {
    explore("first_timer_ends_a_wait", 1, || {
        let world = World::by_hand();
        let is_over = || world.has_ended(0) && world.has_ended(1);
        all(
            || run(&world.timer, is_over),
            || world.add(0, 0),
            || (world.add(2, 9), world.add(1, 0)),
        );
        world.finish()
    });
}

/// A timer is moved up while the loop goes to sleep; the clock has moved before.
///
/// Fails when a timer that is moved up does not wake the listener.
#[test]
fn earlier_deadline_ends_a_wait() {
    explore("earlier_deadline_ends_a_wait", 1, || {
        let world = World::by_hand();
        let timeout = world.add_at(0, 90);
        both(
            || run(&world.timer, || world.has_ended(0)),
            || world.reschedule(0, &timeout, 0, false),
        );
        world.finish()
    });
}

/// A key is scheduled, and moved up, while the loop goes to sleep.
///
/// Fails when what keyed timers arm does not wake the listener.
#[test]
fn earlier_key_ends_a_wait() {
    explore("earlier_key_ends_a_wait", 1, || {
        let stand = Stand::in_place();
        stand.schedule(0, 0, 9);
        let is_over = || stand.has_fired(0) && stand.has_fired(1);
        all(
            || run(&stand.timer, is_over),
            || stand.schedule(1, 1, 0),
            || {
                stand.book.write(0, |record| record.earliest = 0);
                stand.keyed.reschedule(&0, Duration::ZERO)
            },
        );
        stand.settle()
    });
}

/// The timer is shut down while the loop goes to sleep.
///
/// Fails when a shutdown wakes the listener only before `is_shutdown` returns true.
#[test]
fn shutdown_ends_a_wait() {
    explore("shutdown_ends_a_wait", 1, || {
        let world = World::by_hand();
        world.add_at(0, 90);
        both(
            || run(&world.timer, || world.timer.is_shutdown()),
            || world.shutdown(),
        );
        world.settle()
    });
}

/// Returns a future that drives the timer: its sleep has no end, and moving the clock wakes it.
fn drive(timer: &Timer<Job>) -> impl Future<Output = ()> + use<> {
    timer.drive(|_| pending::<()>())
}

/// The future waits, or is about to, for a far timer when an earlier one is added.
///
/// Fails when the future looks for the first bucket and leaves its waker in two steps.
#[test]
fn earlier_timer_wakes_the_future() {
    explore("earlier_timer_wakes_the_future", 1, || {
        let world = World::by_hand();
        world.add_at(0, 90);
        let future = drive(&world.timer);
        let driver = thread::spawn(|| block_on(future));
        all(
            || world.add_at(1, 3),
            || world.pass(3),
            || world.book.wait_for(1),
        );
        world.shutdown();
        driver.join().expect("it ends with the timer");
        world.settle()
    });
}

/// Two futures drive the timer, one is polled once and dropped.
///
/// Fails when a future that is dropped takes along the waker of another one.
#[test]
fn a_future_that_is_dropped_leaves_the_other_one() {
    explore("a_future_that_is_dropped_leaves_the_other_one", 1, || {
        let world = World::by_hand();
        let future = drive(&world.timer);
        let dropped = drive(&world.timer);
        let driver = thread::spawn(|| block_on(future));
        all(
            || {
                let mut dropped = pin!(dropped);
                let _ = dropped
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
            },
            || (world.add(0, 0), world.add_at(1, 3)),
            || {
                (
                    world.pass(3),
                    world.book.wait_for(0),
                    world.book.wait_for(1),
                )
            },
        );
        world.shutdown();
        driver.join().expect("it ends with the timer");
        world.settle()
    });
}

/// The last clone is dropped as the future goes to sleep, or advances the timer.
///
/// Fails when a stop does not wake the futures.
#[test]
fn last_clone_against_the_future() {
    explore("last_clone_against_the_future", 2, || {
        let world = World::by_hand();
        world.add_at(0, 3);
        let driver = thread::spawn({
            let future = drive(&world.timer);
            || block_on(future)
        });
        world.pass(3);
        let World { timer, book, .. } = world;
        drop(timer);
        driver.join().expect("it ends with the timer");
        book.settle().0
    });
}

/// Two threads advance a timer on a seeded clock, where a tick is handed over once all of it was
/// taken out: by whoever has taken it out, though the rest is in the hands of the other one.
///
/// Fails when a turn ends that finds the rest busy a second time.
#[test]
fn seeded_turn_against_another() {
    explore("seeded_turn_against_another", 2, || {
        let clock = ManualClock::seeded(1);
        let ran = Arc::new(AtomicU64::new(0));
        let timer = builder()
            .0
            .clock(clock.clone())
            .build()
            .expect("it can be built");
        let own = Arc::clone(&ran);
        let expired = move |key: u64, ()| _ = own.fetch_add(1 << (8 * key), Ordering::Relaxed);
        let keyed = KeyedTimer::with_hasher(&timer, KeyHasher::default(), expired);
        (0..4).for_each(|key| assert!(keyed.add(key, NANO, ()).is_ok()));
        clock.advance(NANO);
        let turn = || timer.advance_clock(Duration::ZERO);
        let taken = both(turn, turn);
        assert_eq!(
            (turn(), ran.load(Ordering::Relaxed)),
            (0, 0x0101_0101),
            "{taken:?}"
        );
        format!("{taken:?}")
    });
}

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

/// The clock is moved once while timers are added, moved up and cascaded.
///
/// Fails when a timer that is moved up does not wake the reaper.
#[test]
fn earlier_deadline_wakes() {
    explore("earlier_deadline_wakes", 1, || {
        let world = World::with_reaper();
        let timeout = world.add_at(0, 90);
        both(
            || world.reschedule(0, &timeout, 0, false),
            || (world.add_at(1, 6), world.pass(6)),
        );
        world.end_after([0, 1])
    });
}

/// A task adds a timer without delay, and so does another thread, while the turn ends: it belongs
/// to the next turn, which somebody takes.
///
/// Fails when a bucket that was flushed in a turn and is armed again does not count as due.
#[test]
fn add_beside_the_end_of_a_turn_wakes() {
    explore("add_beside_the_end_of_a_turn_wakes", 2, || {
        let world = World::with_reaper();
        let inner = world.clone();
        world.add_with(0, 1, move || drop(inner.add(1, 0)));
        both(
            || world.add(2, 0),
            || (world.pass(1), world.timer.advance_clock(Duration::ZERO)),
        );
        world.end_after(0..3)
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
