//! Sleeps that end before their time, or panic.

use crate::{Fixture, HOUR, MS};
use std::future::{Future, pending, poll_fn, ready};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;
use tickwheel::future::SleepError;
use tickwheel::queue::KeyedQueue;
use tickwheel::{ManualClock, Timer};

/// So many sleeps are made in a poll at most.
const MAX_SLEEPS: usize = 20;

#[test]
fn a_queue_is_not_woken_by_sleeps_that_end_at_once_but_makes_others_with_each_poll() {
    let mut fixture = Fixture::with_sleeps(ManualClock::new(), |_| ready(()));
    let first = fixture.clock.now() + 2 * MS;
    fixture.queue.insert(1, 2 * MS, 1);
    for _ in 0..3 {
        assert!(fixture.poll().is_pending());
        let asked = fixture.asked();
        assert_eq!((asked[0], fixture.woken()), (first, 0));
        assert!(
            (2..=MAX_SLEEPS).contains(&asked.len()),
            "{} sleeps",
            asked.len()
        );
        assert!(asked.is_sorted_by(|before, after| before < after));
    }
    fixture.queue.insert(2, MS, 2);
    assert_eq!(fixture.woken(), 1, "earlier");
    fixture.clock.advance(MS);
    assert_eq!(fixture.expired(), [2]);
    fixture.clock.advance(MS);
    assert_eq!(
        (fixture.expired(), fixture.poll()),
        (vec![1], Poll::Ready(None))
    );
}

/// Each wakes at once, and ends with the second poll.
#[test]
fn sleeps_that_wake_at_once_do_so_a_few_times() {
    let yields = |_| {
        let mut was_polled = false;
        poll_fn(move |context| {
            if mem::replace(&mut was_polled, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
    };
    let mut fixture = Fixture::with_sleeps(ManualClock::new(), yields);
    fixture.queue.insert(1, HOUR, 1);
    let mut polls = 1;
    assert!(fixture.poll().is_pending());
    while fixture.woken() > 0 {
        assert!(polls <= MAX_SLEEPS);
        assert!(fixture.poll().is_pending());
        polls += 1;
    }
    assert!(polls > 2);
}

/// Whose other timer has a deadline; nobody wakes the task then.
#[test]
fn in_virtual_time_a_queue_on_a_timer_that_is_full_or_shut_down_lets_the_clock_move() {
    for is_full in [true, false] {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .clock(clock.clone())
            .max_pending(1)
            .build()
            .unwrap();
        let other: Timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let [start, last] = [clock.now(), clock.now() + HOUR];
        assert!(other.after(HOUR, || ()).is_ok());
        if is_full {
            assert!(timer.after(HOUR, || ()).is_ok());
        } else {
            timer.shutdown();
        }
        let own = timer.clone();
        let mut queue = KeyedQueue::new(clock.clone(), move |at| own.sleep(at));
        queue.insert("key", 5 * MS, ());
        let expired = clock.block_on(poll_fn(|context| queue.poll_expired(context)));
        assert_eq!(
            (expired, clock.now()),
            (None, last),
            "nothing is left to wait for"
        );
        let expired = clock.block_on(poll_fn(|context| queue.poll_expired(context)));
        assert_eq!(
            expired.flatten().map(|expired| expired.deadline),
            Some(start + 5 * MS)
        );
    }
}

/// The poll that comes once there is room makes a sleep that wakes.
#[test]
fn a_queue_sleeps_again_when_its_timer_has_room() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .max_pending(1)
        .build()
        .unwrap();
    let mut queue = KeyedQueue::new(clock.clone(), {
        let timer = timer.clone();
        move |at| timer.sleep(at)
    });
    queue.insert("key", 5 * MS, ());
    let room = timer.after(HOUR, || ()).unwrap();
    assert_eq!(clock.block_on(timer.sleep(MS)), Some(Err(SleepError::Full)));
    let mut polls = 0;
    let expired = clock.block_on(poll_fn(|context| {
        polls += 1;
        let polled = queue.poll_expired(context);
        if polls == 1 {
            assert!(polled.is_pending() && room.cancel().is_cancelled());
            context.waker().wake_by_ref(); // As anything else that the task waits for.
        }
        polled
    }));
    assert!(expired.flatten().is_some());
    assert_eq!(polls, 3);
}

/// The one who makes the sleep: tokio's panics outside its runtime.
#[test]
fn after_a_panic_of_the_sleep_or_of_who_makes_it_a_queue_makes_another() {
    for in_poll in [false, true] {
        let tries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        let mut fixture = Fixture::with_sleeps(ManualClock::new(), move |_| {
            let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            assert!(!is_first || in_poll, "a panic that is meant");
            let sleep: Pin<Box<dyn Future<Output = ()> + Send>> = match is_first {
                true => Box::pin(async { panic!("a panic that is meant") }),
                false => Box::pin(pending()),
            };
            sleep
        });
        fixture.queue.insert(1, Duration::from_secs(1), 1);
        assert!(catch_unwind(AssertUnwindSafe(|| fixture.poll())).is_err());
        assert!(fixture.poll().is_pending() && fixture.poll().is_pending());
        assert_eq!(tries.load(Ordering::Relaxed), 2);
        assert_eq!(fixture.asked().len(), 2);
    }
}
