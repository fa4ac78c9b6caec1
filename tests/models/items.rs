//! Models of items that operations take in their checks: none is lost, none is left while one
//! waits; and of what a thread leaves to the executor, so that it does not serve others without
//! bound.

use crate::harness::{all, both, explore};
use crate::limbo::{Fate, Limbo};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle::thread::ThreadId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::purgatory::{Cancel, DelayedOperation, Pending, Watch};

/// The items, and what became of the workers. std's locks where they are never held for a step of a
/// schedule.
#[derive(Clone, Default)]
struct Desk {
    items: Arc<Mutex<VecDeque<u8>>>,
    ends: Arc<std::sync::Mutex<Vec<End>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    worker: usize,
    item: Option<u8>,
    completed: bool,
}

/// Takes an item in its check.
struct Worker {
    end: End,
    desk: Desk,
}

impl DelayedOperation for Worker {
    fn try_complete(&mut self) -> bool {
        assert!(
            self.end.item.is_none(),
            "checked again after it took an item"
        );
        self.end.item = self.desk.items.lock().unwrap().pop_front();
        self.end.item.is_some()
    }

    fn on_complete(&mut self) {
        assert!(!self.end.completed, "completed twice");
        self.end.completed = true;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.desk.ends.lock().unwrap().push(self.end);
    }
}

type Room = Limbo<Worker>;

impl Desk {
    fn wait(&self, room: &Room, worker: usize) -> Option<Pending<u64, Worker>> {
        let end = End {
            worker,
            item: None,
            completed: false,
        };
        let worker = Worker {
            end,
            desk: self.clone(),
        };
        let watch = room
            .purgatory
            .try_complete_else_watch(worker, Duration::from_nanos(2), &[0]);
        watch.ok().and_then(Watch::pending)
    }

    /// Puts items, and has them taken. Returns how many this call gave away.
    fn put(&self, room: &Room, items: &[u8]) -> usize {
        self.items.lock().unwrap().extend(items);
        let given = room.purgatory.check_and_complete_up_to(&0, items.len());
        assert!(given <= items.len(), "{given} of {items:?}");
        given
    }

    /// Checks at quiescence that each worker with an item was completed, and no other except by the
    /// clock, and that no item is left while a worker waits. Returns which workers got one.
    fn settle(&self, room: &Room, put: usize) -> String {
        room.pass(0); // The checks that were left to the executor.
        let left = self.items.lock().unwrap().len();
        let waiting = room.purgatory.len();
        assert!(
            left == 0 || waiting == 0,
            "{left} items are left for {waiting}"
        );
        room.purgatory.assert_invariants();
        let triggered = room.purgatory.stats().completed();
        drop(room.purgatory.shutdown());
        room.assert_empty();
        assert_eq!(room.purgatory.stats().panicked, 0);
        let mut ends = self.ends.lock().unwrap().clone();
        ends.sort_by_key(|end| end.worker);
        let got: Vec<_> = ends.iter().filter(|end| end.item.is_some()).collect();
        assert!(
            got.iter().all(|end| end.completed),
            "an item was lost: {ends:?}"
        );
        assert_eq!(
            (got.len() + left, got.len() as u64),
            (put, triggered),
            "{ends:?}"
        );
        let got: Vec<_> = got.iter().map(|end| (end.worker, end.item)).collect();
        format!("{got:?} {left}")
    }
}

/// Two threads put an item each where three wait: each has one taken, even if it finds that the
/// other is asking.
///
/// Fails when a request that is left to another thread counts.
#[test]
fn put_against_put() {
    explore("put_against_put", 2, || {
        let room = Room::new();
        let desk = Desk::default();
        (0..3).for_each(|worker| drop(desk.wait(&room, worker)));
        let given = both(|| desk.put(&room, &[1]), || desk.put(&room, &[2]));
        assert_eq!((given, room.purgatory.len()), ((1, 1), 1));
        desk.settle(&room, 2)
    });
}

/// Workers leave, and their blocks with them, and come while items are put: nobody who waits is
/// passed over by all.
///
/// Fails when a visit whose block has gone ends, or begins again with what it has seen.
#[test]
fn puts_against_leaving() {
    explore("puts_against_leaving", 4, || {
        let room = Room::new();
        let desk = Desk::default();
        let workers: Vec<_> = (0..5).map(|worker| desk.wait(&room, worker)).collect();
        let (given, _, _) = all(
            || desk.put(&room, &[1]) + desk.put(&room, &[2, 3]),
            || desk.put(&room, &[4]),
            || {
                for worker in [1, 0, 3].map(|worker| workers[worker].as_ref()) {
                    drop(worker.map(Pending::cancel));
                }
                desk.wait(&room, 5);
            },
        );
        format!("{given} {}", desk.settle(&room, 4))
    });
}

