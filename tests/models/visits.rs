//! Models of visits of a key, which take several batches, and of futures.

use crate::futures::{Woken, poll};
use crate::harness::{all, both, explore};
use crate::limbo::{KeyHasher, Limbo};
use crate::operations::Fate;
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tickwheel::purgatory::{FutureOperation, Purgatory, Wait, Waited};

/// A visit sees all operations that were watched when it began, whichever others leave or come
/// meanwhile, even into the place of one that left.
///
/// Fails when a block where a visit stopped is given to others as soon as it is empty.
#[test]
fn visit_against_others() {
    explore("visit_against_others", 4, || {
        let limbo = Limbo::new();
        let handles: Vec<_> = (0..5).map(|id| limbo.watch(id, &[1]).expect("it waits")).collect();
        (0..5).for_each(|id| limbo.set(id));
        all(
            || limbo.trigger(1),
            || {
                limbo.force(&handles[1]);
                let _ = limbo.cancel(&handles[0]);
                let _ = limbo.cancel(&handles[2]);
                limbo.force(&handles[3]);
            },
            || (limbo.watch(5, &[2]), limbo.watch(6, &[1])),
        );
        (0..5).for_each(|id| assert!(limbo.fate(id).is_some(), "operation {id} was skipped"));
        limbo.finish()
    });
}

/// Two threads visit a key. A condition that the first finds false becomes true then: the second
/// completes the operation, or leaves it to the first.
///
/// Fails when who visits leaves out what another one holds.
#[test]
fn visit_against_visit() {
    explore("visit_against_visit", 4, || {
        let limbo = Limbo::new();
        (0..4).for_each(|id| drop(limbo.watch(id, &[1])));
        limbo.set(0);
        limbo.set(2);
        let completed = both(
            || limbo.trigger(1),
            || {
                limbo.set(1);
                limbo.set(3);
                limbo.trigger(1)
            },
        );
        (0..4).for_each(|id| assert_eq!(limbo.fate(id), Some(Fate::Completed)));
        assert_eq!(completed.0 + completed.1, 4);
        format!("{completed:?} {}", limbo.settle())
    });
}

/// A key's operations are cancelled in their order, while some leave on their own.
///
/// Fails when a visit that was under way when its block was emptied ends there.
#[test]
fn cancelling_visit_against_others() {
    explore("cancelling_visit_against_others", 4, || {
        let limbo = Limbo::new();
        let handles: Vec<_> = (0..5).map(|id| limbo.watch(id, &[1]).expect("it waits")).collect();
        let (returned, _) = both(
            || limbo.cancel_for_key(1),
            || {
                limbo.force(&handles[0]);
                limbo.force(&handles[3]);
                limbo.force(&handles[2]);
            },
        );
        assert!(returned.is_sorted(), "{returned:?}");
        (0..5).for_each(|id| assert!(limbo.fate(id).is_some(), "operation {id} was skipped"));
        limbo.settle()
    });
}

type Waits = Limbo<FutureOperation>;

fn wait(
    purgatory: &Purgatory<u64, FutureOperation, KeyHasher>,
    condition: &Arc<AtomicBool>,
) -> Wait<u64> {
    let condition = Arc::clone(condition);
    let holds = move || condition.load(Ordering::SeqCst);
    purgatory.wait(&[0, 1], Duration::from_nanos(2), holds).expect("it is accepted")
}

/// A future is dropped while another thread checks its condition: nothing is left of it.
///
/// Fails when the operation is not cancelled.
#[test]
fn drop_of_a_wait_against_trigger() {
    explore("drop_of_a_wait_against_trigger", 2, || {
        let limbo = Waits::new();
        let condition = Arc::new(AtomicBool::new(false));
        let woken = Arc::new(Woken::default());
        let mut future = wait(&limbo.purgatory, &condition);
        assert_eq!(poll(&mut future, &woken), Poll::Pending);
        all(
            || drop(future),
            || limbo.purgatory.check_and_complete(&1),
            || condition.store(true, Ordering::SeqCst),
        );
        limbo.assert_empty();
        assert_eq!((Arc::strong_count(&condition), Arc::strong_count(&woken)), (1, 1));
        let stats = limbo.purgatory.stats();
        assert_eq!(stats.cancelled + stats.completed_by_trigger, 1);
        format!("{stats}, woken {}", woken.count())
    });
}

/// A waiting task is woken by a trigger or by the expiry. A lost wake-up is a deadlock.
///
/// Fails when `poll` looks for the outcome and leaves its waker in two steps.
#[test]
fn poll_against_trigger_and_expiry() {
    explore("poll_against_trigger_and_expiry", 2, || {
        let limbo = Waits::new();
        let condition = Arc::new(AtomicBool::new(false));
        let future = wait(&limbo.purgatory, &condition);
        let (waited, _, _) = all(
            || block_on(future),
            || {
                condition.store(true, Ordering::SeqCst);
                limbo.purgatory.check_and_complete(&0);
            },
            || limbo.pass(2),
        );
        limbo.assert_empty();
        let stats = limbo.purgatory.stats();
        let ends = (stats.completed_by_trigger, stats.expired);
        assert_eq!(ends, if waited == Waited::Completed { (1, 0) } else { (0, 1) });
        format!("{waited:?}")
    });
}

/// A future is polled with one waker, then with another one, while a shutdown ends its operation:
/// the last waker is woken, and no waker is kept.
///
/// Fails when `poll` keeps the former waker.
#[test]
fn poll_against_shutdown() {
    explore("poll_against_shutdown", 2, || {
        let limbo = Waits::new();
        let condition = Arc::new(AtomicBool::new(false));
        let woken = Arc::new(Woken::default());
        let mut future = wait(&limbo.purgatory, &condition);
        let (early, ()) = both(
            || {
                let early = poll(&mut future, &woken).is_ready();
                assert_eq!(block_on(future), Waited::Cancelled);
                early
            },
            || drop(limbo.purgatory.shutdown()),
        );
        limbo.assert_empty();
        assert_eq!((Arc::strong_count(&condition), Arc::strong_count(&woken)), (1, 1));
        format!("{early}, woken {}", woken.count())
    });
}
