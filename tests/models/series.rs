//! Models of periodic timers.

use crate::futures::{NANO, assert_empty, by_hand, pass, with_reaper};
use crate::harness::{Bell, all, both, explore};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tickwheel::periodic::{MissedTick, Periodic, Run, Series};
use tickwheel::{ManualClock, Timer, When};

/// The numbers of the runs, in order. std's lock, because it is never held for a step of a
/// schedule.
type Runs = std::sync::Mutex<Vec<u64>>;

fn start(
    timer: &Timer,
    periodic: Periodic,
    then: impl Fn(&Run<'_>) + Send + Sync + 'static,
) -> (Series, Arc<Runs>) {
    let runs = Arc::new(Runs::default());
    let sink = Arc::clone(&runs);
    let task = move |run: &Run<'_>| {
        sink.lock().unwrap().push(run.number());
        then(run);
    };
    (periodic.start(timer, task).expect("it is accepted"), runs)
}

/// Checks that the series has ended and that nothing is left of it. Returns the runs.
fn settle(timer: &Timer, (series, runs): (Series, Arc<Runs>)) -> Vec<u64> {
    assert_empty(timer);
    let mut numbers = runs.lock().unwrap().clone();
    numbers.sort_unstable();
    assert_eq!(
        numbers,
        (0..series.runs()).collect::<Vec<_>>(),
        "each run runs once"
    );
    drop(series);
    assert_eq!(Arc::strong_count(&runs), 1, "something keeps the task");
    numbers
}

/// No run begins any more when `cancel` has returned.
///
/// Fails when a run that is on its way to the executor does not look whether the series was
/// cancelled, or who has just added one does not.
#[test]
fn cancel_against_run() {
    explore("cancel_against_run", 3, || {
        let (timer, clock) = by_hand();
        let series = start(&timer, Periodic::every(2 * NANO), |_| ());
        let (begun, _) = both(
            || {
                assert!(series.0.cancel());
                series.0.runs()
            },
            || (0..2).for_each(|_| pass(&timer, &clock, 2)),
        );
        assert_empty(&timer);
        pass(&timer, &clock, 2);
        assert_eq!(series.0.runs(), begun, "a run has begun after the end");
        assert!(!series.0.cancel() && series.0.is_cancelled());
        format!("{:?}", settle(&timer, series))
    });
}

/// Two threads end a series with pauses between its runs, perhaps during one: one of them is told
/// that it did.
///
/// Fails when `cancel` looks whether the series was cancelled and cancels it in two steps.
#[test]
fn cancel_during_run() {
    explore("cancel_during_run", 3, || {
        let (timer, clock) = by_hand();
        let series = start(&timer, Periodic::with_delay(2 * NANO), |_| {
            thread::yield_now()
        });
        let (one, other, _) = all(
            || series.0.cancel(),
            || series.0.cancel(),
            || pass(&timer, &clock, 2),
        );
        let answers = [one, other];
        assert!(answers[0] != answers[1], "{answers:?}");
        format!("{answers:?} {:?}", settle(&timer, series))
    });
}

/// A run ends its series, and so does another thread: one of them is told that it did.
///
/// Fails when `cancel` looks whether the series was cancelled and cancels it in two steps.
#[test]
fn cancel_inside_against_outside() {
    explore("cancel_inside_against_outside", 3, || {
        let (timer, clock) = by_hand();
        let own = Arc::new(std::sync::Mutex::new((None::<Series>, false)));
        let inside = Arc::clone(&own);
        let series = start(&timer, Periodic::every(2 * NANO), move |_| {
            let own = inside.lock().unwrap().0.take().expect("it was given");
            let cancels = own.cancel();
            inside.lock().unwrap().1 = cancels;
        });
        own.lock().unwrap().0 = Some(series.0.clone());
        let (outside, _) = both(
            || series.0.cancel(),
            || (0..2).for_each(|_| pass(&timer, &clock, 2)),
        );
        let (unused, inside) = std::mem::take(&mut *own.lock().unwrap());
        drop(unused);
        assert!(inside != outside, "{inside}, {outside}");
        format!("{inside} {:?}", settle(&timer, series))
    });
}

/// Two threads drive a series whose runs may overlap, and which has to catch up: each run runs
/// once.
///
/// Fails when a run's number is raised after the next run was added.
#[test]
fn two_advance_a_series() {
    explore("two_advance_a_series", 2, || {
        let (timer, clock) = by_hand();
        let periodic = Periodic::every(2 * NANO)
            .overlapping()
            .missed_tick(MissedTick::Burst);
        let series = start(&timer, periodic, |_| ());
        both(|| pass(&timer, &clock, 2), || pass(&timer, &clock, 4));
        let seen = runs(&series).len();
        (0..3).for_each(|_| pass(&timer, &clock, 0));
        let order = format!("{seen} {:?}", runs(&series));
        assert!(series.0.cancel());
        assert_eq!(settle(&timer, series), [0, 1, 2], "those of 2, 4 and 6");
        order
    });
}

/// A run is added and at once due, and adds the next one, before who has added it goes on: the
/// series can still be cancelled.
///
/// Fails when the handle of a run is kept although it has begun.
#[test]
fn cancel_after_an_overtaken_run() {
    explore("cancel_after_an_overtaken_run", 1, || {
        let (timer, clock) = by_hand();
        let series = start(&timer, Periodic::every(2 * NANO).overlapping(), |_| ());
        both(|| pass(&timer, &clock, 2), || pass(&timer, &clock, 2));
        assert!(series.0.cancel());
        format!("{:?}", settle(&timer, series))
    });
}

