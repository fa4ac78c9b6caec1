//! Keys and tasks whose drop panics, each time, where the library drops them. Two of them must not
//! be dropped as one value: the second panic would end the process.

use crate::{MS, Payload, no_report_succeeds};
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{AddError, ManualClock, Timer, TimerEntry};

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
