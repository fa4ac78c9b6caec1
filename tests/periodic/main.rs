//! The behaviour of periodic timers, in virtual time.

#[path = "../common/calls.rs"]
mod calls;
mod ends;
mod model;
#[path = "../common/quick.rs"]
mod quick;
mod resets;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tickwheel::periodic::{MissedTick, Periodic, Series};
use tickwheel::{ManualClock, Task, Timer, When};

pub(crate) const MS: Duration = Duration::from_millis(1);

struct Fixture {
    timer: Timer,
    clock: ManualClock,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .shards(1)
            .clock(clock.clone())
            .build()
            .unwrap();
        Fixture { timer, clock }
    }

    /// Starts a series whose runs write down when they were due and when they ran, in milliseconds,
    /// and take a time of `takes`.
    fn start(&self, periodic: Periodic, takes: Duration) -> (Series, Receiver<(u128, u128)>) {
        let (sender, runs) = channel();
        let start = self.clock.now();
        let clock = self.clock.clone();
        let series = periodic.start(&self.timer, move |run| {
            let due = run.due().expect("soon").duration_since(start);
            let ran = clock.now().duration_since(start);
            sender.send((due.as_millis(), ran.as_millis())).unwrap();
            clock.advance(takes);
        });
        (series.unwrap(), runs)
    }

    fn advance(&self, step: Duration) {
        self.clock.advance(step);
        while self.timer.advance_clock(Duration::ZERO) > 0 {}
        self.timer.assert_invariants();
    }
}

#[test]
fn runs_are_phase_stable_however_they_are_driven() {
    let fixture = Fixture::new();
    let (series, runs) = fixture.start(Periodic::every(10 * MS), 3 * MS);
    // 3 ms of each period pass in the run.
    for _ in 0..100 {
        fixture.advance(7 * MS);
    }
    let times: Vec<_> = runs.try_iter().collect();
    assert!(times.len() >= 50, "{}", times.len());
    for (n, (due, ran)) in times.iter().enumerate() {
        assert_eq!(*due, 10 * (n as u128 + 1), "run {n}");
        assert!(ran >= due && *ran < due + 10, "run {n} at {ran}");
    }
    assert_eq!(series.runs(), times.len() as u64);
}

#[test]
fn missed_runs_are_as_the_policy_says() {
    for (policy, late, expected) in [
        (
            MissedTick::Burst,
            35,
            [(10, 35), (20, 35), (30, 35), (40, 40), (50, 50)],
        ),
        (
            MissedTick::Skip,
            35,
            [(10, 35), (40, 40), (50, 50), (60, 60), (70, 70)],
        ),
        (
            MissedTick::Skip,
            30,
            [(10, 30), (30, 30), (40, 40), (50, 50), (60, 60)],
        ),
        (
            MissedTick::Delay,
            35,
            [(10, 35), (45, 45), (55, 55), (65, 65), (75, 75)],
        ),
    ] {
        let fixture = Fixture::new();
        let periodic = Periodic::every(10 * MS).missed_tick(policy);
        let (_series, runs) = fixture.start(periodic, Duration::ZERO);
        fixture.advance(late * MS);
        (0..50).for_each(|_| fixture.advance(MS));
        assert_eq!(
            runs.try_iter().take(5).collect::<Vec<_>>(),
            expected,
            "{policy:?}"
        );
    }
}

/// Against arithmetic: a run comes a period after the former one began, plus its jitter, and as
/// late as the clock is moved. Seen to fail: runs came 1 ms apart, with jitter as well.
#[test]
fn with_delay_runs_are_never_closer_together_than_a_period() {
    // How late the clock is moved, and how long a run takes.
    for (step, takes) in [(1, 0), (7, 0), (19, 0), (1, 4), (3, 9), (1, 25), (27, 13)] {
        for (jitter, overlaps) in [(0, false), (0, true), (6, false), (40, false), (40, true)] {
            let fixture = Fixture::new();
            let periodic = Periodic::every(10 * MS).missed_tick(MissedTick::Delay);
            let periodic = periodic.jitter(jitter * MS);
            let periodic = if overlaps {
                periodic.overlapping()
            } else {
                periodic
            };
            let (_series, runs) = fixture.start(periodic, takes * MS);
            for _ in 0..500 {
                fixture.clock.advance(step * MS);
                // Once: what takes longer than a period is due again at once.
                fixture.timer.advance_clock(Duration::ZERO);
            }
            let runs: Vec<_> = runs.try_iter().collect();
            let case = format!("{step} {takes} {jitter} {overlaps}");
            assert!(runs.len() >= 8, "{case}: {} runs", runs.len());
            for pair in runs.windows(2) {
                let [(_, former), (due, ran)] = [pair[0], pair[1]];
                assert_eq!(
                    due,
                    former + 10,
                    "{case}: counted from when the former one ran"
                );
                let latest = due + u128::from(jitter) + u128::from(step + takes + 1);
                assert!(
                    (due..=latest).contains(&ran),
                    "{case}: due at {due}, ran at {ran}"
                );
            }
        }
    }
}