/// When each run was due, and when it began; in nanoseconds.
type Times = Arc<std::sync::Mutex<Vec<(u128, u128)>>>;

/// Starts a series that is due 2 ns from now, with pauses of 4 ns.
fn start_timed(timer: &Timer, clock: &ManualClock) -> ((Series, Arc<Runs>), Times) {
    let times = Times::default();
    let log = Arc::clone(&times);
    let begun = timer.now();
    let time = clock.clone();
    let note = move |run: &Run<'_>| {
        let due = run.due().expect("it is due some time") - begun;
        log.lock()
            .unwrap()
            .push((due.as_nanos(), (time.now() - begun).as_nanos()));
    };
    let periodic = Periodic::with_delay(4 * NANO).first_after(2 * NANO);
    (start(timer, periodic, note), times)
}

/// Two threads reset a series again and again as it is due: no run is early, lost, or runs twice,
/// and later ones are counted from the last.
///
/// Fails when a thread that moves an entry, or has added it, does not look whether another deadline
/// was decided on meanwhile; when a run does not look whether it was moved.
#[test]
fn two_resets_against_run() {
    explore("two_resets_against_run", 6, || {
        let (timer, clock) = by_hand();
        let begun = timer.now();
        let (series, times) = start_timed(&timer, &clock);
        let reset = |nanos: u32| {
            assert!(series.0.reschedule(When::Never));
            assert!(series.0.reschedule(begun + nanos * NANO));
        };
        all(
            || reset(5),
            || reset(3),
            || (0..2).for_each(|_| pass(&timer, &clock, 2)),
        );
        timer.assert_invariants();
        assert_eq!(timer.len(), 1, "one run is to come");
        let raced = times.lock().unwrap().len();
        pass(&timer, &clock, 0);
        let caught_up = times.lock().unwrap().len();
        (0..8).for_each(|_| pass(&timer, &clock, 1));
        let times = times.lock().unwrap().clone();
        let order = format!("{raced} {times:?}");
        assert!(
            times.iter().all(|(due, began)| due <= began),
            "early: {order}"
        );
        assert!(
            times[caught_up..].iter().all(|(due, began)| due == began),
            "late: {order}"
        );
        for pair in times.windows(2) {
            let [(former, ended), (due, _)] = [pair[0], pair[1]];
            assert!(former < due, "twice: {order}");
            assert!(
                [3, 5, ended + 4].contains(&due),
                "nobody has decided on this: {order}"
            );
        }
        let last = times.last().expect("no pause is the last reset").1;
        assert!(last + 4 > 12, "lost: {order}");
        assert!(series.0.cancel());
        settle(&timer, series);
        order
    });
}

/// Two threads reset a series that a third one cancels, as it is due: nothing is left of it, and no
/// run begins any more.
///
/// Fails when who has added an entry does not look whether the series has ended.
#[test]
fn two_resets_against_cancel() {
    explore("two_resets_against_cancel", 5, || {
        let (timer, clock) = by_hand();
        let begun = timer.now();
        let (series, times) = start_timed(&timer, &clock);
        let reset = |nanos: u32| series.0.reschedule(begun + nanos * NANO);
        let ((one, other, _), runs) = both(
            || {
                all(
                    || reset(3),
                    || reset(1),
                    || (0..2).for_each(|_| pass(&timer, &clock, 2)),
                )
            },
            || {
                assert!(series.0.cancel());
                series.0.runs()
            },
        );
        assert_empty(&timer);
        pass(&timer, &clock, 9);
        assert_eq!(series.0.runs(), runs, "a run has begun after the end");
        let order = format!("{one} {other} {:?}", times.lock().unwrap());
        settle(&timer, series);
        order
    });
}

fn runs(series: &(Series, Arc<Runs>)) -> Vec<u64> {
    series.1.lock().unwrap().clone()
}

/// Tells when it is dropped.
struct Mark(Arc<Bell>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The timer is dropped while its reaper runs a series: the series ends, and its task goes. If it
/// stays, that is a deadlock. No run is in progress any more when the drop has returned.
///
/// Fails when the series keeps its timer alive, be it for a moment in each run.
#[test]
fn drop_of_the_timer_against_run() {
    explore("drop_of_the_timer_against_run", 2, || {
        let (timer, clock) = with_reaper();
        let gone = Arc::new(Bell::default());
        let mark = Mark(Arc::clone(&gone));
        let [has_ended, is_late] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&has_ended);
        let late = Arc::clone(&is_late);
        let held = move |_: &Run<'_>| {
            assert!(!mark.0.is_rung(), "the task is dropped");
            late.fetch_or(ended.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        let (series, runs) = start(&timer, Periodic::every(2 * NANO), held);
        drop(series);
        both(
            || clock.advance(2 * NANO),
            || {
                drop(timer);
                has_ended.store(true, Ordering::Relaxed);
            },
        );
        drop(gone.wait());
        assert!(
            !is_late.load(Ordering::Relaxed),
            "it runs after the timer's end"
        );
        let numbers = runs.lock().unwrap().clone();
        assert!([&[][..], &[0]].contains(&&numbers[..]), "{numbers:?}");
        format!("{numbers:?}")
    });
}
