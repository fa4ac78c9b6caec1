//! Models of what a thread leaves to the executor, so that it does not serve others without bound.

use crate::harness::{all, both, explore};
use crate::limbo::Limbo;
use crate::operations::Fate;
use shuttle::thread::{self, ThreadId};
use std::sync::{Arc, Mutex};

/// The threads that made the checks of an operation, and `None` where its time was up. std's lock,
/// because it is never held for a step of a schedule.
#[derive(Clone, Default)]
struct Checks(Arc<Mutex<Vec<Option<ThreadId>>>>);

impl Checks {
    /// Watches operation 0 on key 0.
    fn watch(limbo: &Limbo) -> Self {
        let checks = Checks::default();
        let own = checks.clone();
        let during = move || {
            own.0.lock().unwrap().push(Some(thread::current().id()));
            thread::yield_now();
        };
        limbo.watch_with(0, &[0], during, || ());
        checks
    }

    fn own(&self) -> usize {
        let me = Some(thread::current().id());
        self.0.lock().unwrap().iter().filter(|thread| **thread == me).count()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Returns how many checks began after the time was up.
    fn late(&self) -> usize {
        self.0.lock().unwrap().iter().rev().position(Option::is_none).unwrap_or(0)
    }

    /// Triggers the key. The call checks for itself and once for others; and once more if the time
    /// is up by then.
    fn trigger(&self, limbo: &Limbo) {
        let before = self.own();
        limbo.trigger(0);
        let made = self.own() - before;
        assert!(made <= 2 + usize::from(limbo.now() >= 2), "one call serves all the others");
    }
}

/// Four triggers meet, before the last of which the condition came true: that is seen, if not by
/// one of these threads then by the executor, and no call makes more than two checks.
///
/// Fails when a holder checks as often as it is asked, or when it lets go without leaving the check
/// to the executor.
#[test]
fn triggers_beyond_those_that_a_holder_serves() {
    explore("triggers_beyond_those_that_a_holder_serves", 4, || {
        let limbo = Limbo::new();
        let checks = Checks::watch(&limbo);
        thread::scope(|scope| {
            scope.spawn(|| checks.trigger(&limbo));
            scope.spawn(|| checks.trigger(&limbo));
            scope.spawn(|| {
                checks.trigger(&limbo);
                limbo.set(0);
                checks.trigger(&limbo);
            });
            scope.spawn(|| limbo.pass(0));
        });
        let left = limbo.fate(0).is_none();
        assert_eq!(limbo.timer.len() > 1, left, "a check is on its way, or the operation ended");
        limbo.pass(0);
        assert_eq!(limbo.fate(0), Some(Fate::Completed));
        format!("{left} {} {}", checks.len(), limbo.settle_with_errands())
    });
}

/// The time is up while the key is triggered: the operation is checked once more at most.
///
/// Fails when a trigger takes an operation whose time is up; when a check that has arrived counts
/// as still on its way; when an expiry that meets a check on its way is forgotten.
#[test]
fn expiry_against_triggers() {
    explore("expiry_against_triggers", 3, || {
        let limbo = Limbo::new();
        let checks = Checks::watch(&limbo);
        all(
            || (0..2).for_each(|_| checks.trigger(&limbo)),
            || (0..2).for_each(|_| checks.trigger(&limbo)),
            || {
                limbo.pass(2);
                checks.0.lock().unwrap().push(None);
            },
        );
        let mut turns = 0;
        while limbo.fate(0).is_none() {
            turns += 1;
            assert!(turns <= 2, "a check that is on its way, and the expiry");
            limbo.pass(0);
        }
        assert!(checks.late() <= 1, "{} checks of what is overdue", checks.late());
        assert_eq!(limbo.fate(0), Some(Fate::Expired));
        limbo.pass(0);
        format!("{turns} {} {}", checks.late(), limbo.settle_with_errands())
    });
}

/// The timer is shut down while a check is handed on: what it returns is dropped, or it refuses,
/// and that the condition came true before is seen all the same.
///
/// Fails when a check that was handed on is made only where it is run.
#[test]
fn triggers_against_the_timers_end() {
    explore("triggers_against_the_timers_end", 2, || {
        let limbo = Limbo::new();
        let (purgatory, mut checks) = (limbo.purgatory.clone(), 0);
        // As if others triggered it during its third and its fourth check.
        let during = move || {
            checks += 1;
            if checks == 3 || checks == 4 {
                assert_eq!(purgatory.check_and_complete(&0), 0);
            }
        };
        limbo.watch_with(0, &[0], during, || ());
        let mut returned = 0;
        both(
            || limbo.purgatory.check_and_complete(&0),
            || {
                limbo.set(0);
                limbo.purgatory.check_and_complete(&0);
                let left = limbo.timer.shutdown();
                returned = left.len();
                drop(left);
            },
        );
        assert_eq!(limbo.fate(0), Some(Fate::Completed));
        format!("{returned} {}", limbo.settle_with_errands())
    });
}

/// A trigger inside of a check, which in models is nested too deep already, leaves what it finds to
/// the executor, or to the thread that is checking it.
///
/// Fails when such a trigger does nothing; when it takes a check to be on its way that has arrived.
#[test]
fn nested_trigger_against_trigger_and_turn() {
    explore("nested_trigger_against_trigger_and_turn", 3, || {
        let limbo = Limbo::new();
        let checks = Checks::watch(&limbo);
        let purgatory = limbo.purgatory.clone();
        limbo.watch_with(1, &[1], move || _ = purgatory.check_and_complete(&0), || ());
        all(|| limbo.announce(0, 1), || checks.trigger(&limbo), || limbo.pass(0));
        let left = limbo.fate(0).is_none();
        limbo.pass(0);
        assert_eq!(limbo.fate(0), Some(Fate::Completed));
        limbo.pass(2);
        format!("{left} {} {}", checks.len(), limbo.settle_with_errands())
    });
}
