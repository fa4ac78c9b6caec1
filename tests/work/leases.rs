//! Leases.

use crate::{DIRECTORY, SIZES, check_with, millis, timer_of_tasks};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{ManualClock, Timer};

/// Answers as long as it is up; counts what it is told.
#[derive(Clone, Default)]
struct Store {
    is_down: Arc<AtomicU64>,
    renewed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl LeaseStore<u64> for Store {
    fn renew(&self, batch: Vec<Renewal<u64>>) {
        for renewal in batch {
            if self.is_down.load(Ordering::Relaxed) > 0 {
                renewal.failed();
            } else {
                self.renewed.fetch_add(1, Ordering::Relaxed);
                renewal.renewed();
            }
        }
    }

    fn lost(&self, _: u64) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

struct Fixture {
    store: Store,
    timer: Timer,
    clock: ManualClock,
    leases: Leases<u64>,
    held: Vec<Lease<u64>>,
}

/// Holds so many leases for 30 seconds, which are due for their renewal at one moment.
fn held(size: u64) -> Fixture {
    let (timer, clock) = timer_of_tasks();
    let store = Store::default();
    let terms = LeaseTerms::new(Duration::from_secs(30)).batch_size(1_000);
    let leases = Leases::new(&timer, terms, store.clone());
    let hold = |key| leases.hold(key).expect("there is no limit");
    let held = check_with("hold", size / DIRECTORY, || (0..size).map(hold).collect());
    Fixture { store, timer, clock, leases, held }
}

impl Fixture {
    fn advance(&self, seconds: u64) {
        for _ in 0..10 * seconds {
            self.clock.advance(millis(100));
            self.timer.advance_clock(Duration::ZERO);
        }
    }
}

#[test]
fn rounds_and_releases() {
    for size in SIZES {
        let it = held(size);
        check_with("a round", size / DIRECTORY, || it.advance(15));
        assert_eq!(it.store.renewed.load(Ordering::Relaxed), size);
        check_with("take again", size / DIRECTORY, || {
            for key in 0..size / 2 {
                drop(it.leases.hold(key).expect("there is no limit"));
            }
        });
        check_with("questions", size / DIRECTORY, || {
            assert_eq!(it.leases.len() as u64, size - size / 2);
            let held = it.held.iter().filter(|lease| lease.is_held()).count() as u64;
            assert_eq!(held, size - size / 2);
        });
        check_with("release", size / DIRECTORY, || {
            it.held.into_iter().map(Lease::release).filter(|held| *held).count()
        });
        check_with("drop of none", size / DIRECTORY, || drop(it.leases));
    }
}

#[test]
fn an_outage() {
    for size in SIZES {
        let it = held(size);
        it.store.is_down.store(1, Ordering::Relaxed);
        check_with("an outage", size / DIRECTORY, || it.advance(40));
        assert_eq!(it.store.lost.load(Ordering::Relaxed), size);
        assert!(it.leases.is_empty());
    }
}

#[test]
fn the_end_of_all() {
    for size in SIZES {
        let Fixture { leases, held: all, .. } = held(size);
        check_with("drop", size / DIRECTORY, || drop(leases));
        check_with("drop of what has ended", size / DIRECTORY, || drop(all));
        let it = held(size);
        check_with("shutdown", size / DIRECTORY, || it.timer.shutdown().into_iter().for_each(drop));
        assert_eq!(it.store.lost.load(Ordering::Relaxed), size);
    }
}
