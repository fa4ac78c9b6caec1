//! A reaper on a manual clock.

use crate::{HOUR, MS, get, numbers_by, sleeping, until};
use std::time::Duration;
use tickwheel::{ManualClock, TimerEntry};

/// A manual clock that is moved by nothing wakes all who wait, as the system does at times.
#[test]
fn a_wake_up_without_a_reason_expires_nothing() {
    let clock = ManualClock::new();
    let (timer, receiver) = numbers_by(|builder| builder.clock(clock.clone()));
    timer.add(TimerEntry::after(HOUR, 1)).unwrap();
    sleeping(&timer);
    let before = timer.stats().wakeups;
    until("it is woken", || {
        clock.advance(Duration::ZERO);
        timer.stats().wakeups >= before + 20
    });
    assert_eq!((receiver.try_iter().count(), timer.len()), (0, 1));
    clock.advance(HOUR);
    assert_eq!(get(&receiver), 1);
}

/// Real time goes on far beyond the moment for which the reaper waits, and means nothing to it.
#[test]
fn a_reaper_on_a_manual_clock_does_not_wake_up_by_itself() {
    let clock = ManualClock::new();
    let (timer, _receiver) = numbers_by(|builder| builder.clock(clock));
    timer.add(TimerEntry::after(MS, 1)).unwrap();
    sleeping(&timer);
    std::thread::sleep(100 * MS);
    assert!(timer.stats().wakeups <= 2, "{} wake-ups", timer.stats().wakeups);
    assert_eq!(timer.len(), 1);
}
