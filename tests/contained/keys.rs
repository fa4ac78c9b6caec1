//! Keys and tasks whose drop panics, each time, where the library drops them. Two of them must not
//! be dropped as one value: the second panic would end the process.

use crate::{MS, Payload, no_report_succeeds};
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{AddError, ManualClock, Task, Timer, TimerEntry};

thread_local! {
    /// How many of them there are, and how many were dropped.
    static PRESENT: Cell<i32> = const { Cell::new(0) };
    static DROPPED: Cell<u64> = const { Cell::new(0) };
}

/// A key or a task.
#[derive(PartialEq, Eq, Debug)]
struct Bomb(u32);

fn bomb(number: u32) -> Bomb {
    PRESENT.set(PRESENT.get() + 1);
    Bomb(number)
}

impl Borrow<u32> for Bomb {
    fn borrow(&self) -> &u32 {
        &self.0
    }
}

impl Clone for Bomb {
    fn clone(&self) -> Self {
        bomb(self.0)
    }
}

impl Hash for Bomb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        PRESENT.set(PRESENT.get() - 1);
        DROPPED.set(DROPPED.get() + 1);
        panic_any(Payload(1));
    }
}

/// Takes a bomb apart that was handed back.
fn defuse(bomb: Bomb) -> u32 {
    PRESENT.set(PRESENT.get() - 1);
    std::mem::ManuallyDrop::new(bomb).0
}

/// Returns how many bombs were dropped since the last call.
fn dropped() -> u64 {
    DROPPED.take()
}

/// Fails if a bomb that the library was given was neither dropped nor handed back.
fn assert_none_is_left() {
    assert_eq!(PRESENT.get(), 0);
}

fn entry(task: u32) -> TimerEntry<Bomb> {
    TimerEntry::after(MS, bomb(task))
}

/// Keyed timers on a timer that takes at most `max_pending`.
fn keyed(max_pending: usize) -> (KeyedTimer<Bomb, Bomb>, Timer) {
    no_report_succeeds();
    let timer =
        Timer::builder().clock(ManualClock::new()).max_pending(max_pending).build().unwrap();
    (KeyedTimer::new(&timer, |_, _| ()), timer)
}

fn refused<T>(result: Result<T, AddError<Bomb>>) -> u32 {
    result.err().map(|error| defuse(error.into_task())).expect("it is refused")
}

/// Seen to fail: the process ended.
#[test]
fn the_last_keyed_timer_drops_each_key_and_each_task_by_itself() {
    let (keyed, timer) = keyed(3);
    (0..3).for_each(|key| drop(keyed.add(bomb(key), entry(key)).unwrap()));
    drop(keyed);
    assert_eq!((dropped(), timer.stats().panicked, timer.len()), (6, 6, 0));
    assert_none_is_left();
}

/// Seen to fail: the calls panicked, and the task was neither handed back nor dropped.
#[test]
fn a_key_that_is_dropped_takes_no_task_along() {
    let (keyed, timer) = keyed(5);
    (0..5).for_each(|key| assert!(keyed.add(bomb(key), entry(key)).unwrap().is_none()));
    assert_eq!(keyed.cancel(&0).map(defuse), Some(0));
    assert_eq!(keyed.find(&1).map(|entry| defuse(entry.cancel())), Some(1));
    assert_eq!(keyed.cancel_if(&2, |_, _| true).map(defuse), Some(2));
    assert_eq!(keyed.find(&3).map(|found| defuse(found.cancel())), Some(3));
    assert_eq!(keyed.add(bomb(4), entry(5)).unwrap().map(defuse), Some(4));
    assert_eq!((dropped(), timer.stats().panicked, timer.len()), (5, 5, 1));
    assert_eq!(keyed.cancel(&4).map(defuse), Some(5));
    drop(keyed);
    assert_none_is_left();
}

/// Seen to fail: the calls panicked, and what they refused was not handed back.
#[test]
fn a_key_that_is_refused_takes_no_task_along() {
    let (keyed, timer) = keyed(1);
    assert!(keyed.add(bomb(0), entry(0)).unwrap().is_none());
    let vacant = |key| match keyed.entry(bomb(key)) {
        Entry::Vacant(vacant) => vacant,
        Entry::Occupied(_) => unreachable!("it is not scheduled"),
    };
    assert_eq!(refused(keyed.add(bomb(1), entry(1))), 1, "it is full");
    assert_eq!(refused(vacant(2).add(MS, bomb(2))), 2);
    assert_eq!(refused(vacant(3).add(MS, bomb(3))), 3);
    assert!(timer.shutdown().is_empty());
    assert_eq!(refused(keyed.add(bomb(4), entry(4))), 4, "it is shut down");
    assert_eq!(refused(keyed.add(bomb(0), entry(5))), 5, "also for a key that is there");
    assert_eq!(refused(vacant(6).add(MS, bomb(6))), 6);
    assert_eq!((dropped(), timer.stats().panicked), (6, 6));
    assert_eq!(keyed.cancel(&0).map(defuse), Some(0));
    drop(keyed);
    assert_none_is_left();
}

/// Seen to fail: the lock of the key's shard was never released.
#[test]
fn an_entry_of_a_key_that_is_there_releases_its_lock() {
    let (keyed, timer) = keyed(1);
    assert!(keyed.add(bomb(0), entry(0)).unwrap().is_none());
    let Entry::Occupied(mut occupied) = keyed.entry(bomb(0)) else { unreachable!("it is there") };
    assert_eq!(defuse(occupied.replace(bomb(1))), 0);
    drop(occupied);
    let Entry::Occupied(occupied) = keyed.entry(bomb(0)) else { unreachable!("it is there") };
    assert_eq!(defuse(occupied.cancel()), 1);
    assert_eq!((dropped(), timer.stats().panicked, timer.len()), (3, 3, 0));
    drop(keyed);
    assert_none_is_left();
}

