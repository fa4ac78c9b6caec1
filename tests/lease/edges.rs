//! What a review found at the edges: a full timer, releases that come too late, panics.

use crate::{Fixture, S, by_hand};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{Timer, TimerBuilder};

/// Something else goes off before the round in the same turn, and fills the timer: that costs no
/// lease. Or it shuts the timer down: then all are lost, and none is renewed after that.
#[test]
fn a_timer_that_others_fill_costs_no_lease_and_one_that_is_shut_down_costs_all() {
    let fills: fn(&Timer) = |timer| while timer.after(100 * S, || ()).is_ok() {};
    let shuts_down: fn(&Timer) = |timer| drop(timer.shutdown());
    for (act, renewals, lost) in
        [(fills, vec![(10, 1)], vec![]), (shuts_down, vec![], vec![(10, 1)])]
    {
        let fixture = Fixture::with(|builder| builder.max_pending(2).build(), |terms| terms);
        let weak = fixture.timer.downgrade();
        fixture.timer.after(10 * S, move || act(&weak.upgrade().unwrap())).unwrap();
        let _lease = fixture.leases.hold(1).unwrap();
        fixture.pass(10);
        assert_eq!((fixture.take_renewals(), fixture.take_lost()), (renewals, lost));
    }
}

/// `release` says whether the lease was held; if not, `lost` may come after it. (Its former text,
/// "After it `lost` is not called", was wrong: `["released 1", "lost 0", "lost 1"]`.)
#[test]
fn lost_may_come_after_a_release_that_was_too_late() {
    type Seen = (Vec<Lease<u32>>, Vec<String>);
    #[derive(Clone, Default)]
    struct Store(Arc<Mutex<Seen>>);
    impl LeaseStore<u32> for Store {
        fn renew(&self, _: Vec<Renewal<u32>>) {}
        fn lost(&self, key: u32) {
            let leases = std::mem::take(&mut self.0.lock().unwrap().0);
            for lease in leases.into_iter().filter(|lease| *lease.key() != key) {
                let key = *lease.key();
                let line = format!("released {key}: {}", lease.release());
                self.0.lock().unwrap().1.push(line);
            }
            self.0.lock().unwrap().1.push(format!("lost {key}"));
        }
    }
    let (timer, clock) = by_hand();
    let store = Store::default();
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store.clone());
    for key in 0..2 {
        let lease = leases.hold(key).unwrap();
        store.0.lock().unwrap().0.push(lease);
    }
    clock.advance(40 * S);
    timer.advance_clock(Duration::ZERO);
    assert_eq!(store.0.lock().unwrap().1, ["released 1: false", "lost 0", "lost 1"]);
}

/// Its former text, "How many leases are held", was wrong.
#[test]
fn len_counts_what_has_run_out_until_it_is_reported() {
    let fixture = Fixture::new();
    let lease = fixture.leases.hold(1).unwrap();
    fixture.clock.advance(40 * S);
    assert_eq!((lease.is_held(), fixture.leases.len()), (false, 1));
    fixture.timer.advance_clock(Duration::ZERO);
    assert_eq!(fixture.leases.len(), 0);
}

/// The longest `renew_every` that is accepted must leave time for one renewal.
#[test]
fn with_the_longest_period_is_renewed() {
    let fixture = Fixture::with(TimerBuilder::build, |terms| terms.renew_every(3600 * S));
    let lease = fixture.leases.hold(1).unwrap();
    fixture.pass(100);
    assert_eq!(fixture.take_lost(), [], "lost without an attempt to renew it");
    assert!(lease.is_held());
}

/// A store that renews whatever it is asked to.
struct Renews;

impl LeaseStore<Bad> for Renews {
    fn renew(&self, batch: Vec<Renewal<Bad>>) {
        batch.into_iter().for_each(Renewal::renewed);
    }
    fn lost(&self, _: Bad) {}
}

thread_local! {
    static HASHES: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

#[derive(Clone, PartialEq, Eq)]
struct Bad(u32);

impl Hash for Bad {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        HASHES.set(HASHES.get().saturating_sub(1));
        assert!(HASHES.get() > 0, "the key's hash panics");
        self.0.hash(state);
    }
}

/// A key whose `Hash` panics as a lease is entered: the rounds must not spin after that.
#[test]
fn a_key_that_panics_leaves_nothing_behind() {
    for hashes in 1..4 {
        let (timer, clock) = by_hand();
        let leases: Leases<Bad> = Leases::new(&timer, LeaseTerms::new(30 * S), Renews);
        HASHES.set(u32::MAX);
        let _other = leases.hold(Bad(0)).unwrap();
        HASHES.set(hashes);
        let held = catch_unwind(AssertUnwindSafe(|| leases.hold(Bad(1))));
        HASHES.set(u32::MAX);
        drop(held);
        clock.advance(10 * S);
        let turns = (0..100).filter(|_| timer.advance_clock(Duration::ZERO) > 0).count();
        assert!(turns < 5, "{turns} rounds at one moment, with a panic at hash {hashes}");
    }
}
