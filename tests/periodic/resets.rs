//! Resets of a series: what the next run is told, and where the timer has it.

use crate::{Fixture, MS, calls};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tickwheel::periodic::{Periodic, Series};
use tickwheel::{Listener, ManualClock, Task, Timer, TimerBuilder, TimerEntry, When};

/// Starts a series with a period of 10 ms on a timer that leaves its tasks to the test.
fn handed(build: impl FnOnce(TimerBuilder) -> TimerBuilder) -> (Fixture, Receiver<Task>, Handed) {
    let clock = ManualClock::new();
    let (sender, tasks) = channel();
    let builder = build(Timer::builder().clock(clock.clone()));
    let timer = builder
        .executor(move |task: Task| sender.send(task).unwrap())
        .build()
        .unwrap();
    let fixture = Fixture { timer, clock };
    let (series, runs) = fixture.start(Periodic::every(10 * MS), Duration::ZERO);
    (fixture, tasks, Handed { series, runs })
}

struct Handed {
    series: Series,
    runs: Receiver<(u128, u128)>,
}

impl Handed {
    fn runs(&self) -> Vec<(u128, u128)> {
        self.runs.try_iter().collect()
    }
}

fn execute(tasks: &Receiver<Task>) {
    tasks.try_iter().for_each(Task::run);
}

/// Has a waker make a call, once, as soon as the timer has an earlier deadline, while the listener
/// is kept.
fn once_woken(timer: &Timer, call: impl FnOnce() + Send + 'static) -> Listener {
    let call = std::sync::Mutex::new(Some(call));
    let waker = calls::waker(move || {
        let call = call.lock().unwrap().take();
        call.into_iter().for_each(|call| call());
    });
    let listener = timer.listener();
    assert!(listener.next_expiration(&waker).is_some());
    listener
}

/// Seen to fail: the run was told the former deadline, and the next ones were counted from it.
#[test]
fn a_run_that_begins_inside_the_reset_takes_the_new_deadline() {
    let fixture = Fixture::new();
    let (series, runs) = fixture.start(Periodic::every(100 * MS), Duration::ZERO);
    fixture.advance(10 * MS);
    let timer = fixture.timer.clone();
    let advances = move || assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let _listener = once_woken(&fixture.timer, advances);
    assert!(series.reschedule(Duration::ZERO));
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), [(10, 10)]);
    fixture.clock.run_for(250 * MS);
    assert_eq!(
        runs.try_iter().collect::<Vec<_>>(),
        [(110, 110), (210, 210)]
    );
}

/// Seen to fail: the run came at the deadline of the first reset, and again at that of the last.
#[test]
fn the_inner_one_of_two_nested_resets_counts() {
    for last in [5, 20, 200] {
        let fixture = Fixture::new();
        let (series, runs) = fixture.start(Periodic::every(100 * MS), Duration::ZERO);
        let inner = series.clone();
        let _listener = once_woken(&fixture.timer, move || assert!(inner.reschedule(last * MS)));
        assert!(series.reschedule(10 * MS));
        fixture.clock.run_for(350 * MS);
        let runs = runs.try_iter().map(|(due, ran)| {
            assert_eq!(due, ran);
            due
        });
        let expected = (u128::from(last)..=350).step_by(100);
        assert!(runs.eq(expected), "of a last reset to {last} ms");
    }
}

/// Seen to fail: it ran at the deadline of the outer reset.
#[test]
fn a_reset_inside_a_reset_pauses_a_series() {
    let fixture = Fixture::new();
    let (series, runs) = fixture.start(Periodic::every(100 * MS), Duration::ZERO);
    let inner = series.clone();
    let _listener = once_woken(&fixture.timer, move || {
        assert!(inner.reschedule(When::Never))
    });
    assert!(series.reschedule(10 * MS));
    fixture.clock.run_for(Duration::from_secs(10));
    assert_eq!((runs.try_iter().count(), fixture.timer.len()), (0, 1));
    assert!(series.reschedule(MS));
    fixture.clock.run_for(101 * MS);
    assert_eq!(runs.try_iter().count(), 2);
}