/// Seen to fail: the process ended.
#[test]
fn keys_and_tasks_are_dropped_by_a_thread_that_unwinds() {
    let (keyed, timer) = keyed(3);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _vacant = keyed.entry(bomb(0));
        panic!("and the entry is dropped");
    }));
    assert!(caught.is_err());
    let caught = catch_unwind(AssertUnwindSafe(move || {
        (0..3).for_each(|key| assert!(keyed.add(bomb(key), entry(key)).unwrap().is_none()));
        let _occupied = keyed.entry(bomb(0));
        panic!("and all that is dropped");
    }));
    assert!(caught.is_err());
    assert_eq!((dropped(), timer.len()), (8, 0));
    assert_none_is_left();
}

/// Keeps the renewals, and counts what is lost.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(Vec<Renewal<Bomb>>, u32)>>);

impl LeaseStore<Bomb> for Store {
    fn renew(&self, batch: Vec<Renewal<Bomb>>) {
        self.0.lock().unwrap().0.extend(batch);
    }

    fn lost(&self, key: Bomb) {
        defuse(key);
        self.0.lock().unwrap().1 += 1;
    }
}

/// Leases of 30 ms, on a timer whose tasks a test runs.
struct Dog {
    leases: Leases<Bomb>,
    timer: Timer,
    clock: ManualClock,
    store: Store,
    tasks: Receiver<Task>,
}

impl Dog {
    fn new() -> Self {
        no_report_succeeds();
        let (clock, (sender, tasks)) = (ManualClock::new(), channel());
        let builder = Timer::builder().clock(clock.clone());
        let timer = builder.executor(move |task| sender.send(task).unwrap()).build().unwrap();
        let store = Store::default();
        let leases = Leases::new(&timer, LeaseTerms::new(30 * MS), store.clone());
        Dog { leases, timer, clock, store, tasks }
    }

    fn hold(&self, key: u32) -> Lease<Bomb> {
        self.leases.hold(bomb(key)).unwrap()
    }

    /// Lets so much time pass, and runs the round that is due.
    fn pass(&self, ms: u32) {
        self.clock.advance(ms * MS);
        self.timer.advance_clock(Duration::ZERO);
        self.tasks.try_iter().for_each(Task::run);
    }

    /// Takes what the store was asked to renew.
    fn sent(&self) -> Vec<Renewal<Bomb>> {
        std::mem::take(&mut self.store.0.lock().unwrap().0)
    }
}

/// Calls `end` with three leases, two of which the store was asked to renew; then drops all. Checks
/// that so many leases were lost, and that every key was dropped.
fn leases_end(lost: u32, end: impl FnOnce(&Dog, [Lease<Bomb>; 3], Vec<Renewal<Bomb>>)) {
    let dog = Dog::new();
    let [first, second] = [1, 2].map(|key| dog.hold(key));
    dog.pass(10);
    let (third, sent) = (dog.hold(3), dog.sent());
    assert_eq!(sent.len(), 2);
    end(&dog, [first, second, third], sent);
    let store = dog.store.clone();
    drop(dog);
    assert_eq!(store.0.lock().unwrap().1, lost);
    assert_none_is_left();
}

/// Seen to fail: the process ended.
#[test]
fn leases_drop_each_key_by_itself_however_they_end() {
    leases_end(0, |_, leases, _| leases.into_iter().for_each(|lease| assert!(lease.release())));
    leases_end(0, |_, leases, sent| drop((sent, leases)));
    leases_end(0, |_, leases, sent| {
        drop(leases);
        sent.into_iter().for_each(Renewal::renewed);
    });
    leases_end(0, |dog, leases, _| drop(([1, 2, 3].map(|key| dog.hold(key)), leases)));
    leases_end(2, |_, _leases, sent| sent.into_iter().for_each(Renewal::gone));
    leases_end(3, |dog, _leases, _sent| dog.pass(60));
    leases_end(3, |dog, _leases, _sent| drop(dog.timer.shutdown()));
}

/// Seen to fail: the process ended.
#[test]
fn a_key_that_no_lease_is_taken_for_is_dropped_by_itself() {
    leases_end(2, |dog, _leases, _sent| {
        let rounds = dog.timer.shutdown();
        // The first call ends the former lease and finds it out; the others know it.
        (1..4).for_each(|key| assert!(dog.leases.hold(bomb(key)).is_err()));
        drop(rounds);
    });
}

/// Seen to fail: the process ended.
#[test]
fn a_round_that_finds_the_timer_shut_down_drops_each_key_by_itself() {
    leases_end(5, |dog, _leases, sent| {
        sent.into_iter().for_each(Renewal::renewed);
        let _more = [4, 5].map(|key| dog.hold(key));
        dog.clock.advance(10 * MS);
        assert_eq!(dog.timer.advance_clock(Duration::ZERO), 1);
        assert!(dog.timer.shutdown().is_empty());
        dog.pass(0);
        assert!(dog.sent().is_empty(), "nobody holds them");
    });
}

/// Seen to fail: the process ended.
#[test]
fn the_last_leases_drop_each_key_by_itself() {
    let dog = Dog::new();
    let held = [1, 2, 3].map(|key| dog.hold(key));
    let timer = dog.timer.clone();
    drop(dog);
    assert_eq!(timer.stats().panicked, 6, "two for each lease, and another in its handle");
    drop(held);
    assert_none_is_left();
}

/// Seen to fail: the process ended.
#[test]
fn leases_are_dropped_by_a_thread_that_unwinds() {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        leases_end(0, |_, _leases, _sent| panic!("and all that is dropped"));
    }));
    assert!(caught.is_err());
    assert_none_is_left();
}
