//! Manual clocks: the one list that a lock of ours is held for in proportion to its length, that of
//! the timers that were built on a clock. Such a clock is for tests and simulations.

use crate::{check, check_with, millis};
use std::time::Duration;
use tickwheel::{ManualClock, Timer, TimerEntry};

#[test]
fn timers_on_one_clock_are_looked_at_once_per_move() {
    let timers = 4_000;
    let clock = ManualClock::new();
    let build = || {
        let builder = Timer::builder().clock(clock.clone()).wheel_size(4).shards(1);
        builder.executor(|_: u64| ()).build().expect("it has no thread")
    };
    let timers: Vec<Timer<u64>> =
        check_with("build", timers, || (0..timers).map(|_| build()).collect());
    for (id, timer) in (0..).zip(&timers) {
        timer.add(TimerEntry::after(millis(id), id)).expect("there is no limit");
    }
    check_with("advance", timers.len() as u64, || clock.advance(Duration::from_secs(60)));
    let expired: usize = timers.iter().map(|timer| timer.advance_clock(Duration::ZERO)).sum();
    assert_eq!(expired, timers.len());
    check_with("drop", 0, || drop(timers));
}

/// Otherwise a clock that outlives very many timers grows with each of them.
#[test]
fn timers_that_are_gone_are_not_looked_at() {
    let clock = ManualClock::new();
    let build = || {
        let builder = Timer::builder().clock(clock.clone()).wheel_size(4).shards(1);
        builder.build().expect("in range")
    };
    (0..1000).for_each(|_| drop(build()));
    let last = check("build", build);
    check("advance", || clock.advance(Duration::from_secs(60)));
    drop(last);
}
