//! Models of the ends of delayed operations: of all who want to end one, one does.

use crate::harness::{all, both, explore};
use crate::limbo::{Fate, Limbo};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tickwheel::purgatory::Cancel;

/// Returns the fate of an operation whose condition never holds, given the answer to a cancel:
/// `otherwise` if it came too late.
fn after_cancel(answer: &Cancel<usize>, otherwise: Fate) -> Fate {
    match answer {
        Cancel::Cancelled(_) => Fate::Returned,
        Cancel::Deferred => Fate::Cancelled,
        Cancel::Finished => otherwise,
    }
}

/// The condition comes true and the key is triggered while the operation is being watched: it is
/// complete when both have returned.
///
/// Fails when the check after watching is left out.
#[test]
fn watch_against_trigger() {
    explore("watch_against_trigger", 2, || {
        let limbo = Limbo::new();
        both(|| limbo.watch(0, &[0, 1]), || limbo.announce(0, 1));
        assert_eq!(limbo.fate(0), Some(Fate::Completed));
        limbo.settle()
    });
}

/// The condition comes true, and is announced, while another thread has just found it false.
///
/// Fails when a trigger leaves no request to who holds the operation.
#[test]
fn trigger_during_a_check() {
    explore("trigger_during_a_check", 2, || {
        let limbo = Limbo::new();
        limbo.watch(0, &[0, 1]);
        let completed = both(|| limbo.trigger(0), || limbo.announce(0, 1));
        assert_eq!(limbo.fate(0), Some(Fate::Completed));
        format!("{completed:?} {}", limbo.settle())
    });
}

/// It is completed or it expires, and the trigger tells which.
///
/// Fails when an expiry takes an operation that somebody is checking.
#[test]
fn trigger_against_expiry() {
    explore("trigger_against_expiry", 2, || {
        let limbo = Limbo::new();
        limbo.watch(0, &[0, 1]);
        let (completed, _) = both(|| limbo.announce(0, 1), || limbo.pass(2));
        let fate = if completed == 1 {
            Fate::Completed
        } else {
            Fate::Expired
        };
        assert_eq!(limbo.fate(0), Some(fate));
        limbo.settle()
    });
}

/// Operations expire while another thread finds their condition false, which then ends them.
///
/// Fails when who lets go of an operation does not look whether it has expired meanwhile.
#[test]
fn expiry_during_a_check() {
    explore("expiry_during_a_check", 1, || {
        let limbo = Limbo::new();
        (0..2).for_each(|id| _ = limbo.watch(id, &[0]));
        both(|| limbo.trigger(0), || limbo.pass(2));
        assert_eq!([0, 1].map(|id| limbo.fate(id)), [Some(Fate::Expired); 2]);
        limbo.settle()
    });
}

/// It expires while it is still being added.
///
/// Fails when who adds it does not see to what has come meanwhile.
#[test]
fn watch_against_expiry() {
    explore("watch_against_expiry", 2, || {
        let limbo = Limbo::new();
        both(|| limbo.watch(0, &[0]), || limbo.pass(2));
        let ended = limbo.fate(0).is_some();
        limbo.pass(2);
        assert_eq!(limbo.fate(0), Some(Fate::Expired));
        format!("{ended} {}", limbo.settle())
    });
}

/// The key is triggered in vain while the operation is being added: it expires all the same.
///
/// Fails when who adds it, and has to check once more, does not file it.
#[test]
fn watch_against_a_vain_trigger() {
    explore("watch_against_a_vain_trigger", 2, || {
        let limbo = Limbo::new();
        let checks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&checks);
        let during = move || _ = count.fetch_add(1, Ordering::Relaxed);
        both(
            || limbo.watch_with(0, &[0, 1], during, || ()),
            || limbo.trigger(1),
        );
        limbo.pass(2);
        assert_eq!(limbo.fate(0), Some(Fate::Expired));
        format!("{} {}", checks.load(Ordering::Relaxed), limbo.settle())
    });
}

