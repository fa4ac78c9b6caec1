//! What a review found at the edges: a full timer, releases that come too late, panics.

use crate::S;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{ManualClock, Timer, TimerEntry};

/// Something else goes off before the round in the same turn, and fills the timer: that costs no
/// lease. Or it shuts the timer down: then all are lost, and none is renewed after that.
#[test]
fn a_timer_that_others_fill_costs_no_lease_and_one_that_is_shut_down_costs_all() {
    assert_eq!(
        when_the_round_begins(|timer| {
            while timer.add(TimerEntry::after(100 * S, || ())).is_ok() {}
        }),
        ["renew 1"]
    );
    assert_eq!(when_the_round_begins(|timer| drop(timer.shutdown())), ["lost 1"]);
}

fn when_the_round_begins(act: impl FnOnce(&Timer) + Send + 'static) -> Vec<String> {
    struct Store(Arc<Mutex<Vec<String>>>);
    impl LeaseStore<u32> for Store {
        fn renew(&self, batch: Vec<Renewal<u32>>) {
            for renewal in batch {
                self.0.lock().unwrap().push(format!("renew {}", renewal.key()));
                renewal.renewed();
            }
        }
        fn lost(&self, key: u32) {
            self.0.lock().unwrap().push(format!("lost {key}"));
        }
    }
    let clock = ManualClock::new();
    let timer = Timer::builder().shards(1).max_pending(2).clock(clock.clone()).build().unwrap();
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), Store(Arc::clone(&log)));
    let weak = timer.downgrade();
    let task = move || act(&weak.upgrade().unwrap());
    timer.add(TimerEntry::after(10 * S, task)).unwrap();
    let _lease = leases.hold(1).unwrap();
    clock.advance(10 * S);
    timer.advance_clock(Duration::ZERO);
    log.lock().unwrap().clone()
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
    let clock = ManualClock::new();
    let timer = Timer::builder().shards(1).clock(clock.clone()).build().unwrap();
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
    struct Store;
    impl LeaseStore<u32> for Store {
        fn renew(&self, _: Vec<Renewal<u32>>) {}
        fn lost(&self, _: u32) {}
    }
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), Store);
    let lease = leases.hold(1).unwrap();
    clock.advance(40 * S);
    assert!(!lease.is_held());
    assert_eq!(leases.len(), 1);
    timer.advance_clock(Duration::ZERO);
    assert_eq!(leases.len(), 0);
}

/// A store that renews whatever it is asked to, and counts.
#[derive(Clone, Default)]
struct Renews(Arc<AtomicU32>, Arc<AtomicU32>);

impl<K: Hash + Eq + Clone + Send + 'static> LeaseStore<K> for Renews {
    fn renew(&self, batch: Vec<Renewal<K>>) {
        self.0.fetch_add(batch.len() as u32, Ordering::SeqCst);
        batch.into_iter().for_each(Renewal::renewed);
    }
    fn lost(&self, _: K) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// The longest `renew_every` that is accepted must leave time for one renewal.
#[test]
fn with_the_longest_period_is_renewed() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let store = Renews::default();
    let terms = LeaseTerms::new(30 * S).renew_every(3600 * S);
    let leases: Leases<u32> = Leases::new(&timer, terms, store.clone());
    let lease = leases.hold(1).unwrap();
    for _ in 0..100 {
        clock.advance(S);
        timer.advance_clock(Duration::ZERO);
    }
    assert_eq!(store.1.load(Ordering::SeqCst), 0, "lost without an attempt to renew it");
    assert!(lease.is_held());
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
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let leases: Leases<Bad> = Leases::new(&timer, LeaseTerms::new(30 * S), Renews::default());
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
