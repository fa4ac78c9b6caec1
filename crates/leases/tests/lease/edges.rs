//! What the clock decides, whether or not the watchdog has come round; and what a review found at
//! the edges: a full timer, releases that come too late, panics.

use crate::{Fixture, Mood, S, by_hand};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{Timer, TimerBuilder};
use tickwheel_leases::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};

/// Something else goes off before the round in the same turn, and fills the timer or shuts it down:
/// then all are lost, and none is renewed after that.
#[test]
fn a_timer_that_others_fill_or_shut_down_costs_all_leases() {
    let fills: fn(&Timer) = |timer| while timer.after(100 * S, || ()).is_ok() {};
    let shuts_down: fn(&Timer) = |timer| drop(timer.shutdown());
    for act in [fills, shuts_down] {
        let fixture = Fixture::with(|builder| builder.max_pending(2).build(), |terms| terms);
        let weak = fixture.timer.downgrade();
        fixture
            .timer
            .after(10 * S, move || act(&weak.upgrade().unwrap()))
            .unwrap();
        let _lease = fixture.leases.hold(1).unwrap();
        fixture.pass(10);
        assert_eq!(
            (fixture.take_renewals(), fixture.take_lost()),
            (vec![], vec![(10, 1)])
        );
        assert!(fixture.leases.hold(2).is_err());
        fixture.pass(100);
        assert_eq!(fixture.take_lost(), []);
        assert_eq!(
            fixture.leases.hold(2).is_ok(),
            !fixture.timer.is_shutdown(),
            "there is room"
        );
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
    assert_eq!(
        store.0.lock().unwrap().1,
        ["released 1: false", "lost 0", "lost 1"]
    );
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

#[test]
fn a_lease_of_99_years_is_no_longest_one_and_one_of_100_years_is() {
    let [shorter, longest] = [99, 100].map(|years| LeaseTerms::new(years * 365 * 24 * 3600 * S));
    assert!(shorter != longest && longest == LeaseTerms::new(Duration::MAX));
}

/// The longest `renew_every` that is accepted must leave time for one renewal.
#[test]
fn with_the_longest_period_is_renewed() {
    let fixture = Fixture::with(TimerBuilder::build, |terms| terms.renew_every(3600 * S));
    let lease = fixture.leases.hold(1).unwrap();
    fixture.pass(100);
    assert_eq!(
        fixture.take_lost(),
        [],
        "lost without an attempt to renew it"
    );
    assert!(lease.is_held());
}

/// A store that renews whatever it is asked to.
struct Renews;

impl<K> LeaseStore<K> for Renews {
    fn renew(&self, batch: Vec<Renewal<K>>)
    where
        K: Hash + Eq + Clone + Send + 'static,
    {
        batch.into_iter().for_each(Renewal::renewed);
    }
    fn lost(&self, _: K) {}
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

/// All of them have the same hash.
#[derive(Clone, PartialEq, Eq)]
struct Alike(usize);

impl Hash for Alike {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

#[test]
fn keys_with_the_same_hash_are_told_apart_in_whatever_order_they_go() {
    let (timer, _) = by_hand();
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), Renews);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let held = [0, 1, 2].map(|key| leases.hold(Alike(key)).unwrap());
        for (gone, key) in order.into_iter().enumerate() {
            let again = leases.hold(Alike(key)).unwrap();
            let are_held = [0, 1, 2].map(|key| held[key].is_held());
            assert_eq!(
                are_held,
                [0, 1, 2].map(|key| order[gone + 1..].contains(&key))
            );
            assert!(again.release());
        }
        assert!(leases.is_empty());
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
        let turns = (0..100)
            .filter(|_| timer.advance_clock(Duration::ZERO) > 0)
            .count();
        assert!(
            turns < 5,
            "{turns} rounds at one moment, with a panic at hash {hashes}"
        );
    }
}

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
    assert_eq!(
        (fixture.take_renewals(), fixture.take_lost()),
        (vec![], vec![(31, 1)])
    );
}

#[test]
fn what_has_run_out_is_not_held_before_the_watchdog_has_looked_either() {
    let fixture = Fixture::new();
    let lost = fixture.leases.hold(1).unwrap();
    let released = fixture.leases.hold(2).unwrap();
    fixture.clock.advance(30 * S - Duration::from_nanos(1));
    assert!(lost.is_held() && released.is_held());
    fixture.clock.advance(Duration::from_nanos(1));
    assert!(
        !lost.is_held() && !released.release(),
        "whoever asks is told"
    );
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
        fixture.pass(60);
        assert_eq!(fixture.take_lost(), [(31, 1)]);
    }
}
