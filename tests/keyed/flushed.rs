//! Keys whose time was up, and whose tasks are on their way: they have left their keyed timer, and
//! belong to the executor.

use crate::{HOUR, MS};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{ManualClock, Task, Timer, TimerBuilder, TimerEntry};

type Value = Arc<u32>;

/// A keyed timer whose tasks the test runs, and what has expired.
struct Flushed {
    timer: Timer,
    clock: ManualClock,
    keyed: KeyedTimer<u32, Value>,
    tasks: Receiver<Task>,
    expired: Receiver<(u32, u32)>,
}

impl Flushed {
    /// The time of keys 1 and 2 is up, and their tasks are on their way.
    fn new() -> Self {
        let (sender, tasks) = channel();
        Self::with(tasks, |builder| {
            builder.executor(move |task| _ = sender.send(task))
        })
    }

    fn with(tasks: Receiver<Task>, build: impl FnOnce(TimerBuilder) -> TimerBuilder) -> Self {
        let clock = ManualClock::new();
        let timer = build(Timer::builder().clock(clock.clone()).max_pending(2))
            .build()
            .unwrap();
        let (sender, expired) = channel();
        let keyed = KeyedTimer::new(&timer, move |key, task: Value| {
            sender.send((key, *task)).unwrap();
        });
        for key in [1, 2] {
            assert_eq!(keyed.add(key, MS, Arc::new(key)).unwrap(), None);
        }
        clock.advance(3 * MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 2);
        Flushed {
            timer,
            clock,
            keyed,
            tasks,
            expired,
        }
    }

    /// Runs what is on its way. Returns what that expires.
    fn run(&self) -> Vec<(u32, u32)> {
        self.tasks.try_iter().for_each(Task::run);
        self.keyed.assert_invariants();
        self.timer.assert_invariants();
        self.expired.try_iter().collect()
    }
}

#[test]
fn a_flushed_key_is_gone_before_its_task_has_run() {
    let flushed = Flushed::new();
    let keyed = &flushed.keyed;
    let timer = &flushed.timer;
    assert_eq!((keyed.len(), timer.len(), timer.stats().expired), (0, 0, 2));
    assert_eq!(timer.stats().lateness.count(), 2);
    assert!(!keyed.contains(&1) && !keyed.touch(&1, HOUR) && !keyed.reschedule(&1, HOUR));
    assert_eq!(
        (keyed.cancel(&1), keyed.get(&1), keyed.cancel_all().len()),
        (None, None, 0)
    );
    assert!(matches!(keyed.entry(1), Entry::Vacant(_)));
    // Both have given their permits back.
    assert_eq!(keyed.add(1, MS, Arc::new(11)).unwrap(), None);
    assert_eq!(keyed.add(3, HOUR, Arc::new(3)).unwrap(), None);
    assert_eq!(
        flushed.run(),
        [(1, 1), (2, 2)],
        "although a newer value is there"
    );
    assert_eq!(keyed.get(&1), Some(Arc::new(11)));
    flushed.clock.advance(MS);
    timer.advance_clock(Duration::ZERO);
    assert_eq!(flushed.run(), [(1, 11)]);
}

/// With key and value: nothing is lost unless it is dropped.
#[test]
fn a_refused_task_has_its_key_and_its_value_in_it() {
    let (sender, tasks) = channel();
    let refuse = |builder: TimerBuilder| {
        let builder = builder.executor(|task: Task| Err::<(), _>(task));
        builder.on_refused(move |task| sender.send(task).unwrap())
    };
    let flushed = Flushed::with(tasks, refuse);
    assert_eq!((flushed.timer.stats().refused, flushed.keyed.len()), (2, 0));
    drop(flushed.tasks.recv().unwrap());
    assert_eq!(flushed.run(), [(2, 2)]);
}

#[test]
fn what_is_dropped_on_its_way_drops_its_value() {
    let flushed = Flushed::new();
    flushed.run();
    let value = Arc::new(7);
    flushed
        .keyed
        .add(7, Duration::ZERO, Arc::clone(&value))
        .unwrap();
    flushed.timer.advance_clock(Duration::ZERO);
    assert_eq!(Arc::strong_count(&value), 2);
    drop(flushed.tasks.recv().unwrap());
    assert_eq!((Arc::strong_count(&value), flushed.run()), (1, vec![]));
}

#[test]
fn what_is_on_its_way_expires_after_the_end_of_its_timer_and_of_the_last_clone() {
    let Flushed {
        timer,
        keyed,
        tasks,
        expired,
        ..
    } = Flushed::new();
    assert!(timer.shutdown().is_empty());
    tasks.recv().unwrap().run();
    drop((keyed, timer));
    tasks.recv().unwrap().run();
    assert_eq!(expired.try_iter().collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    assert!(expired.recv().is_err(), "nothing keeps the closure");
}

/// Returned after the key was added again, or after a shutdown of the timer.
#[test]
fn a_kept_key_is_dropped_if_there_is_a_newer_value() {
    for (is_there, is_shut) in [(false, false), (true, false), (false, true)] {
        let (sender, tasks) = channel();
        let builder = Timer::builder().executor(move |task: Task| _ = sender.send(task));
        let timer = builder
            .max_pending(1)
            .clock(ManualClock::new())
            .build()
            .unwrap();
        let keep = |key: u32, task: Value| Some((key, TimerEntry::after(HOUR, task)));
        let keyed = KeyedTimer::new(&timer, keep);
        let kept = Arc::new(1);
        keyed.add(1, Duration::ZERO, Arc::clone(&kept)).unwrap();
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        let other = if is_there { 1 } else { 2 };
        keyed.add(other, HOUR, Arc::new(9)).unwrap();
        if is_shut {
            assert!(timer.shutdown().is_empty());
        }
        tasks.recv().unwrap().run();
        let is_kept = !is_there && !is_shut;
        assert_eq!(Arc::strong_count(&kept), if is_kept { 2 } else { 1 });
        assert_eq!(
            (keyed.contains(&1), timer.len()),
            (is_kept || is_there, 1 + usize::from(is_kept))
        );
        keyed.assert_invariants();
        timer.assert_invariants();
    }
}
