//! How a series ends without being cancelled, and what its handle says then.

use crate::MS;
use crate::calls;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::periodic::{Periodic, Series};
use tickwheel::{ManualClock, Task, Timer, TimerBuilder, TimerEntry, Worker};

const HANG: Duration = Duration::from_secs(20);

fn builder() -> (TimerBuilder<Task>, ManualClock) {
    let clock = ManualClock::new();
    (Timer::builder().clock(clock.clone()), clock)
}

/// Starts a series with a period of a millisecond.
fn start<T: Send + 'static>(timer: &Timer<T>) -> Series {
    Periodic::every(MS).start(timer, |_| ()).unwrap()
}

/// Checks that a series has ended after so many runs, though nobody has cancelled it.
#[track_caller]
fn has_ended(series: &Series, runs: u64) {
    assert!(!series.cancel() && !series.is_cancelled());
    assert_eq!(series.runs(), runs);
}

/// Seen to fail: the call said that it had ended the series.
#[test]
fn a_series_that_finds_the_timer_full_has_ended() {
    let (builder, clock) = builder();
    let timer = builder.max_pending(1).build().unwrap();
    let weak = timer.downgrade();
    let series = Periodic::every(MS).start(&timer, move |_| {
        let timer = weak.upgrade().unwrap();
        timer.after(MS, || ()).unwrap(); // In the place of the next run.
    });
    let series = series.unwrap();
    for _ in 0..3 {
        clock.advance(MS);
        timer.advance_clock(Duration::ZERO);
    }
    has_ended(&series, 1);
    assert!(timer.is_empty());
}

/// Seen to fail: the call said that it had ended the series.
#[test]
fn a_series_whose_run_the_executor_refuses_has_ended() {
    let (builder, clock) = builder();
    let timer = builder.executor(Err::<(), Task>).build().unwrap();
    let series = start(&timer);
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    has_ended(&series, 0);
}

/// Seen to fail: the call said that it had ended what had ended with the list.
#[test]
fn what_a_shutdown_returned_holds_the_series_until_it_is_dropped() {
    let (builder, _clock) = builder();
    let timer = builder.build().unwrap();
    let kept = start(&timer);
    let runs = timer.shutdown();
    assert!(kept.cancel());
    runs.into_iter()
        .map(TimerEntry::into_task)
        .for_each(Task::run);
    assert_eq!(kept.runs(), 0, "it was cancelled in the list");
}

/// Has a run shut the timer down, wherever it runs: it is the last one.
fn a_run_shuts_down<T: Send + 'static>(timer: Timer<T>, clock: &ManualClock) {
    let weak = timer.downgrade();
    let (sender, is_down) = channel();
    let series = Periodic::every(MS).start(&timer, move |_| {
        drop(weak.upgrade().map(|timer| timer.shutdown()));
        sender.send(()).unwrap();
    });
    let series = series.unwrap();
    clock.advance(MS);
    timer.advance_clock(Duration::ZERO);
    is_down.recv_timeout(HANG).unwrap();
    clock.advance(MS);
    timer.advance_clock(Duration::ZERO);
    drop(timer); // Waits for the thread that has run it.
    has_ended(&series, 1);
}

/// Seen to fail: the call said that it had ended the series.
#[test]
fn a_run_in_progress_is_the_last_one_after_a_shutdown() {
    let (by_hand, clock) = builder();
    a_run_shuts_down(by_hand.build().unwrap(), &clock);
    let (reaped, clock) = builder();
    a_run_shuts_down(reaped.start().unwrap(), &clock);
    let (handed, clock) = builder();
    let worker = Worker::unbounded("runs", Task::run).unwrap();
    a_run_shuts_down(handed.executor(worker).start().unwrap(), &clock);
    let (by_hand, clock) = builder();
    a_run_shuts_down(by_hand.executor(|_: u64| ()).build().unwrap(), &clock);
    let (reaped, clock) = builder();
    a_run_shuts_down(reaped.executor(|_: u64| ()).start().unwrap(), &clock);
}

/// Seen to fail: the run that added the next one held a clone meanwhile, so the timer ended later.
#[test]
fn a_waker_that_drops_the_last_clone_ends_the_timer_there() {
    let (sender, tasks) = channel();
    let (told, has_gone) = channel();
    let last = Arc::new(Mutex::new(None::<Timer>));
    let taken = Arc::clone(&last);
    let (builder, clock) = builder();
    let waker = calls::waker(move || {
        let timer = taken.lock().unwrap().take();
        if let Some(timer) = timer {
            let weak = timer.downgrade();
            drop(timer);
            told.send(weak.upgrade().is_none()).unwrap();
        }
    });
    let timer = builder
        .executor(move |task: Task| sender.send(task).unwrap())
        .build()
        .unwrap();
    let listener = timer.listener();
    let series = start(&timer);
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(listener.next_expiration(&waker), None);
    *last.lock().unwrap() = Some(timer);
    tasks.recv().unwrap().run();
    assert_eq!(has_gone.try_recv(), Ok(true));
    has_ended(&series, 1);
}
