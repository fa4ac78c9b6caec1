//! What happens under the lock of the leases: a bounded number of steps.

use crate::{S, by_hand, turn};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use tickwheel_leases::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};

const MANY: u32 = 10_000;
const BATCH: usize = 50;

thread_local! {
    static CLONES: Cell<usize> = const { Cell::new(0) };
}

#[derive(PartialEq, Eq, Hash)]
struct Counted(u32);

impl Clone for Counted {
    fn clone(&self) -> Self {
        CLONES.set(CLONES.get() + 1);
        Counted(self.0)
    }
}

/// How many keys were cloned between two calls, and how many were in each.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<Vec<(usize, usize)>>>);

impl LeaseStore<Counted> for Counts {
    fn renew(&self, batch: Vec<Renewal<Counted>>) {
        self.0.lock().unwrap().push((CLONES.take(), batch.len()));
        batch.into_iter().for_each(Renewal::renewed);
    }

    fn lost(&self, _: Counted) {
        self.0.lock().unwrap().push((CLONES.take(), 1));
    }
}

/// Seen to fail: 30,000 clones before the first call, all under one lock.
#[test]
fn a_round_of_many_leases_takes_one_batch_after_the_other() {
    let (timer, clock) = by_hand();
    let terms = LeaseTerms::new(30 * S).batch_size(BATCH);
    let counts = Counts::default();
    let leases = Leases::new(&timer, terms, counts.clone());
    let held: Vec<_> = (0..MANY)
        .map(|key| leases.hold(Counted(key)).unwrap())
        .collect();
    CLONES.take();
    clock.advance(10 * S);
    turn(&timer);
    let calls = std::mem::take(&mut *counts.0.lock().unwrap());
    assert_eq!(
        calls.iter().map(|(_, renewed)| renewed).sum::<usize>(),
        MANY as usize
    );
    let most = calls.iter().map(|(clones, _)| *clones).max();
    assert!(most <= Some(BATCH), "{most:?} clones between two calls");
    clock.advance(30 * S);
    turn(&timer);
    let lost = std::mem::take(&mut *counts.0.lock().unwrap());
    assert_eq!(
        (
            lost.len(),
            held.iter().filter(|lease| lease.is_held()).count()
        ),
        (10_000, 0)
    );
    assert!(
        lost.iter().all(|(clones, _)| *clones <= BATCH),
        "{:?}",
        lost.iter().max()
    );
}

#[test]
fn every_batch_is_as_large_as_the_terms_say() {
    for size in [1, BATCH, 63, 64, 65, 100, 1_000] {
        let (timer, clock) = by_hand();
        let terms = LeaseTerms::new(30 * S).batch_size(size);
        let counts = Counts::default();
        let leases = Leases::new(&timer, terms, counts.clone());
        let _held: Vec<_> = (0..MANY)
            .map(|key| leases.hold(Counted(key)).unwrap())
            .collect();
        clock.advance(10 * S);
        turn(&timer);
        let calls = counts.0.lock().unwrap();
        let sizes: Vec<_> = calls.iter().map(|(_, renewed)| *renewed).collect();
        let sent = (0..MANY as usize).step_by(size);
        assert!(
            sizes
                .iter()
                .copied()
                .eq(sent.map(|sent| size.min(MANY as usize - sent))),
            "{size}"
        );
    }
}

/// Those that are not in the first batch are released by the store's first call.
#[derive(Clone, Default)]
struct Releases {
    leases: Arc<Mutex<Vec<Lease<u32>>>>,
    renewed: Arc<Mutex<Vec<u32>>>,
}

impl LeaseStore<u32> for Releases {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        self.renewed
            .lock()
            .unwrap()
            .extend(batch.iter().map(Renewal::key));
        let mut leases = self.leases.lock().unwrap();
        leases.retain(|lease| batch.iter().any(|renewal| renewal.key() == lease.key()));
        batch.into_iter().for_each(Renewal::renewed);
    }

    fn lost(&self, key: u32) {
        unreachable!("{key} is renewed or released");
    }
}

/// Seen to fail: all 10,000 were on their way to the store.
#[test]
fn what_is_released_before_its_batch_is_not_renewed() {
    let (timer, clock) = by_hand();
    let terms = LeaseTerms::new(30 * S).batch_size(BATCH);
    let store = Releases::default();
    let leases = Leases::new(&timer, terms, store.clone());
    let held = (0..MANY).map(|key| leases.hold(key).unwrap()).collect();
    *store.leases.lock().unwrap() = held;
    clock.advance(10 * S);
    turn(&timer);
    let renewed = store.renewed.lock().unwrap().len();
    assert_eq!(renewed, BATCH);
    assert_eq!((leases.len(), timer.len()), (BATCH, 1));
    store.leases.lock().unwrap().clear();
}
