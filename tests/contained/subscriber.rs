//! A `tracing` subscriber that panics, whatever is reported.

use crate::idle::Idle;
use crate::listener::Listener;
use crate::{Payload, by_hand, no_report_succeeds};
use std::panic::panic_any;
use std::sync::Once;
use std::time::Duration;
use tickwheel::lease::{LeaseTerms, Leases};
use tracing::Event;

/// Installs the subscriber for all threads, including the reaper.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    let brittle = || Listener(|_| true, |_: &Event<'_>| panic_any(Payload(3)));
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(brittle()).expect("the first"));
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
