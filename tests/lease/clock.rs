//! What the clock decides, whether or not the watchdog has come round: a process may have slept.

use crate::{Fixture, Mood, S};
use std::time::Duration;
use tickwheel::lease::Renewal;

#[test]
fn a_lease_counts_from_when_it_was_asked_for() {
    let fixture = Fixture::new();
    let asked = fixture.clock.now();
    fixture.clock.advance(20 * S);
    fixture.set(Mood::Fails);
    let lease = fixture.leases.hold_since(1, asked).unwrap();
    fixture.pass(1);
    assert_eq!(fixture.take_renewals(), [(21, 1)], "it was due at 10");
    fixture.pass(8);
    assert!(lease.is_held() && fixture.take_lost().is_empty());
    fixture.pass(1);
    assert_eq!(fixture.take_lost(), [(30, 1)], "the store may count from 0");
}

#[test]
fn what_came_too_late_to_be_held_is_lost_once() {
    let fixture = Fixture::new();
    let asked = fixture.clock.now();
    fixture.clock.advance(30 * S);
    let lease = fixture.leases.hold_since(1, asked).unwrap();
    assert!(!lease.is_held());
    fixture.pass(60);
    assert_eq!((fixture.take_renewals(), fixture.take_lost()), (vec![], vec![(31, 1)]));
}

#[test]
fn what_has_run_out_is_not_held_before_the_watchdog_has_looked_either() {
    let fixture = Fixture::new();
    let (lost, released) = (fixture.leases.hold(1).unwrap(), fixture.leases.hold(2).unwrap());
    fixture.clock.advance(30 * S - Duration::from_nanos(1));
    assert!(lost.is_held() && released.is_held());
    fixture.clock.advance(Duration::from_nanos(1));
    assert!(!lost.is_held() && !released.release(), "whoever asks is told");
    fixture.pass(60);
    assert_eq!(fixture.take_lost(), [(31, 1)], "the other one was released");
    let stats = fixture.leases.stats();
    assert_eq!((stats.taken, stats.released, stats.lost), (2, 1, 1));
}

#[test]
fn an_answer_that_comes_when_the_lease_has_run_out_does_not_revive_it() {
    for answer in [Renewal::renewed, Renewal::gone, Renewal::failed] {
        let fixture = Fixture::new();
        fixture.set(Mood::Stalls);
        let lease = fixture.leases.hold(1).unwrap();
        fixture.pass(10);
        fixture.clock.advance(20 * S);
        assert!(!lease.is_held());
        let stalled = std::mem::take(&mut fixture.seen.lock().unwrap().stalled);
        stalled.into_iter().for_each(answer);
        assert!(!lease.is_held());
        assert_eq!(fixture.take_lost(), [(30, 1)]);
        fixture.pass(60);
        assert_eq!(fixture.take_lost(), []);
    }
}
