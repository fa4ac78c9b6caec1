//! Keys and leases.

use crate::{DIRECTORY, SIZES, check, check_with, millis, timer_of_tasks};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{ManualClock, Timer, TimerEntry, work};

/// Puts all small keys into one shard, however many there are: the inverse of what the crate
/// multiplies with to spread them.
#[derive(Default)]
struct OneShard(u64);

impl Hasher for OneShard {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(0xF1DE_83E1_9937_733D);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Fixture {
    timer: Timer,
    clock: ManualClock,
    keyed: KeyedTimer<u64, u64, BuildHasherDefault<OneShard>>,
    expired: Arc<AtomicUsize>,
}

fn filled(size: u64) -> Fixture {
    let (timer, clock) = timer_of_tasks();
    let expired = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&expired);
    let keyed = KeyedTimer::with_hasher(&timer, BuildHasherDefault::default(), move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    check_with("schedule", size / DIRECTORY, || {
        for key in 0..size {
            let entry = TimerEntry::after(millis(1_000 + key % 100), key);
            assert!(keyed.add(key, entry).is_ok_and(|former| former.is_none()));
        }
    });
    Fixture { timer, clock, keyed, expired }
}

#[test]
fn every_call_for_a_key() {
    for size in SIZES {
        let Fixture { timer, clock, keyed, expired } = filled(size);
        check_with("replace", size / DIRECTORY, || {
            for key in 0..size {
                let entry = || TimerEntry::after(millis(500 + key % 1_000), key);
                assert!(keyed.add(key, entry()).is_ok_and(|former| former.is_some()));
                assert!(matches!(keyed.entry(key), Entry::Occupied(_)));
            }
        });
        check_with("move", size / DIRECTORY, || {
            for key in 0..size {
                assert!(keyed.touch(&key, millis(2_000)) && keyed.touch(&key, clock.now()));
                assert!(keyed.reschedule(&key, millis(100)) && keyed.contains(&key));
                assert!(keyed.reschedule(&key, clock.now() + millis(3_000)));
                assert!(keyed.deadline(&key).is_some());
            }
        });
        check_with("len", size / DIRECTORY, || {
            assert_eq!((keyed.len(), keyed.is_empty()), (size as usize, false))
        });
        check("for_each", || {
            let mut visits = 0;
            keyed.for_each(|_, _, _| visits += 1);
            assert_eq!(visits, size);
        });
        check_with("cancel", size / DIRECTORY, || {
            (0..size / 2).for_each(|key| assert_eq!(keyed.cancel(&key), Some(key)))
        });
        check_with("expire", size / DIRECTORY, || {
            clock.advance(Duration::from_secs(60));
            while timer.advance_clock(Duration::ZERO) > 0 {}
        });
        assert_eq!((keyed.len(), expired.load(Ordering::Relaxed) as u64), (0, size - size / 2));
    }
}

/// The buckets of those that have left are looked at once in a while, with all others. Those that
/// fall due before are taken out one at a time.
#[test]
fn ends_beside_very_many_others() {
    for others in [16, 1_024] {
        let (timer, clock) = timer_of_tasks();
        let used = || {
            let keyed = KeyedTimer::new(&timer, |_: u64, ()| ());
            for key in 0..10 {
                assert!(keyed.add(key, TimerEntry::after(millis(10 << key), ())).is_ok());
            }
            keyed
        };
        let _others: Vec<_> = (0..others).map(|_| used()).collect();
        let ends = (0..2 * others).map(|_| {
            let keyed = used();
            work::reset();
            drop(keyed);
            let longest = work::longest();
            longest.iter().find(|(lock, _)| lock.contains("driver::Turn")).map_or(0, |it| *it.1)
        });
        let looks = ends.sum::<u64>();
        assert!(looks <= 2 * others * 50, "{looks} beside {others}");
        let due = (0..500).map(|_| {
            let keyed = KeyedTimer::new(&timer, |_: u64, ()| ());
            assert!(keyed.add(0, TimerEntry::after(millis(5), ())).is_ok());
        });
        due.for_each(drop);
        clock.advance(millis(5));
        work::reset();
        assert_eq!(timer.advance_clock(Duration::ZERO), 0);
        let most = work::longest().into_values().max();
        assert!(most.is_some_and(|most| most < 100), "{most:?} beside {others}");
    }
}

#[test]
fn all_at_once() {
    for size in SIZES {
        let Fixture { keyed, .. } = filled(size);
        check_with("cancel_all", size / DIRECTORY, || {
            assert_eq!(keyed.cancel_all().len() as u64, size)
        });
        let Fixture { keyed, timer, .. } = filled(size);
        check_with("drop", size / DIRECTORY, || drop(keyed));
        assert!(timer.is_empty());
        let Fixture { keyed, .. } = filled(size);
        check_with("cancel most", size / DIRECTORY, || {
            let most = (0..size).filter(|key| key % 1024 != 0);
            most.for_each(|key| assert!(keyed.cancel(&key).is_some()));
        });
        check_with("cancel the others", size / DIRECTORY, || {
            assert_eq!(keyed.cancel_all().len() as u64, size.div_ceil(1024));
        });
    }
}

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

struct Leased {
    store: Store,
    timer: Timer,
    clock: ManualClock,
    leases: Leases<u64>,
    held: Vec<Lease<u64>>,
}

/// Holds so many leases for 30 seconds, which are due for their renewal at one moment.
fn held(size: u64) -> Leased {
    let (timer, clock) = timer_of_tasks();
    let store = Store::default();
    let terms = LeaseTerms::new(Duration::from_secs(30)).batch_size(1_000);
    let leases = Leases::new(&timer, terms, store.clone());
    let hold = |key| leases.hold(key).expect("there is no limit");
    let held = check_with("hold", size / DIRECTORY, || (0..size).map(hold).collect());
    Leased { store, timer, clock, leases, held }
}

impl Leased {
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
        let Leased { leases, held: all, .. } = held(size);
        check_with("drop", size / DIRECTORY, || drop(leases));
        check_with("drop of what has ended", size / DIRECTORY, || drop(all));
        let it = held(size);
        check_with("shutdown", size / DIRECTORY, || it.timer.shutdown().into_iter().for_each(drop));
        assert_eq!(it.store.lost.load(Ordering::Relaxed), size);
    }
}
