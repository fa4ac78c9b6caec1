//! A channel into the caller's own loop.

use crate::{End, Fixture, Job, MS, ended, panics, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, TryRecvError, TrySendError, sync_channel};
use tickwheel::TimerEntry;

/// Returns a timer whose jobs go into a channel for `room` of them.
fn channel(room: usize) -> (Fixture, Receiver<Job>) {
    let (sender, jobs) = sync_channel(room);
    let executor = move |job| {
        sender.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    };
    (Fixture::new(executor), jobs)
}

#[test]
fn the_loop_gets_every_task_once_in_order_and_its_panics_are_its_own() {
    let (fixture, jobs) = channel(1000);
    fixture.expire(0..500);
    assert!(fixture.book.lock().unwrap().is_empty(), "nothing runs before the loop does");
    let mut panicked = 0;
    for job in jobs.try_iter() {
        let id = job.id;
        let result = catch_unwind(AssertUnwindSafe(|| job.run()));
        assert_eq!(result.is_err(), panics(id), "job {id}");
        panicked += usize::from(result.is_err());
    }
    assert_eq!(panicked, 50);
    let order = fixture.book.lock().unwrap().clone();
    assert!(order.into_iter().map(|(id, _)| id).eq(0..500));
    ended(&fixture.book, 0..500, run);
    assert_eq!(fixture.failures(), (0, 0), "the timer has handed them on, and sees nothing");
}

#[test]
fn a_full_channel_hands_the_task_back_and_takes_more_when_the_loop_has_gone_on() {
    let (fixture, jobs) = channel(4);
    for round in 0..5 {
        fixture.book.lock().unwrap().clear();
        fixture.expire(10..20);
        assert_eq!(fixture.failures(), (6 * (round + 1), 0));
        jobs.try_iter().for_each(|job| drop(catch_unwind(AssertUnwindSafe(|| job.run()))));
        ended(&fixture.book, 10..20, |id| if id < 14 { run(id) } else { End::Refused });
    }
}

#[test]
fn a_shutdown_of_the_timer_leaves_the_loop_what_it_has_and_its_end_ends_the_loop() {
    let (fixture, jobs) = channel(1000);
    fixture.expire(0..3);
    let _ = fixture.timer.add(TimerEntry::after(MS, Job::new(3, &fixture.book))).unwrap();
    assert!(fixture.timer.shutdown().iter().map(|entry| entry.task().id).eq([3]));
    (0..3).for_each(|_| jobs.try_recv().unwrap().run());
    assert_eq!(jobs.try_recv().map(drop), Err(TryRecvError::Empty), "the executor is there");
    let Fixture { timer, book, .. } = fixture;
    drop(timer);
    assert_eq!(jobs.try_recv().map(drop), Err(TryRecvError::Disconnected), "the loop ends");
    ended(&book, 0..4, |id| if id == 3 { End::Dropped } else { End::Ran });
}