/// A worker is cancelled, and the time is up, while it takes an item: it is completed.
///
/// Fails when a cancel that came during a check wins over its result.
#[test]
fn claim_against_cancel_and_expiry() {
    explore("claim_against_cancel_and_expiry", 4, || {
        let room = Room::new();
        let desk = Desk::default();
        let worker = desk.wait(&room, 0).expect("it waits");
        let mut answer = "";
        all(
            || desk.put(&room, &[1]),
            || {
                answer = match worker.cancel() {
                    Cancel::Cancelled(worker) => {
                        assert!(worker.end.item.is_none() && !worker.end.completed);
                        "returned"
                    }
                    Cancel::Deferred => "deferred",
                    Cancel::Finished => "finished",
                };
            },
            || room.pass(2),
        );
        room.pass(0);
        let ends = desk.ends.lock().unwrap().clone();
        assert_eq!(ends.len(), 1);
        let has_item = ends[0].item.is_some();
        assert_eq!(desk.items.lock().unwrap().is_empty(), has_item);
        assert!(ends[0].completed || !has_item, "an item was lost");
        let stats = room.purgatory.stats();
        let how = [stats.completed_by_trigger, stats.expired, stats.cancelled];
        assert_eq!(how.iter().sum::<u64>(), 1);
        assert_eq!(how[0] == 1, has_item, "{how:?}");
        assert!(!worker.is_pending());
        room.assert_empty();
        format!("{answer} {how:?}")
    });
}

/// The purgatory is shut down while a worker that comes takes an item: it is completed, or did not
/// take one.
///
/// Fails when what is being added goes back after a shutdown although its check was true.
#[test]
fn claim_against_shutdown() {
    explore("claim_against_shutdown", 3, || {
        let room = Room::new();
        let desk = Desk::default();
        let (_, _, returned) = all(
            || desk.wait(&room, 0),
            || desk.put(&room, &[1]),
            || room.purgatory.shutdown().len(),
        );
        room.pass(0);
        let ends = desk.ends.lock().unwrap().clone();
        let has_item = ends[0].item.is_some();
        let completed = ends[0].completed;
        assert_eq!(
            (ends.len(), desk.items.lock().unwrap().is_empty()),
            (1, has_item)
        );
        assert_eq!(has_item, completed, "an item was lost");
        room.assert_empty();
        format!("{returned} {has_item}")
    });
}

/// The threads that made the checks of an operation, and `None` where its time was up. std's lock,
/// because it is never held for a step of a schedule.
#[derive(Clone, Default)]
struct Checks(Arc<std::sync::Mutex<Vec<Option<ThreadId>>>>);

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
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|thread| **thread == me)
            .count()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Returns how many checks began after the time was up.
    fn checked_after_the_end(&self) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .rev()
            .position(Option::is_none)
            .unwrap_or(0)
    }

    /// Triggers the key. The call checks for itself and once for others.
    fn trigger(&self, limbo: &Limbo) {
        let before = self.own();
        limbo.trigger(0);
        let made = self.own() - before;
        assert!(made <= 2, "one call serves all the others");
    }
}

/// Four triggers meet, before the last of which the condition came true: that is seen, if not by
/// one of these threads then by the executor, and no call makes more than two checks.
///
/// Fails when a holder checks as often as it is asked, or when it lets go without leaving the check
/// to a task.
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
        assert_eq!(
            limbo.timer.len(),
            usize::from(left),
            "a check is no timer of its own"
        );
        limbo.pass(0);
        assert_eq!(limbo.fate(0), Some(Fate::Completed));
        format!("{left} {} {}", checks.len(), limbo.settle_with_tasks())
    });
}

/// The time is up while the key is triggered: who checks then does so once more at most.
///
/// Fails when an expiry that meets a check, under way or left to a task, is forgotten.
#[test]
fn expiry_against_triggers() {
    explore("expiry_against_triggers", 2, || {
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
        assert!(
            checks.checked_after_the_end() <= 1,
            "{} checks of what is overdue",
            checks.checked_after_the_end()
        );
        assert_eq!(limbo.fate(0), Some(Fate::Expired));
        format!(
            "{} {}",
            checks.checked_after_the_end(),
            limbo.settle_with_tasks()
        )
    });
}

/// The timer is shut down after the condition came true, and the key was triggered: that is seen,
/// or was left to a task that never comes.
///
/// Fails when a check is left to a task and nothing knows of the operation any more.
#[test]
fn triggers_against_the_timers_end() {
    explore("triggers_against_the_timers_end", 3, || {
        let limbo = Limbo::new();
        let checks = Checks::watch(&limbo);
        all(
            || checks.trigger(&limbo),
            || checks.trigger(&limbo),
            || {
                limbo.set(0);
                checks.trigger(&limbo);
                assert!(limbo.timer.shutdown().is_empty());
            },
        );
        let left = limbo.shutdown().len();
        let fate = if left == 0 {
            Fate::Completed
        } else {
            Fate::Returned
        };
        assert_eq!(limbo.fate(0), Some(fate));
        format!("{left} {} {}", checks.len(), limbo.settle_with_tasks())
    });
}

/// What a check triggers that returns true is done when it has returned, or is left to the thread
/// that is checking what it finds.
///
/// Fails when such a trigger does nothing.
#[test]
fn trigger_in_a_check_against_trigger_and_turn() {
    explore("trigger_in_a_check_against_trigger_and_turn", 2, || {
        let limbo = Limbo::new();
        let checks = Checks::watch(&limbo);
        let purgatory = limbo.purgatory.clone();
        limbo.watch_with(1, &[1], move || _ = purgatory.check_and_complete(&0), || ());
        limbo.set(1);
        all(
            || limbo.announce(0, 1),
            || checks.trigger(&limbo),
            || limbo.pass(0),
        );
        let left = limbo.fate(0).is_none();
        limbo.pass(0);
        assert_eq!([0, 1].map(|id| limbo.fate(id)), [Some(Fate::Completed); 2]);
        format!("{left} {} {}", checks.len(), limbo.settle_with_tasks())
    });
}
