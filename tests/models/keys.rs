//! Models of a purgatory's keys, of visits of a key, which take several batches, of futures, and of
//! its end.

use crate::futures::{Woken, pass, poll};
use crate::harness::{Bell, all, both, explore};
use crate::limbo::{Fate, KeyHasher, Limbo};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tickwheel::purgatory::{FutureOperation, Purgatory, Wait, Waited};

/// Operations that are watched on a key are returned, completed, or let go by the thread that is
/// checking them.
///
/// Fails when the key's cancel reads and writes the state word in two steps.
#[test]
fn cancel_for_key_against_trigger() {
    explore("cancel_for_key_against_trigger", 3, || {
        let limbo = Limbo::new();
        limbo.watch(0, &[0, 1]);
        limbo.watch(1, &[0]);
        let (returned, _, completed) = all(
            || limbo.cancel_for_key(0),
            || limbo.set(0),
            || limbo.trigger(1),
        );
        assert_eq!(limbo.fate(1), Some(Fate::Returned));
        let fate = match (&returned[..], completed) {
            ([0, 1], 0) => Fate::Returned,
            ([1], 1) => Fate::Completed,
            ([1], 0) => Fate::Cancelled,
            wrong => panic!("{wrong:?}"),
        };
        assert_eq!(limbo.fate(0), Some(fate));
        limbo.settle()
    });
}

/// An operation that is still being added counts as added after: it is returned, or accepted and
/// waits.
///
/// Fails when a key's cancel takes operations that are still being added.
#[test]
fn cancel_for_key_against_watch() {
    explore("cancel_for_key_against_watch", 2, || {
        let limbo = Limbo::new();
        let (accepted, returned) = both(
            || limbo.watch(0, &[0, 1]).is_some(),
            || limbo.cancel_for_key(0),
        );
        assert!(accepted, "it is refused");
        assert_eq!(limbo.fate(0), returned.first().map(|_| Fate::Returned));
        assert_eq!(
            limbo.purgatory.stats().watched,
            if returned.is_empty() { 2 } else { 0 }
        );
        limbo.finish()
    });
}

/// An operation that is being added goes back to the adding thread, unless it is in time, and is
/// returned.
///
/// Fails when a shard takes operations after the shutdown, when what was cancelled while it was
/// added is not handed back, or when that is counted as cancelled.
#[test]
fn shutdown_against_watch() {
    explore("shutdown_against_watch", 3, || {
        let limbo = Limbo::new();
        let (accepted, returned, _) = all(
            || limbo.watch(0, &[0, 1]).is_some(),
            || limbo.shutdown(),
            || limbo.trigger(0),
        );
        assert!(limbo.watch(1, &[1]).is_none(), "it is shut down");
        let fate = match limbo.fate(0).expect("it has ended") {
            // By its trigger, or to who added it.
            fate @ (Fate::Cancelled | Fate::Returned) if accepted => fate,
            fate @ Fate::Refused if !accepted => fate,
            wrong => panic!("{wrong:?}, accepted: {accepted}"),
        };
        assert_eq!(returned.len(), usize::from(fate == Fate::Returned));
        limbo.settle()
    });
}

/// An operation is returned, completed, or let go by the thread that is checking it.
///
/// Fails when who has found the condition false does not look whether it was cancelled meanwhile.
#[test]
fn shutdown_against_trigger() {
    explore("shutdown_against_trigger", 5, || {
        let limbo = Limbo::new();
        limbo.watch(0, &[0, 1]);
        limbo.watch(1, &[1]);
        let (returned, _, completed) =
            all(|| limbo.shutdown(), || limbo.set(0), || limbo.trigger(1));
        assert_eq!(
            completed,
            usize::from(limbo.fate(0) == Some(Fate::Completed))
        );
        for id in 0..2 {
            assert_eq!(
                returned.contains(&id),
                limbo.fate(id) == Some(Fate::Returned)
            );
        }
        limbo.settle()
    });
}