/// The timer is shut down while operations expire and are checked, and one is cancelled: what has
/// not expired waits on.
///
/// Fails when an expiry is forgotten that comes during a check, or when it breaks the promise that
/// a cancel was given meanwhile.
#[test]
fn expiry_against_the_timers_end() {
    explore("expiry_against_the_timers_end", 5, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0]).expect("it waits");
        limbo.watch(1, &[0]);
        let mut answer = Cancel::Finished;
        thread::scope(|scope| {
            scope.spawn(|| limbo.trigger(0));
            scope.spawn(|| limbo.pass(2));
            scope.spawn(|| answer = limbo.cancel(&handle));
            scope.spawn(|| assert!(limbo.timer.shutdown().is_empty()));
        });
        limbo.pass(2);
        let waiting = limbo.shutdown();
        let fate = |id| {
            if waiting.contains(&id) {
                Fate::Returned
            } else {
                Fate::Expired
            }
        };
        assert_eq!(limbo.fate(0), Some(after_cancel(&answer, fate(0))));
        assert_eq!(limbo.fate(1), Some(fate(1)));
        limbo.settle()
    });
}

/// `force_complete` tells whether it won.
///
/// Fails when a claim reads and writes the state word in two steps.
#[test]
fn force_against_expiry() {
    explore("force_against_expiry", 2, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0, 1]).expect("it waits");
        let (forced, _) = both(|| limbo.force(&handle), || limbo.pass(2));
        let fate = if forced {
            Fate::Completed
        } else {
            Fate::Expired
        };
        assert_eq!(limbo.fate(0), Some(fate));
        limbo.settle()
    });
}

/// Of a trigger and a `force_complete` one says that it was it.
///
/// Fails when who has found the condition true does not look whether it was forced meanwhile.
#[test]
fn force_against_trigger() {
    explore("force_against_trigger", 2, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0, 1]).expect("it waits");
        let (forced, completed) = both(|| limbo.force(&handle), || limbo.announce(0, 0));
        assert_eq!(completed, usize::from(!forced));
        limbo.settle()
    });
}

/// Of two `force_complete` one wins, also while a third thread checks the operation.
///
/// Fails when an operation that was forced while it was held can be forced again.
#[test]
fn force_against_force() {
    explore("force_against_force", 2, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0]).expect("it waits");
        let (one, other, _) = all(
            || limbo.force(&handle),
            || limbo.force(&handle),
            || limbo.trigger(0),
        );
        let forced = [one, other];
        assert!(forced[0] != forced[1], "{forced:?}");
        format!("{forced:?} {}", limbo.settle())
    });
}

/// Two cancel an operation whose condition a third finds false, and whose time is up.
///
/// Fails when a cancel leaves no request, or when an operation that was cancelled while it was held
/// can be cancelled again.
#[test]
fn cancel_against_cancel_and_expiry() {
    explore("cancel_against_cancel_and_expiry", 4, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0]).expect("it waits");
        let (one, other, _) = all(
            || limbo.cancel(&handle),
            || {
                limbo.pass(2);
                limbo.cancel(&handle)
            },
            || limbo.trigger(0),
        );
        let answers = [one, other];
        if limbo.fate(0).is_none() {
            limbo.pass(0);
        }
        let won = answers.iter().filter(|answer| **answer != Cancel::Finished);
        assert!(won.count() < 2, "{answers:?}");
        let fate = after_cancel(&answers[1], after_cancel(&answers[0], Fate::Expired));
        assert_eq!(limbo.fate(0), Some(fate));
        format!("{answers:?} {}", limbo.settle())
    });
}

/// The holder of an operation whose time is up is about to expire it, when it is cancelled.
///
/// Fails when who ends it does not look again whether it was cancelled.
#[test]
fn cancel_against_an_expiry_by_the_holder() {
    explore("cancel_against_an_expiry_by_the_holder", 2, || {
        let limbo = Limbo::new();
        let handle = limbo.watch(0, &[0]).expect("it waits");
        let (answer, _) = both(
            || {
                limbo.pass(2);
                limbo.cancel(&handle)
            },
            || limbo.trigger(0),
        );
        assert_eq!(limbo.fate(0), Some(after_cancel(&answer, Fate::Expired)));
        format!("{answer:?} {}", limbo.settle())
    });
}
