//! What a store panics with, and what is printed: neither loses a lease, nor shows a key.

use crate::{S, by_hand, turn};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal, Stats};

/// Panics in what its flags say, after it has noted what was lost.
struct Panics {
    renew: bool,
    answers: bool,
    lost: Arc<Mutex<Vec<u32>>>,
}

impl LeaseStore<u32> for Panics {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        if self.answers {
            batch.into_iter().for_each(Renewal::gone);
        }
        assert!(!self.renew, "the store panics");
    }

    fn lost(&self, key: u32) {
        self.lost.lock().unwrap().push(key);
        panic!("the store panics");
    }
}

#[test]
fn a_store_that_panics_is_counted_by_the_timer_and_told_of_each_loss_once() {
    for (renew, answers, panics) in [(false, true, 1), (true, true, 2), (true, false, 5)] {
        let (timer, clock) = by_hand();
        let lost = Arc::<Mutex<Vec<u32>>>::default();
        let store = Panics {
            renew,
            answers,
            lost: Arc::clone(&lost),
        };
        let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store);
        let held = [1, 2, 3].map(|key| leases.hold(key).unwrap());
        for _ in 0..20 {
            clock.advance(S);
            turn(&timer);
        }
        // After 10 s, and each 2.5 s later as long as it lasts.
        assert_eq!(
            timer.stats().panicked,
            if answers { panics } else { panics - 1 }
        );
        assert_eq!(
            leases.stats().failed,
            if answers { 0 } else { 3 * (panics - 1) }
        );
        clock.advance(10 * S);
        turn(&timer);
        assert_eq!(*lost.lock().unwrap(), [1, 2, 3]);
        assert!(held.iter().all(|lease| !lease.is_held()) && leases.is_empty());
    }
}

/// Seen to fail: the renewal of the other one was in flight for ever.
#[test]
fn a_loss_that_panics_costs_no_renewal_in_the_same_batch() {
    struct Renews;
    impl LeaseStore<u32> for Renews {
        fn renew(&self, batch: Vec<Renewal<u32>>) {
            batch.into_iter().for_each(Renewal::renewed);
        }
        fn lost(&self, _: u32) {
            panic!("the store panics");
        }
    }
    let (timer, clock) = by_hand();
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), Renews);
    let asked = clock.now();
    let other = leases.hold(1).unwrap();
    clock.advance(10 * S);
    let _late = leases.hold_since(2, asked - 20 * S).unwrap();
    for _ in 0..60 {
        turn(&timer);
        clock.advance(S);
    }
    assert!(other.is_held());
    assert_eq!((leases.stats().lost, timer.stats().panicked), (1, 1));
}

/// A key that must not be printed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Secret(u32);

impl Debug for Secret {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("a user's value is printed");
    }
}

/// Leaves every renewal unanswered, and shows the first.
struct Shows;

impl LeaseStore<Secret> for Shows {
    fn renew(&self, batch: Vec<Renewal<Secret>>) {
        assert_eq!(format!("{:?}", batch[0]), "Renewal { .. }");
    }

    fn lost(&self, _: Secret) {}
}

#[test]
fn leases_print_no_key() {
    let (timer, clock) = by_hand();
    let leases = Leases::new(&timer, LeaseTerms::new(3 * S), Shows);
    let lease = leases.hold(Secret(1)).unwrap();
    assert_eq!(
        format!("{leases:?} {lease:?}"),
        "Leases { .. } Lease { .. }"
    );
    clock.advance(S);
    turn(&timer);
    assert_eq!((leases.stats().failed, timer.stats().panicked), (1, 0));
    let mut stats = Stats::default();
    stats.taken = 4;
    stats.released = 2;
    stats.lost = 2;
    stats.renewed = 3;
    stats.failed = 1;
    assert_eq!(
        stats.to_string(),
        "held 0, taken 4, released 2, lost 2\nrenewed 3, failed 1"
    );
}
