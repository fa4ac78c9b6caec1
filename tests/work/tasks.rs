//! Series and futures: each of them has a lock of its own, or none, beside the timer's.

use crate::{DIRECTORY, SIZES, check, check_with, millis, timer_of_tasks};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tickwheel::future::Sleep;
use tickwheel::periodic::{Periodic, Series};
use tickwheel::purgatory::{FutureOperation, Purgatory, Waited};

#[test]
fn series() {
    for size in SIZES {
        let (timer, clock) = timer_of_tasks();
        let start = |number: u64| {
            let period = millis(100 + number % 10);
            Periodic::every(period).start(&timer, |_| ()).expect("there is no limit")
        };
        let series: Vec<Series> = check("start", || (0..size).map(start).collect());
        check("run", || {
            for _ in 0..25 {
                clock.advance(millis(10));
                timer.advance_clock(Duration::ZERO);
            }
        });
        check("questions", || {
            assert!(series.iter().all(|series| series.runs() >= 2 && !series.is_cancelled()));
        });
        check("cancel", || assert!(series.iter().all(Series::cancel)));
        check("next_expiration", || assert_eq!(timer.next_expiration(), None));
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn sleeps() {
    for size in SIZES {
        let (timer, clock) = timer_of_tasks();
        let sleep = |number: u64| {
            let mut sleep = timer.sleep(millis(1_000 + number % 10));
            assert!(poll(&mut sleep).is_pending());
            sleep
        };
        let mut sleeps: Vec<Sleep> = check("poll", || (0..size).map(sleep).collect());
        check("reset", || {
            for sleep in &mut sleeps {
                sleep.reset(millis(500));
                assert!(poll(sleep).is_pending());
            }
        });
        let others = sleeps.split_off(sleeps.len() / 2);
        check("drop", || drop(others));
        check("wake", || {
            clock.advance(millis(500));
            assert_eq!(timer.advance_clock(Duration::ZERO), sleeps.len());
            assert!(sleeps.iter_mut().all(|sleep| poll(sleep).is_ready()));
        });
        check("a time limit and an interval", || {
            let mut limited = pin!(timer.timeout(millis(10), std::future::pending::<()>()));
            let mut interval = timer.interval(millis(10));
            let mut context = Context::from_waker(Waker::noop());
            assert!(limited.as_mut().poll(&mut context).is_pending());
            while interval.poll_tick(&mut context).is_ready() {}
            clock.advance(millis(20));
            timer.advance_clock(Duration::ZERO);
            assert!(limited.as_mut().poll(&mut context).is_ready());
            assert!(interval.poll_tick(&mut context).is_ready());
        });
    }
}

#[test]
fn operations_that_futures_wait_for() {
    for size in SIZES {
        let (timer, clock) = timer_of_tasks();
        let purgatory: Arc<Purgatory<u64, FutureOperation>> = Arc::new(Purgatory::new(&timer));
        let wait = |number: u64| {
            let wait = purgatory.wait(&[number % 3], millis(1_000), move || false);
            let mut wait = wait.expect("there is no limit");
            assert!(poll(&mut wait).is_pending());
            wait
        };
        let mut waits: Vec<_> =
            check_with("wait", size / DIRECTORY, || (0..size).map(wait).collect());
        check_with("trigger", size / DIRECTORY, || assert_eq!(purgatory.check_and_complete(&0), 0));
        let others = waits.split_off(waits.len() / 2);
        check_with("drop", size / DIRECTORY, || drop(others));
        check_with("expire", size / DIRECTORY, || {
            clock.advance(millis(1_000));
            timer.advance_clock(Duration::ZERO);
            assert!(waits.iter_mut().all(|wait| poll(wait) == Poll::Ready(Waited::Expired)));
        });
        check_with("drop of what has ended", size / DIRECTORY, || drop(waits));
    }
}