/// The last clone is dropped while an operation expires and is forced, and another one waits.
///
/// Fails when operations are left watched, which then keep themselves alive.
#[test]
fn drop_against_expiry_and_force() {
    explore("drop_against_expiry_and_force", 3, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0, 1]).expect("it waits");
        limbo.pass(1);
        limbo.watch(1, &[1]);
        let Limbo {
            timer,
            clock,
            purgatory,
            ledger,
            ..
        } = limbo;
        let (_, _, forced) = all(
            || drop(purgatory),
            || pass(&timer, &clock, 1),
            || handle.force_complete(),
        );
        assert_eq!(forced, ledger.fate(0) == Some(Fate::Completed));
        assert_eq!(ledger.fate(1), Some(Fate::Dropped), "its time is not up");
        assert!(timer.is_empty(), "a timeout is left behind");
        timer.assert_invariants();
        format!("{:?}", ledger.settle())
    });
}

/// An operation's `on_complete` triggers another key, while another thread does, too.
///
/// Fails when a callback runs inside another one, or when what a callback postpones is left to
/// whichever thread comes next.
#[test]
fn trigger_inside_a_callback() {
    explore("trigger_inside_a_callback", 2, || {
        let limbo = Arc::new(Limbo::new());
        let inner = Arc::clone(&limbo);
        limbo.watch_with(0, &[0], || (), move || _ = inner.announce(1, 1));
        let inner = Arc::clone(&limbo);
        limbo.watch_with(1, &[1, 0], || (), move || _ = inner.announce(2, 2));
        limbo.watch(2, &[2, 1]);
        let completed = both(|| limbo.announce(0, 0), || limbo.trigger(1));
        // Operation 1 may be triggered three times during one check: the executor makes the last.
        limbo.pass(0);
        for id in 0..3 {
            assert_eq!(limbo.fate(id), Some(Fate::Completed));
        }
        format!("{completed:?} {}", limbo.settle_with_tasks())
    });
}

/// Runs a check that ends only after another thread has done all that `others` does: no thread
/// waits for the one that is checking.
fn nobody_waits(others: fn(&Limbo)) -> String {
    let limbo = Limbo::new();
    let done = Arc::new(Bell::default());
    let waits_for = Arc::clone(&done);
    let mut checks = 0;
    let doer = Arc::new(std::sync::Mutex::new(None));
    let not_by = Arc::clone(&doer);
    let during = move || {
        checks += 1; // Two before it is watched.
        if checks > 2 && *not_by.lock().unwrap() != Some(thread::current().id()) {
            drop(waits_for.wait());
        }
    };
    limbo.watch_with(0, &[0, 1], during, || ());
    both(
        || limbo.trigger(0),
        || {
            *doer.lock().unwrap() = Some(thread::current().id());
            others(&limbo);
            done.ring();
        },
    );
    limbo.finish()
}

/// Other threads trigger, expire and cancel.
///
/// Fails when a claim does not look whether somebody holds the operation.
#[test]
fn nobody_waits_for_a_check() {
    explore("nobody_waits_for_a_check", 2, || {
        nobody_waits(|limbo| {
            limbo.trigger(1);
            limbo.pass(2);
            limbo.cancel_for_key(1);
        })
    });
}

/// Triggers and shuts down.
///
/// Fails when a cancel waits for who is checking.
#[test]
fn shutdown_waits_for_no_check() {
    explore("shutdown_waits_for_no_check", 2, || {
        nobody_waits(|limbo| {
            limbo.trigger(1);
            limbo.shutdown();
        })
    });
}

/// A visit sees all operations that were watched when it began, whichever others leave or come
/// meanwhile, even into the place of one that left.
///
/// Fails when a visit whose block has gone ends, or takes another block for it.
#[test]
fn visit_against_others() {
    explore("visit_against_others", 4, || {
        let limbo = Limbo::new();
        let handles: Vec<_> = (0..5)
            .map(|id| limbo.watch(id, &[1]).expect("it waits"))
            .collect();
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

type Waits = Limbo<FutureOperation>;

fn wait(
    purgatory: &Purgatory<u64, FutureOperation, KeyHasher>,
    condition: &Arc<AtomicBool>,
) -> Wait<u64> {
    let condition = Arc::clone(condition);
    let holds = move || condition.load(Ordering::SeqCst);
    purgatory
        .wait(holds, Duration::from_nanos(2), &[0, 1])
        .expect("it is accepted")
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
        assert_eq!(
            (Arc::strong_count(&condition), Arc::strong_count(&woken)),
            (1, 1)
        );
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
        assert_eq!(
            ends,
            if waited == Waited::Completed {
                (1, 0)
            } else {
                (0, 1)
            }
        );
        format!("{waited:?}")
    });
}