#[test]
fn with_a_delay_the_pause_is_counted_from_the_end_of_a_run() {
    let periodic = Periodic::with_delay(10 * MS);
    // There are no missed runs, and no run begins before the former one has ended.
    for periodic in [
        periodic,
        periodic.missed_tick(MissedTick::Burst),
        periodic.overlapping(),
    ] {
        let fixture = Fixture::new();
        let (_series, runs) = fixture.start(periodic, 5 * MS);
        (0..40).for_each(|_| fixture.advance(MS));
        assert_eq!(
            runs.try_iter().map(|(_, ran)| ran).collect::<Vec<_>>(),
            [10, 25, 40, 55]
        );
    }
}

#[test]
fn the_first_run_may_have_a_delay_of_its_own() {
    let fixture = Fixture::new();
    let periodic = Periodic::every(10 * MS).first_after(Duration::ZERO);
    let (_series, runs) = fixture.start(periodic, Duration::ZERO);
    (0..=25).for_each(|n| fixture.advance(MS * u32::from(n > 0)));
    assert_eq!(
        runs.try_iter().map(|(_, ran)| ran).collect::<Vec<_>>(),
        [0, 10, 20]
    );
}

/// Seen to fail: where runs overlap, the next run was not moved.
#[test]
fn a_run_may_choose_when_the_next_one_is_due() {
    for periodic in [
        Periodic::every(10 * MS),
        Periodic::every(10 * MS).missed_tick(MissedTick::Delay),
        Periodic::with_delay(10 * MS),
        Periodic::every(10 * MS).overlapping(),
    ] {
        let fixture = Fixture::new();
        let (sender, ran) = channel();
        let start = fixture.clock.now();
        let clock = fixture.clock.clone();
        let series = periodic.start(&fixture.timer, move |run| {
            sender.send((clock.now() - start).as_millis()).unwrap();
            match run.number() {
                0 => {
                    run.reschedule(When::Never);
                    run.reschedule(7 * MS);
                }
                1 => _ = run.reschedule(start + 30 * MS),
                4 => _ = run.reschedule(When::Never),
                _ => {}
            }
        });
        fixture.clock.run_for(200 * MS);
        let ran: Vec<_> = ran.try_iter().collect();
        assert_eq!(ran, [10, 17, 30, 40, 50], "{periodic:?}");
        assert!(
            series.unwrap().cancel(),
            "one that never runs again has not ended"
        );
    }
}

#[test]
fn a_random_phase_spreads_series_over_the_first_period() {
    let fixture = Fixture::new();
    let periodic = Periodic::every(100 * MS).random_phase();
    let start = || fixture.start(periodic, Duration::ZERO);
    let series: Vec<_> = (0..100).map(|_| start()).collect();
    fixture.clock.run_for(300 * MS);
    let mut firsts: Vec<_> = series
        .iter()
        .map(|(_, runs)| runs.try_recv().unwrap().0)
        .collect();
    firsts.sort();
    firsts.dedup();
    assert!(firsts.len() > 40 && firsts[0] < 20 && (80..100).contains(firsts.last().unwrap()));
    assert!(series.iter().all(|(series, _)| series.runs() == 3));
}

#[test]
fn jitter_makes_runs_late_by_less_than_itself_and_leaves_the_phase() {
    let fixture = Fixture::new();
    let periodic = Periodic::every(100 * MS).jitter(50 * MS);
    let (_series, runs) = fixture.start(periodic, Duration::ZERO);
    (0..10_050).for_each(|_| fixture.advance(MS));
    let late = runs.try_iter().enumerate().map(|(n, (due, ran))| {
        assert_eq!(due, 100 * (n as u128 + 1));
        ran - due
    });
    let late = late.collect::<Vec<_>>();
    assert_eq!(late.len(), 100);
    assert!(late.iter().all(|late| *late <= 50), "{late:?}");
    assert!(
        late.iter().max() > Some(&30) && late.iter().min() < Some(&20),
        "{late:?}"
    );
}

#[test]
fn a_series_that_is_cancelled_runs_no_more_from_outside_or_inside() {
    let fixture = Fixture::new();
    let (series, runs) = fixture.start(Periodic::every(10 * MS), Duration::ZERO);
    fixture.advance(10 * MS);
    assert!(series.cancel() && !series.cancel() && series.is_cancelled());
    assert!(fixture.timer.is_empty(), "its timeout is gone at once");
    fixture.advance(100 * MS);
    assert_eq!(runs.try_iter().count(), 1);
    let inside = Periodic::every(MS).start(&fixture.timer, |run| {
        if run.number() == 4 {
            run.cancel();
        }
    });
    (0..20).for_each(|_| fixture.advance(MS));
    assert_eq!(inside.unwrap().runs(), 5);
    assert!(fixture.timer.is_empty());
}

