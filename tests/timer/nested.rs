//! Turns inside turns: tasks that advance the clock.

use crate::{HOUR, MS, closures};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{ManualClock, Timer, TimerEntry};

#[test]
fn a_task_may_add_cancel_reschedule_and_advance() {
    let (timer, clock) = closures();
    let log = Arc::new(Mutex::new(Vec::new()));
    let logs = |name: &'static str| {
        let log = Arc::clone(&log);
        move || log.lock().unwrap().push(name)
    };
    let victim = timer.add(TimerEntry::after(HOUR, logs("cancelled"))).unwrap();
    let sooner = timer.add(TimerEntry::after(HOUR, logs("sooner"))).unwrap();
    let later = timer.add(TimerEntry::after(2 * MS, logs("later"))).unwrap();
    let (inner, added) = (timer.clone(), logs("added"));
    let task = move || {
        assert!(victim.cancel().is_cancelled());
        assert!(sooner.reschedule(Duration::ZERO) && later.touch(HOUR));
        inner.add(TimerEntry::after(Duration::ZERO, added)).unwrap();
        assert_eq!(inner.len(), 3);
        assert_eq!(inner.advance_clock(HOUR), 2, "the two that are due now");
    };
    timer.add(TimerEntry::after(MS, task)).unwrap();
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let mut names = log.lock().unwrap().clone();
    names.sort_unstable();
    assert_eq!(names, ["added", "sooner"]);
    assert_eq!((timer.len(), timer.stats().panicked), (1, 0));
    timer.assert_invariants();
}

/// Each is another turn inside the one that runs it, as long as that is allowed.
#[test]
fn tasks_that_advance_the_clock_need_no_deep_stack() {
    let (timer, clock) = closures();
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..100_000 {
        let (inner, counted) = (timer.clone(), Arc::clone(&runs));
        let task = move || {
            counted.fetch_add(1, Relaxed);
            inner.advance_clock(Duration::ZERO);
        };
        timer.add(TimerEntry::after(MS, task)).unwrap();
    }
    clock.advance(MS);
    let advance = move || timer.advance_clock(Duration::ZERO);
    let small = std::thread::Builder::new().stack_size(256 << 10);
    small.spawn(advance).unwrap().join().expect("the stack sufficed");
    assert_eq!(runs.load(Relaxed), 100_000);
}

/// The turns of different timers count together: each would need the stack as well. What a call
/// leaves because of others' turns is left to the next call.
#[test]
fn timers_that_advance_each_other_need_no_deep_stack() {
    let clock = ManualClock::new();
    let build = |_| Timer::builder().shards(1).clock(clock.clone()).build().expect("in range");
    let timers: Vec<Timer> = (0..9).map(build).collect();
    let expired = Arc::new(Mutex::new(Vec::new()));
    for (outer, inner) in timers.iter().zip(&timers[1..]) {
        let (inner, expired) = (inner.clone(), Arc::clone(&expired));
        let task = move || {
            let count = inner.advance_clock(Duration::ZERO);
            expired.lock().unwrap().push(count);
        };
        outer.after(MS, task).unwrap();
    }
    let last = &timers[8];
    last.after(MS, || ()).unwrap();
    clock.advance(MS);
    assert_eq!(timers[0].advance_clock(Duration::ZERO), 1);
    assert_eq!(*expired.lock().unwrap(), [0, 1, 1, 1, 1, 1, 1, 1], "the innermost call first");
    assert_eq!(last.len(), 1, "eight turns were under way, none of them its own");
    assert_eq!(last.advance_clock(Duration::ZERO), 1);
}
