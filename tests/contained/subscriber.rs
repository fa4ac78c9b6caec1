//! A `tracing` subscriber that panics, whatever is reported.

use crate::idle::Idle;
use crate::{HANG, MS, Payload, by_hand, get, no_report_succeeds};
use std::panic::panic_any;
use std::sync::Once;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tickwheel::lease::{LeaseTerms, Leases};
use tickwheel::{Task, Timer, TimerEntry};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Brittle;

/// Installs the subscriber for all threads, including the reaper.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Brittle).expect("the first"));
}

impl Subscriber for Brittle {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, _: &Event<'_>) {
        panic_any(Payload(3));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
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
