//! What leases count. The random steps of `model.rs` check each count after every step.

use crate::{Fixture, Mood, S};
use tickwheel::AddError;
use tickwheel::lease::LeaseStats;

fn counts(stats: LeaseStats) -> [u64; 6] {
    let LeaseStats { taken, renewed, failed, released, lost, .. } = stats;
    assert_eq!(taken, stats.held as u64 + released + lost);
    [stats.held as u64, taken, renewed, failed, released, lost]
}

#[test]
fn each_lease_is_held_released_or_lost_and_each_renewal_counts() {
    let fixture = Fixture::new();
    let [first, second, third] = [1, 2, 3].map(|key| fixture.leases.hold(key).unwrap());
    assert_eq!(counts(fixture.leases.stats()), [3, 3, 0, 0, 0, 0]);
    fixture.pass(10);
    assert_eq!(counts(fixture.leases.stats()), [3, 3, 3, 0, 0, 0]);
    fixture.set(Mood::Fails);
    fixture.pass(10);
    assert_eq!(counts(fixture.leases.stats()), [3, 3, 3, 3, 0, 0]);
    assert!(first.release());
    let again = fixture.leases.hold(2).unwrap();
    drop(second);
    assert_eq!(counts(fixture.leases.stats()), [2, 4, 3, 3, 2, 0]);
    fixture.set(Mood::SaysGone);
    fixture.pass(30);
    assert_eq!(counts(fixture.leases.stats()), [0, 4, 3, 3, 2, 2]);
    drop((third, again));
    let stats = fixture.leases.stats();
    assert_eq!(counts(stats), [0, 4, 3, 3, 2, 2]);
    assert_eq!(stats.to_string(), "held 0, taken 4, released 2, lost 2\nrenewed 3, failed 3");
}

#[test]
fn a_lease_that_was_released_after_it_ran_out_is_not_lost() {
    let fixture = Fixture::new();
    let lease = fixture.leases.hold(1).unwrap();
    fixture.clock.advance(30 * S);
    assert_eq!((lease.is_held(), fixture.leases.stats().held), (false, 1));
    assert!(!lease.release());
    fixture.pass(1);
    assert_eq!((fixture.take_lost(), counts(fixture.leases.stats())), (vec![], [0, 1, 0, 0, 1, 0]));
}

#[test]
fn a_shutdown_loses_all_and_what_it_refuses_was_never_taken() {
    let fixture = Fixture::new();
    let _leases = [1, 2].map(|key| fixture.leases.hold(key).unwrap());
    let returned = fixture.timer.shutdown();
    // The timer refuses the round, before anybody has found it shut down.
    std::mem::forget(returned);
    assert!(matches!(fixture.leases.hold(3), Err(AddError::Shutdown(_))));
    assert_eq!(counts(fixture.leases.stats()), [0, 2, 0, 0, 0, 2]);
    assert!(fixture.leases.hold(4).is_err(), "the book is closed");
    assert_eq!(counts(fixture.leases.stats()), [0, 2, 0, 0, 0, 2]);
}
