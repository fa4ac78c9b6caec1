//! Futures that are ready at once: they let others run, and hear what has become of their timer.

use crate::{Fixture, HOUR, MS};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tickwheel::future::{Interval, SleepError};
use tickwheel::periodic::MissedTick;
use tickwheel::{ManualClock, Timer};

/// Returns how many polls a future takes, each of which has asked for the next one.
fn polls<F: Future>(fixture: &Fixture, future: F) -> usize {
    let mut future = pin!(future);
    let mut polls = 1;
    while fixture.poll(future.as_mut()).is_pending() {
        assert_eq!(fixture.wakes.take(), 1, "nobody else wakes it");
        polls += 1;
    }
    polls
}

#[test]
fn a_loop_of_sleeps_that_are_over_lets_others_run() {
    let fixture = Fixture::new();
    let sleeps = async {
        for _ in 0..1_000 {
            fixture.timer.sleep(Duration::ZERO).await.unwrap();
        }
    };
    assert!((10..=100).contains(&polls(&fixture, sleeps)));
    let mut behind = fixture.timer.interval(MS).missed_tick(MissedTick::Burst);
    fixture.clock.advance(1_000 * MS);
    let ticks = async {
        for _ in 0..1_000 {
            behind.tick().await.unwrap();
        }
    };
    assert!((10..=100).contains(&polls(&fixture, ticks)));
    assert!(fixture.timer.is_empty());
}

/// As `select!` does, with a time limit that is new each time.
#[test]
fn a_loop_that_also_makes_sleeps_that_wait_lets_others_run() {
    let fixture = Fixture::new();
    let mut behind = fixture.timer.interval(MS).missed_tick(MissedTick::Burst);
    fixture.clock.advance(1_000 * MS);
    let ticks = async {
        for _ in 0..1_000 {
            let mut limit = pin!(fixture.timer.sleep(HOUR));
            let mut tick = pin!(behind.tick());
            let either = poll_fn(|context| {
                assert!(limit.as_mut().poll(context).is_pending());
                tick.as_mut().poll(context)
            });
            either.await.unwrap();
        }
    };
    assert!((10..=100).contains(&polls(&fixture, ticks)));
    assert!(fixture.timer.is_empty());
}

#[test]
fn what_is_over_at_once_says_that_its_timer_is_shut_down_or_full() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .max_pending(1)
        .build()
        .unwrap();
    let mut behind = timer.interval(MS).missed_tick(MissedTick::Burst);
    clock.advance(HOUR);
    assert!(
        clock
            .block_on(behind.tick())
            .is_some_and(|tick| tick.is_ok())
    );
    assert_eq!(clock.block_on(timer.sleep(Duration::ZERO)), Some(Ok(())));
    let waits = timer.after(HOUR, || ()).unwrap();
    assert_eq!(
        clock.block_on(timer.sleep(Duration::ZERO)),
        Some(Err(SleepError::Full))
    );
    assert!(waits.cancel().is_cancelled());
    assert_eq!(clock.block_on(timer.sleep(Duration::ZERO)), Some(Ok(())));
    timer.shutdown();
    assert_eq!(
        clock.block_on(behind.tick()),
        Some(Err(SleepError::Shutdown))
    );
    assert_eq!(
        clock.block_on(timer.sleep(Duration::ZERO)),
        Some(Err(SleepError::Shutdown))
    );
}

#[test]
fn an_interval_may_begin_later_and_be_moved_and_change_its_period() {
    let fixture = Fixture::new();
    let clock = &fixture.clock;
    let start = clock.now();
    let mut interval = fixture.timer.interval_at(30 * MS, 10 * MS);
    let tick = |interval: &mut Interval, expected: Duration| {
        assert_eq!(clock.block_on(interval.tick()), Some(Ok(start + expected)));
    };
    tick(&mut interval, 30 * MS);
    tick(&mut interval, 40 * MS);
    interval.reset(25 * MS);
    tick(&mut interval, 65 * MS);
    interval.set_period(100 * MS);
    tick(&mut interval, 75 * MS);
    tick(&mut interval, 175 * MS);
}

/// One poll expires some, and has itself polled again.
#[test]
fn a_drive_with_much_to_do_lets_others_run() {
    let fixture = Fixture::new();
    (0..5_000).for_each(|_| _ = fixture.timer.after(MS, || ()).unwrap());
    let mut drive = pin!(fixture.timer.drive(|_| pending::<()>()));
    fixture.clock.advance(MS);
    fixture.wakes.take();
    let mut left = fixture.timer.len();
    let mut polls = 0;
    while left > 0 {
        assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
        let expired = left - fixture.timer.len();
        assert!((1..1_000).contains(&expired), "{expired} in one poll");
        left -= expired;
        assert_eq!(fixture.wakes.take(), usize::from(left > 0));
        polls += 1;
    }
    assert!(polls >= 5);
}