#[test]
fn a_run_that_waits_in_the_executor_when_its_series_is_cancelled_does_not_begin() {
    let (queue, tasks) = channel();
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone());
    let timer = builder
        .executor(move |task: Task| queue.send(task).unwrap())
        .build()
        .unwrap();
    let series = Periodic::every(MS)
        .start(&timer, |_| panic!("it runs"))
        .unwrap();
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(series.cancel());
    tasks.try_iter().for_each(Task::run);
    assert_eq!(
        (series.runs(), timer.stats().panicked, timer.len()),
        (0, 0, 0)
    );
}

#[test]
fn a_run_that_takes_longer_than_the_period_meets_itself_only_if_it_may() {
    for overlaps in [false, true] {
        let fixture = Fixture::new();
        let periodic = Periodic::every(10 * MS).missed_tick(MissedTick::Burst);
        let periodic = if overlaps {
            periodic.overlapping()
        } else {
            periodic
        };
        let timer = fixture.timer.clone();
        let clock = fixture.clock.clone();
        let (sender, depths) = channel();
        let depth = std::sync::atomic::AtomicU32::new(0);
        let series = periodic.start(&fixture.timer, move |run| {
            use std::sync::atomic::Ordering::Relaxed;
            sender.send(depth.fetch_add(1, Relaxed)).unwrap();
            if run.number() < 3 {
                clock.advance(10 * MS);
                timer.advance_clock(Duration::ZERO);
            }
            depth.fetch_sub(1, Relaxed);
        });
        fixture.advance(10 * MS);
        let deepest = depths.try_iter().take(4).max();
        assert_eq!(deepest, Some(if overlaps { 3 } else { 0 }));
        series.unwrap().cancel(); // Its task keeps the timer, which keeps the task.
    }
}

#[test]
fn jitter_beyond_the_period_leaves_no_run_out() {
    let fixture = Fixture::new();
    let periodic = Periodic::every(10 * MS).jitter(100 * MS);
    let (series, _runs) = fixture.start(periodic, Duration::ZERO);
    (0..2_000).for_each(|_| fixture.advance(MS));
    assert!(
        series.runs() >= 180,
        "{} runs in 200 periods",
        series.runs()
    );
}

/// Nanoseconds in 64 bits are 584 years: a jitter beyond that puts a run off by up to so long.
#[test]
fn the_longest_jitter_there_is_puts_runs_off_and_harms_nothing() {
    let fixture = Fixture::new();
    let (series, runs) = fixture.start(Periodic::every(MS).jitter(Duration::MAX), Duration::ZERO);
    fixture.advance(Duration::from_secs(3600));
    assert_eq!(
        (runs.try_iter().count(), series.runs(), fixture.timer.len()),
        (0, 0, 1)
    );
    assert!(series.cancel() && fixture.timer.is_empty());
}

#[test]
fn a_cancelled_series_frees_its_task_so_that_it_can_be_kept_in_what_the_task_holds() {
    let fixture = Fixture::new();
    let service = std::sync::Arc::new(std::sync::Mutex::new(None::<Series>));
    let own = std::sync::Arc::clone(&service);
    let series = Periodic::every(MS).start(&fixture.timer, move |_| assert!(own.lock().is_ok()));
    *service.lock().unwrap() = Some(series.unwrap());
    assert_eq!(std::sync::Arc::strong_count(&service), 2);
    assert!(service.lock().unwrap().as_ref().is_some_and(Series::cancel));
    assert_eq!(std::sync::Arc::strong_count(&service), 1);
}

/// Seen to fail: the runs came and went at the pace of the sweep, which never looked at the bucket
/// of the cancelled timers.
#[test]
fn what_is_cancelled_beside_series_leaves_little_behind() {
    fastrand::seed(1);
    for _ in 0..20 {
        let fixture = Fixture::new();
        let periods: Vec<u32> = (0..5).map(|_| fastrand::u32(1..=6)).collect();
        let request = {
            let timer = fixture.timer.downgrade();
            move || {
                let timer = timer.upgrade().expect("it runs");
                let timeout = timer
                    .after(Duration::from_secs(3600 * 24 * 30), || ())
                    .unwrap();
                assert!(timeout.cancel().is_cancelled());
            }
        };
        let of_requests =
            Periodic::every(periods[0] * MS).start(&fixture.timer, move |_| request());
        let others = periods[1..]
            .iter()
            .map(|period| Periodic::every(*period * MS));
        let _others: Vec<_> = others
            .map(|other| other.start(&fixture.timer, |_| ()).unwrap())
            .collect();
        fixture.clock.run_for(800 * periods[0] * MS);
        assert_eq!(of_requests.unwrap().runs(), 800);
        let references: usize = fixture
            .timer
            .snapshot()
            .levels
            .iter()
            .map(|level| level.entries)
            .sum();
        assert!(
            references <= 3 * 6 + 500,
            "{references} beside series of {periods:?} ms"
        );
    }
}
