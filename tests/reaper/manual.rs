//! A reaper on a manual clock.

use crate::{HOUR, MS, get, sleeping};
use std::sync::mpsc::channel;
use tickwheel::{ManualClock, Timer, TimerEntry};

#[test]
fn moving_a_manual_clock_wakes_the_reaper() {
    let clock = ManualClock::new();
    let (sender, receiver) = channel();
    let executor = move |id: u32| {
        let _ = sender.send(id);
    };
    let timer = Timer::builder().clock(clock.clone()).executor(executor).start().unwrap();
    for id in 0..20 {
        timer.add(TimerEntry::after(HOUR, id)).unwrap();
        if id % 2 == 0 {
            sleeping(&timer);
        }
        clock.advance(HOUR - MS);
        assert!(receiver.try_recv().is_err(), "it came early");
        clock.advance_to(clock.now() + MS);
        assert_eq!(get(&receiver), id);
    }
}

/// Real time goes on far beyond the moment for which the reaper waits, and means nothing to it.
#[test]
fn a_reaper_on_a_manual_clock_does_not_wake_up_by_itself() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock).executor(|_: u32| ()).start().unwrap();
    timer.add(TimerEntry::after(MS, 1)).unwrap();
    sleeping(&timer);
    std::thread::sleep(100 * MS);
    assert!(timer.stats().wakeups <= 2, "{} wake-ups", timer.stats().wakeups);
    assert_eq!(timer.len(), 1);
}