/// Seen to fail: it ran at its former deadline.
#[test]
fn a_run_that_waits_in_the_executor_is_moved_as_well() {
    let (fixture, tasks, series) = handed(|builder| builder);
    fixture.advance(10 * MS);
    assert!(series.series.reschedule(When::Never));
    execute(&tasks);
    assert_eq!(
        (series.runs(), fixture.timer.len()),
        (vec![], 1),
        "it is in the timer again"
    );
    assert!(series.series.reschedule(5 * MS));
    fixture.advance(5 * MS);
    fixture.advance(MS);
    assert!(series.series.reschedule(3 * MS));
    fixture.advance(3 * MS);
    execute(&tasks);
    assert_eq!(
        series.runs(),
        [(19, 19)],
        "the new deadline has come before it began"
    );
    fixture.advance(10 * MS);
    execute(&tasks);
    assert_eq!(series.runs(), [(29, 29)]);
    assert_eq!(series.series.runs(), 2);
}

/// There is room for one timer. Seen to fail: the run began at its former deadline.
#[test]
fn a_moved_run_that_finds_the_timer_full_is_not_added_again() {
    let (fixture, tasks, series) = handed(|builder| builder.max_pending(1));
    fixture.advance(10 * MS);
    fixture.timer.after(MS, || ()).unwrap();
    assert!(series.series.reschedule(10 * MS));
    execute(&tasks);
    assert!(!series.series.reschedule(MS) && !series.series.is_cancelled());
    assert_eq!((series.runs(), fixture.timer.len()), (vec![], 1));
}

/// Seen to fail: with a run that looks only whether it is due, it did not run at all.
#[test]
fn a_run_that_shutdown_has_returned_runs_before_it_is_due() {
    for is_dropped in [false, true] {
        let fixture = Fixture::new();
        let (series, runs) = fixture.start(Periodic::every(100 * MS), Duration::ZERO);
        fixture.advance(MS);
        assert!(series.reschedule(50 * MS));
        let entries = fixture.timer.shutdown();
        let kept = (!is_dropped).then_some(fixture.timer);
        entries
            .into_iter()
            .map(TimerEntry::into_task)
            .for_each(Task::run);
        assert_eq!(runs.try_iter().collect::<Vec<_>>(), [(51, 1)]);
        assert!(!series.reschedule(MS), "it has ended");
        drop(kept);
    }
}

/// Seen to fail: all ran at once.
#[test]
fn a_run_that_is_reset_has_its_jitter() {
    let fixture = Fixture::new();
    let reports = Periodic::every(100 * MS).jitter(50 * MS);
    let all: Vec<_> = (0..100)
        .map(|_| fixture.start(reports, Duration::ZERO))
        .collect();
    assert!(all.iter().all(|(series, _)| series.reschedule(20 * MS)));
    (0..100).for_each(|_| fixture.advance(MS));
    let late = all.iter().map(|(_, runs)| {
        let (due, ran) = runs.try_recv().expect("one that is reset runs");
        assert_eq!(due, 20);
        ran - due
    });
    let late = late.collect::<Vec<_>>();
    assert!(late.iter().all(|late| *late <= 50), "{late:?}");
    assert!(
        late.iter().max() > Some(&30) && late.iter().min() < Some(&20),
        "{late:?}"
    );
}

/// As of a connection that pings its peer only after a silence.
#[test]
fn a_series_that_is_reset_runs_after_a_silence() {
    let fixture = Fixture::new();
    let (series, runs) = fixture.start(Periodic::every(30 * MS), Duration::ZERO);
    for _ in 0..10 {
        fixture.advance(20 * MS);
        assert!(series.reschedule(30 * MS));
    }
    assert_eq!(runs.try_iter().count(), 0);
    fixture.advance(30 * MS);
    fixture.advance(30 * MS);
    assert_eq!(
        runs.try_iter().collect::<Vec<_>>(),
        [(230, 230), (260, 260)]
    );
    assert!(series.reschedule(MS));
    fixture.advance(MS);
    fixture.advance(30 * MS);
    assert_eq!(
        runs.try_iter().collect::<Vec<_>>(),
        [(261, 261), (291, 291)]
    );
    series.cancel();
    assert!(!series.reschedule(MS));
}

/// The run in progress is not moved.
#[test]
fn a_reset_during_a_run_sets_when_the_next_one_is_due() {
    let fixture = Fixture::new();
    let handle = Arc::new(OnceLock::<Series>::new());
    let own = Arc::clone(&handle);
    let series = Periodic::every(10 * MS).start(&fixture.timer, move |run| {
        if run.number() == 0 {
            assert!(own.get().expect("it was set").reschedule(5 * MS));
        }
    });
    let series = series.unwrap();
    assert!(handle.set(series.clone()).is_ok());
    for (ms, runs) in [(10, 1), (4, 1), (1, 2), (9, 2), (1, 3)] {
        fixture.advance(ms * MS);
        assert_eq!(series.runs(), runs);
    }
}
