//! Pairs of calls on a timer, and on what is built on timers: so small that their schedules are
//! explored exhaustively.

use crate::futures::{NANO, by_hand};
use crate::harness::exhaust;
use crate::leases::{Dog, MICRO};
use crate::limbo::{Fate, KeyHasher, Limbo};
use shuttle::thread;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::{BuildError, Cancel, ManualClock, Timeout, Timer, TimerBuilder, TimerEntry};

/// A number and a deadline.
type Job = (u32, u64);

/// A timer on a manual clock, with one shard and the smallest wheels, and what has fired on it.
/// std's lock, because it is never held for a step of a schedule.
#[derive(Clone)]
struct Small {
    timer: Timer<Job>,
    clock: ManualClock,
    start: Instant,
    fired: Arc<Mutex<Vec<u32>>>,
}

impl Small {
    fn new(build: impl FnOnce(TimerBuilder<Job>) -> Result<Timer<Job>, BuildError>) -> Self {
        let (clock, fired) = (ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
        let (start, time, log) = (clock.now(), clock.clone(), Arc::clone(&fired));
        let main = thread::current();
        let run = move |(id, deadline)| {
            assert!(nanos(time.now() - start) >= deadline, "timer {id} fired early");
            log.lock().unwrap().push(id);
            main.unpark();
        };
        let builder = Timer::builder().tick(Duration::from_nanos(1)).wheel_size(1).shards(1);
        let timer = build(builder.clock(clock.clone()).executor(run)).expect("it can be built");
        Small { timer, clock, start, fired }
    }

    fn by_hand() -> Self {
        Self::new(TimerBuilder::build)
    }

    /// Adds a timer, unless it is refused.
    fn add(&self, id: u32, at: u64) -> Option<Arc<Timeout<Job>>> {
        let entry = TimerEntry::at(self.start + Duration::from_nanos(at), (id, at));
        self.timer.add(entry).ok().map(Arc::new)
    }

    fn pass(&self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
    }

    fn turn(&self) {
        self.timer.advance_clock(Duration::ZERO);
    }

    fn shutdown(&self) -> Vec<u32> {
        self.timer.shutdown().into_iter().map(|entry| entry.into_task().0).collect()
    }

    /// Returns what has fired, in the order of the numbers.
    fn fired(&self) -> Vec<u32> {
        let mut fired = self.fired.lock().unwrap().clone();
        fired.sort_unstable();
        fired
    }

    /// Waits on the main thread until a timer has fired.
    fn wait_for(&self, id: u32) {
        while !self.fired().contains(&id) {
            thread::park();
        }
    }

    /// Fires at quiescence, with one turn, what is due; asserts that this is all that has fired.
    fn assert_fires(&self, all: &[u32]) {
        self.timer.assert_invariants();
        self.turn();
        assert_eq!(self.fired(), all);
    }

    /// Lets all time pass; asserts that this has fired, and that nothing is left.
    fn settle(&self, all: &[u32]) {
        self.pass(1 << 40);
        self.assert_fires(all);
        assert!(self.timer.is_empty(), "a permit is left");
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("it is short")
}

/// Makes two calls on two threads, one of which is this one.
pub(crate) fn race<R: Send + 'static, S>(
    one: impl FnOnce() -> R + Send + 'static,
    other: impl FnOnce() -> S,
) -> (R, S) {
    let one = thread::spawn(one);
    let other = other();
    (one.join().expect("it does not panic"), other)
}

/// Fails when a flush leaves the bucket armed that it has emptied.
#[test]
fn add_beside_flush() {
    exhaust("pair_add_flush", 2, || {
        let small = Small::by_hand();
        small.add(0, 2);
        small.pass(2);
        let own = small.clone();
        race(move || own.add(1, 2), || small.turn());
        let late = small.fired().len() == 1;
        small.assert_fires(&[0, 1]);
        small.settle(&[0, 1]);
        format!("{late}")
    });
}

/// The shard's time leaps over what lies between.
///
/// Fails when it leaps without asking whether a bucket is due.
#[test]
fn add_beside_leap() {
    exhaust("pair_add_leap", 1, || {
        let small = Small::by_hand();
        small.add(0, 6);
        let own = small.clone();
        race(move || own.add(1, 9), || small.clock.advance(Duration::from_nanos(7)));
        small.assert_fires(&[0]);
        small.pass(2);
        small.assert_fires(&[0, 1]);
        small.settle(&[0, 1]);
        String::new()
    });
}

/// Fails when a cancel looks whether the timer is pending, and says that it is cancelled, before it
/// takes it out.
#[test]
fn cancel_beside_flush() {
    exhaust("pair_cancel_flush", 2, || {
        let small = Small::by_hand();
        let timeout = small.add(0, 2).expect("it is accepted");
        small.pass(2);
        let own = Arc::clone(&timeout);
        let (answer, ()) = race(move || own.cancel(), || small.turn());
        let fired = if answer == Cancel::Expired { vec![0] } else { vec![] };
        assert_eq!((small.fired(), timeout.is_cancelled()), (fired.clone(), fired.is_empty()));
        small.settle(&fired);
        format!("{answer:?}")
    });
}

/// Fails when the lock is released between seeing that a timer is pending and extending it.
#[test]
fn touch_beside_flush() {
    exhaust("pair_touch_flush", 2, || {
        let small = Small::by_hand();
        let timeout = small.add(0, 2).expect("it is accepted");
        small.pass(2);
        let (moved, ()) = race(move || timeout.touch(Duration::from_nanos(1)), || small.turn());
        assert_eq!(small.fired().is_empty(), moved);
        small.pass(1);
        small.assert_fires(&[0]);
        small.settle(&[0]);
        format!("{moved}")
    });
}

/// Fails when an `add` looks whether its shard is closed before it locks it.
#[test]
fn shutdown_beside_add() {
    exhaust("pair_shutdown_add", 2, || {
        let small = Small::by_hand();
        let own = small.clone();
        let (accepted, returned) = race(move || own.add(0, 2).is_some(), || small.shutdown());
        assert_eq!(returned, if accepted { vec![0] } else { vec![] });
        small.settle(&[]);
        format!("{accepted}")
    });
}

/// Fails when what a flush has taken out is dropped because a shutdown came in between.
#[test]
fn shutdown_beside_flush() {
    exhaust("pair_shutdown_flush", 2, || {
        let small = Small::by_hand();
        small.add(0, 2);
        small.pass(2);
        let own = small.clone();
        let (returned, ()) = race(move || own.shutdown(), || small.turn());
        let fired = if returned.is_empty() { vec![0] } else { vec![] };
        small.settle(&fired);
        format!("{returned:?}")
    });
}

/// Fails when the limit is looked at and the count raised in two steps.
#[test]
fn add_beside_add_at_the_limit() {
    exhaust("pair_add_add", 2, || {
        let small = Small::new(|builder| builder.max_pending(1).build());
        let own = small.clone();
        let accepted = race(move || own.add(0, 2).is_some(), || small.add(1, 2).is_some());
        assert!(accepted.0 != accepted.1, "one fits: {accepted:?}");
        small.settle(&[u32::from(accepted.1)]);
        format!("{accepted:?}")
    });
}

/// Fails when the reaper lets go of the gate's lock between looking and going to sleep.
#[test]
fn add_beside_sleep() {
    exhaust("pair_add_sleep", 1, || {
        let small = Small::new(TimerBuilder::start);
        small.add(0, 0);
        small.wait_for(0);
        String::new()
    });
}

/// Fails when moving the clock wakes without taking the gate's lock.
#[test]
fn clock_beside_sleep() {
    exhaust("pair_clock_sleep", 1, || {
        let small = Small::new(TimerBuilder::start);
        small.add(0, 3);
        small.pass(3);
        small.wait_for(0);
        String::new()
    });
}

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
