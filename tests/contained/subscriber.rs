//! A `tracing` subscriber that panics, whatever is reported.

use crate::idle::Idle;
use crate::listener::Listener;
use crate::{HANG, MS, Payload, by_hand, get, no_report_succeeds};
use std::panic::panic_any;
use std::sync::Once;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tickwheel::lease::{LeaseTerms, Leases};
use tickwheel::{Task, Timer, TimerEntry};
use tracing::Event;

/// Installs the subscriber for all threads, including the reaper.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    let brittle = || Listener(|_| true, |_: &Event<'_>| panic_any(Payload(3)));
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(brittle()).expect("the first"));
}

#[test]
fn the_reaper_starts_and_expires_though_it_cannot_report() {
    no_report_succeeds();
    let (sender, ran) = channel();
    let timer = Timer::builder().start().unwrap();
    for id in 0..3 {
        timer.add(TimerEntry::after(MS, || panic!("a task"))).unwrap();
        let sender = sender.clone();
        timer.add(TimerEntry::after(3 * MS, move || sender.send(id).unwrap())).unwrap();
        assert_eq!(get(&ran), id);
    }
    assert_eq!(timer.stats().panicked, 3);
}

#[test]
fn an_outage_that_cannot_be_reported_costs_no_round() {
    no_report_succeeds();
    let (timer, clock) = by_hand();
    let leases = Leases::new(&timer, LeaseTerms::new(Duration::from_secs(30)), Idle);
    let lease = leases.hold(1).unwrap();
    for _ in 0..31 {
        clock.advance(Duration::from_secs(1));
        timer.advance_clock(Duration::ZERO);
    }
    assert!(!lease.is_held() && leases.is_empty());
    assert_eq!(timer.stats().panicked, 0);
}

#[test]
fn a_timer_is_dropped_though_what_was_pending_cannot_be_reported() {
    no_report_succeeds();
    let (sender, dropped) = channel();
    let timer: Timer = Timer::builder().start().unwrap();
    let task = Task::new(move || sender.send(()).unwrap());
    timer.add(TimerEntry::after(HANG, task)).unwrap();
    let start = Instant::now();
    drop(timer);
    assert!(dropped.recv().is_err() && start.elapsed() < HANG);
}
