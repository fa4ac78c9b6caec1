//! Pairs of calls on what is built on timers: keys, leases, series, and the purgatory.

use crate::futures::{NANO, by_hand};
use crate::harness::exhaust;
use crate::leases::{Dog, MICRO};
use crate::limbo::{KeyHasher, Limbo};
use crate::operations::Fate;
use crate::pairs::race;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::{ManualClock, Timer, TimerEntry};

/// Keyed timers on a timer that is driven by hand, and what has expired. Task 0 of key 1 is due.
struct Keys {
    timer: Timer,
    clock: ManualClock,
    keyed: KeyedTimer<u64, u32, KeyHasher>,
    /// std's lock, because it is never held for a step of a schedule.
    expired: Arc<Mutex<Vec<u32>>>,
}

impl Keys {
    fn new() -> Arc<Self> {
        let ((timer, clock), expired) = (by_hand(), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&expired);
        let keyed = KeyedTimer::with_hasher(&timer, KeyHasher::default(), move |_, id| {
            log.lock().unwrap().push(id);
        });
        let keys = Keys { timer, clock, keyed, expired };
        assert_eq!(keys.schedule(0, 2), None);
        keys.clock.advance(2 * NANO);
        Arc::new(keys)
    }

    /// Returns the task that was replaced.
    fn schedule(&self, id: u32, delay: u32) -> Option<u32> {
        let entry = TimerEntry::after(delay * NANO, id);
        self.keyed.schedule(1, entry).expect("it is accepted")
    }

    fn turn(&self) {
        self.timer.advance_clock(Duration::ZERO);
    }

    fn expired(&self) -> Vec<u32> {
        self.expired.lock().unwrap().clone()
    }

    /// Lets time pass at quiescence; asserts what has expired, and that nothing is left.
    fn settle(&self, expired: &[u32]) {
        self.keyed.assert_invariants();
        self.timer.assert_invariants();
        self.clock.advance(90 * NANO);
        self.turn();
        assert_eq!(self.expired(), expired);
        assert!(self.timer.is_empty() && self.keyed.is_empty(), "something is left behind");
    }
}

/// Fails when an alarm does not look whether its key's deadline was moved.
#[test]
fn replace_beside_expiry() {
    exhaust("pair_replace_expiry", 2, || {
        let keys = Keys::new();
        let own = Arc::clone(&keys);
        let (replaced, ()) = race(move || own.schedule(1, 3), || keys.turn());
        let expired = if replaced.is_some() { vec![] } else { vec![0] };
        assert_eq!(keys.expired(), expired);
        keys.settle(&[expired, vec![1]].concat());
        format!("{replaced:?}")
    });
}

/// Fails when a cancel drops a task whose alarm is on its way.
#[test]
fn cancel_beside_expiry() {
    exhaust("pair_key_cancel_expiry", 2, || {
        let keys = Keys::new();
        let own = Arc::clone(&keys);
        let (cancelled, ()) = race(move || own.keyed.cancel(&1), || keys.turn());
        keys.settle(if cancelled.is_some() { &[] } else { &[0] });
        format!("{cancelled:?}")
    });
}

/// Fails when an alarm that finds its key's deadline extended is not set again.
#[test]
fn touch_beside_expiry() {
    exhaust("pair_key_touch_expiry", 2, || {
        let keys = Keys::new();
        let own = Arc::clone(&keys);
        let (touched, ()) = race(move || own.keyed.touch(&1, 3 * NANO), || keys.turn());
        assert_eq!(keys.expired().is_empty(), touched);
        keys.settle(&[0]);
        format!("{touched}")
    });
}

/// A lease that was not held does not come back.
///
/// Fails when an answer goes by a time that was read before somebody was told that the lease has
/// run out.
#[test]
fn renewal_beside_loss() {
    exhaust("pair_renewal_loss", 2, || {
        let (dog, lease, renewal) = Dog::in_flight();
        let answer = move || renewal.renewed();
        let ((), was_held) = race(answer, || {
            dog.clock.advance(8 * MICRO);
            let was_held = lease.is_held();
            dog.timer.advance_clock(Duration::ZERO);
            was_held
        });
        let held = lease.is_held();
        assert!(was_held || !held, "it came back");
        assert_eq!(dog.lost(), if held { vec![] } else { vec![1] });
        assert_eq!(lease.release(), held);
        dog.settle();
        format!("{held}")
    });
}

/// Fails when a run that is due does not look whether its series was cancelled.
#[test]
fn cancel_beside_run() {
    exhaust("pair_cancel_run", 2, || {
        let ((timer, clock), runs) = (by_hand(), Arc::new(Mutex::new(0)));
        let log = Arc::clone(&runs);
        let series = Periodic::every(2 * NANO).start(&timer, move |_| *log.lock().unwrap() += 1);
        let series = series.expect("it is accepted");
        clock.advance(2 * NANO);
        let own = timer.clone();
        let (_, begun) = race(
            move || own.advance_clock(Duration::ZERO),
            || {
                assert!(series.cancel());
                series.runs()
            },
        );
        clock.advance(2 * NANO);
        timer.advance_clock(Duration::ZERO);
        assert!(timer.is_empty(), "a run is left");
        assert_eq!((*runs.lock().unwrap(), series.runs()), (begun, begun), "after the end");
        format!("{begun}")
    });
}

/// Fails when an expiry takes an operation over that another thread holds.
#[test]
fn trigger_beside_expiry() {
    exhaust("pair_trigger_expiry", 2, || {
        let limbo = Arc::new(Limbo::new());
        limbo.watch(0, &[0]);
        limbo.set(0);
        limbo.clock.advance(2 * NANO);
        let own = Arc::clone(&limbo);
        race(move || own.trigger(0), || limbo.pass(0));
        limbo.settle()
    });
}

/// Fails when an operation is not checked once more after it is watched.
#[test]
fn watch_beside_trigger() {
    exhaust("pair_watch_trigger", 2, || {
        let limbo = Arc::new(Limbo::new());
        let own = Arc::clone(&limbo);
        race(move || drop(own.watch(0, &[0])), || limbo.announce(0, 0));
        assert_eq!(limbo.fate(0), Some(Fate::Completed), "a change was missed");
        limbo.settle()
    });
}
