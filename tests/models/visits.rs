//! Models of visits of a key, which take several batches, and of futures.

use crate::harness::explore;
use crate::limbo::{KeyHasher, Limbo};
use crate::operations::Fate;
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
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
        thread::scope(|scope| {
            scope.spawn(|| limbo.trigger(1));
            scope.spawn(|| {
                limbo.force(&handles[1]);
                let _ = limbo.cancel(&handles[0]);
                let _ = limbo.cancel(&handles[2]);
                limbo.force(&handles[3]);
            });
            scope.spawn(|| (limbo.watch(5, &[2]), limbo.watch(6, &[1])));
        });
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
        let mut completed = [0; 2];
        let [one, other] = &mut completed;
        thread::scope(|scope| {
            scope.spawn(|| *one = limbo.trigger(1));
            scope.spawn(|| {
                limbo.set(1);
                limbo.set(3);
                *other = limbo.trigger(1);
            });
        });
        (0..4).for_each(|id| assert_eq!(limbo.fate(id), Some(Fate::Completed)));
        assert_eq!(completed.iter().sum::<usize>(), 4);
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
        let mut returned = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| returned = limbo.cancel_for_key(1));
            scope.spawn(|| {
                limbo.force(&handles[0]);
                limbo.force(&handles[3]);
                limbo.force(&handles[2]);
            });
        });
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

/// Counts how often it is woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A future is dropped while another thread checks its condition: nothing is left of it.
///
/// Fails when the operation is not cancelled.
#[test]
fn drop_of_a_wait_against_trigger() {
    explore("drop_of_a_wait_against_trigger", 2, || {
        let limbo = Waits::new();
        let condition = Arc::new(AtomicBool::new(false));
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let mut future = Box::pin(wait(&limbo.purgatory, &condition));
        let waker = Waker::from(Arc::clone(&woken));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
        drop(waker);
        thread::scope(|scope| {
            scope.spawn(|| drop(future));
            scope.spawn(|| limbo.purgatory.check_and_complete(&1));
            scope.spawn(|| condition.store(true, Ordering::SeqCst));
        });
        limbo.assert_empty();
        assert_eq!((Arc::strong_count(&condition), Arc::strong_count(&woken)), (1, 1));
        let stats = limbo.purgatory.stats();
        assert_eq!(stats.cancelled + stats.completed_by_trigger, 1);
        format!("{stats}, woken {}", woken.0.load(Ordering::SeqCst))
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
        let mut waited = Waited::Cancelled;
        thread::scope(|scope| {
            scope.spawn(|| waited = block_on(future));
            scope.spawn(|| {
                condition.store(true, Ordering::SeqCst);
                limbo.purgatory.check_and_complete(&0);
            });
            scope.spawn(|| limbo.pass(2));
        });
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
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let former = Waker::from(Arc::clone(&woken));
        let mut early = false;
        let future = wait(&limbo.purgatory, &condition);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut future = pin!(future);
                let polled = future.as_mut().poll(&mut Context::from_waker(&former));
                early = polled.is_ready();
                assert_eq!(block_on(future), Waited::Cancelled);
            });
            scope.spawn(|| drop(limbo.purgatory.shutdown()));
        });
        drop(former);
        limbo.assert_empty();
        assert_eq!((Arc::strong_count(&condition), Arc::strong_count(&woken)), (1, 1));
        format!("{early}, woken {}", woken.0.load(Ordering::SeqCst))
    });
}
