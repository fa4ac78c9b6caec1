//! What tasks may do, and what they cannot break.

use crate::{HOUR, MS, closures};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tickwheel::{ManualClock, SharedClosure, Task, Timeout, Timer, TimerEntry, When};

/// Adds a task that adds itself again for now, each time it runs, at most `limit` times in all: so
/// that a turn that does not end fails a test instead of hanging it.
fn add_again(timer: &Timer, delay: Duration, runs: &Arc<AtomicUsize>, limit: usize) {
    let (again, counted) = (timer.clone(), Arc::clone(runs));
    let task = move || {
        if counted.fetch_add(1, Relaxed) < limit {
            add_again(&again, Duration::ZERO, &counted, limit);
        }
    };
    timer.add(TimerEntry::after(delay, task)).unwrap();
}

/// One; more than one flush moves at once; and such as are late: the clock has gone on beyond their
/// tick, so what they add for now lies under a later one.
#[test]
fn tasks_that_add_themselves_for_now_run_once_per_call_each() {
    let [now, soon] = [Duration::ZERO, 5 * MS];
    for (tasks, delay, late) in
        [(1, now, now), (300, now, now), (1, soon, MS), (1, soon, 9 * MS), (1, soon, HOUR)]
    {
        let (timer, clock) = closures();
        let runs = Arc::new(AtomicUsize::new(0));
        (0..tasks).for_each(|_| add_again(&timer, delay, &runs, 100_000));
        clock.advance(delay + late);
        for call in 1..100 {
            let case = format!("call {call}: {tasks} tasks, {late:?} late");
            assert_eq!(timer.advance_clock(Duration::ZERO), tasks, "{case}");
            assert_eq!(runs.load(Relaxed), tasks * call, "{case}");
        }
        timer.shutdown();
    }
}

#[test]
fn what_the_executor_refuses_is_handed_on_or_dropped_and_counted() {
    let refused = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&refused);
    let clock = ManualClock::new();
    let build = || {
        let odd_only = |id: u32| if id % 2 == 1 { Ok(()) } else { Err(id) };
        Timer::builder().clock(clock.clone()).executor(odd_only)
    };
    let told = build().on_refused(move |id| sink.lock().unwrap().push(id)).build().unwrap();
    let untold = build().build().unwrap();
    for timer in [&told, &untold] {
        for id in 0..10 {
            let _ = timer.add(TimerEntry::after(MS, id)).unwrap();
        }
    }
    clock.advance(MS);
    for timer in [&told, &untold] {
        assert_eq!(timer.advance_clock(Duration::ZERO), 10);
        let stats = timer.stats();
        assert_eq!((stats.expired, stats.refused, stats.panicked), (10, 5, 0));
    }
    assert_eq!((told.stats().dropped, untold.stats().dropped), (0, 5));
    assert_eq!(*refused.lock().unwrap(), [0, 2, 4, 6, 8]);
}

/// A payload whose drop uses the timer: it would wait forever if that ran under a lock.
#[derive(Debug)]
struct Hostile {
    timer: Arc<OnceLock<Weak<Timer<Hostile>>>>,
    other: Mutex<Option<Timeout<Hostile>>>,
    drops: Arc<AtomicUsize>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Relaxed);
        if let Some(timer) = self.timer.get().and_then(Weak::upgrade) {
            assert!(timer.len() < 100);
            let (own, drops) = (Arc::new(OnceLock::new()), Arc::clone(&self.drops));
            let quiet = Hostile { timer: own, other: Mutex::new(None), drops };
            drop(timer.add(TimerEntry::after(HOUR, quiet)));
        }
        if let Some(other) = self.other.lock().unwrap().take() {
            drop(other.cancel());
            let _ = (other.is_pending(), other.reschedule(MS));
        }
    }
}

#[test]
fn a_payload_may_use_the_timer_when_it_is_dropped() {
    let clock = ManualClock::new();
    let drops = Arc::new(AtomicUsize::new(0));
    let builder = Timer::builder().shards(1).max_pending(20).clock(clock.clone());
    let timer = Arc::new(builder.executor(|task: Hostile| drop(task)).build().unwrap());
    let cell = Arc::new(OnceLock::new());
    assert!(cell.set(Arc::downgrade(&timer)).is_ok());
    let hostile = |other| {
        let other = Mutex::new(other);
        TimerEntry::after(MS, Hostile { timer: cell.clone(), other, drops: drops.clone() })
    };
    // Dropped by an expiry, by a cancel, by a guard, by a refused add, by shutdown.
    let other = timer.add(hostile(None)).unwrap();
    timer.add(hostile(Some(other))).unwrap();
    clock.advance(MS);
    timer.advance_clock(Duration::ZERO);
    drop(timer.add(hostile(None)).unwrap().cancel());
    drop(timer.add(hostile(None)).unwrap().cancel_on_drop());
    while timer.add(hostile(None)).is_ok() {}
    drop(timer.shutdown());
    drop(timer.add(hostile(None)));
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.pending), (0, 0));
    assert!(drops.load(Relaxed) as u64 > stats.added);
}

#[test]
fn tasks_that_share_a_closure_are_told_apart_by_their_numbers() {
    let (timer, clock) = closures();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let closure: SharedClosure = {
        let seen = Arc::clone(&seen);
        Arc::new(move |number| seen.lock().unwrap().push(number))
    };
    let add = |number: u64, when: When| {
        timer.add(TimerEntry::new(when, Task::shared(Arc::clone(&closure), number))).unwrap()
    };
    add(3, When::After(3 * MS));
    let two = add(2, When::At(timer.now() + 2 * MS));
    add(u64::MAX, When::After(MS));
    assert!(two.cancel().is_cancelled());
    clock.advance(5 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 2);
    assert_eq!(*seen.lock().unwrap(), [u64::MAX, 3]);
    assert_eq!(Arc::strong_count(&closure), 1, "what is over lets go of the closure");
}
