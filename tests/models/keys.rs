//! Models of a purgatory's keys, and of its end.

use crate::futures::pass;
use crate::harness::{Bell, all, both, explore};
use crate::limbo::Limbo;
use crate::operations::Fate;
use shuttle::thread;
use std::sync::Arc;

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
        let (returned, _, completed) =
            all(|| limbo.cancel_for_key(0), || limbo.set(0), || limbo.trigger(1));
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
        let (accepted, returned) =
            both(|| limbo.watch(0, &[0, 1]).is_some(), || limbo.cancel_for_key(0));
        assert!(accepted, "it is refused");
        assert_eq!(limbo.fate(0), returned.first().map(|_| Fate::Returned));
        assert_eq!(limbo.purgatory.watched(), if returned.is_empty() { 2 } else { 0 });
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
        let (accepted, returned, _) =
            all(|| limbo.watch(0, &[0, 1]).is_some(), || limbo.shutdown(), || limbo.trigger(0));
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

/// The same if the condition becomes true meanwhile: then the operation may be complete.
///
/// Fails when a refused operation stays watched on the keys that it had.
#[test]
fn shutdown_against_watch_that_completes() {
    explore("shutdown_against_watch_that_completes", 4, || {
        let limbo = Limbo::new();
        all(|| limbo.watch(0, &[0, 1]), || limbo.shutdown(), || limbo.announce(0, 0));
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
        assert_eq!(completed, usize::from(limbo.fate(0) == Some(Fate::Completed)));
        for id in 0..2 {
            assert_eq!(returned.contains(&id), limbo.fate(id) == Some(Fate::Returned));
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
        let Limbo { timer, clock, purgatory, ledger, .. } = limbo;
        let (_, _, forced) =
            all(|| drop(purgatory), || pass(&timer, &clock, 1), || handle.force_complete());
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
        format!("{completed:?} {}", limbo.settle_with_errands())
    });
}

/// Runs a check that ends only after another thread has done all that `others` does: no thread
/// waits for the one that is checking.
fn nobody_waits(others: fn(&Limbo)) -> String {
    let limbo = Limbo::new();
    let done = Arc::new(Bell::default());
    let (waits_for, mut checks) = (Arc::clone(&done), 0);
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
