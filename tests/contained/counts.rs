//! Each panic of a user's code is counted once, where the documentation says.

use crate::by_hand;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{DelayedOperation, FutureOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Task, Timer, TimerEntry, Worker};

const S: Duration = Duration::from_secs(1);

/// Returns how many panics there were after so many seconds.
fn after(seconds: u32, timer: &Timer, clock: &ManualClock) -> u64 {
    for _ in 0..seconds {
        clock.advance(S);
        while timer.advance_clock(Duration::ZERO) > 0 {}
    }
    timer.stats().panicked
}

/// Seen to fail: none was counted. On a worker it is still counted once.
#[test]
fn panics_of_a_series_are_counted_once() {
    let (timer, clock) = by_hand();
    let _series = Periodic::every(S).start(&timer, |_| panic!("a run")).unwrap();
    assert_eq!(after(5, &timer, &clock), 5);
    let clock = ManualClock::new();
    let worker = Worker::unbounded("worker", Task::run).unwrap();
    let timer = Timer::builder().clock(clock.clone()).executor(worker).build().unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    let _series = Periodic::every(S).start(&timer, move |run| {
        run.cancel();
        let _told = Tells(sender.clone());
        panic!("a run");
    });
    clock.advance(S);
    timer.advance_clock(Duration::ZERO);
    ended.recv().unwrap();
    let weak = timer.downgrade();
    let (told, counted) = std::sync::mpsc::channel();
    // The worker runs this after the run.
    let tell = move || told.send(weak.upgrade().map(|timer| timer.stats().panicked)).unwrap();
    timer.add(TimerEntry::after(Duration::ZERO, tell)).unwrap();
    timer.advance_clock(Duration::ZERO);
    assert_eq!(counted.recv(), Ok(Some(1)));
}

struct Tells(std::sync::mpsc::Sender<()>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

/// Panics when it is dropped, if it is to.
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0.load(Ordering::SeqCst), "a drop");
    }
}

/// Seen to fail: panics of values that the last keyed timer dropped were not counted.
#[test]
fn panics_of_keyed_timers_are_counted_once() {
    let (timer, clock) = by_hand();
    let armed = Arc::new(AtomicBool::new(true));
    let keyed = KeyedTimer::new(&timer, |key: u32, bomb: Bomb| {
        assert!(key != 1, "the callback");
        bomb.0.store(false, Ordering::SeqCst);
    });
    let entry = |seconds| TimerEntry::after(seconds * S, Bomb(Arc::clone(&armed)));
    armed.store(false, Ordering::SeqCst);
    keyed.add(1, entry(1)).unwrap();
    assert_eq!(after(1, &timer, &clock), 1);
    armed.store(true, Ordering::SeqCst);
    (2..5).for_each(|key| assert!(keyed.add(key, entry(100)).is_ok()));
    drop(keyed);
    assert_eq!(timer.stats().panicked, 4);
}

struct Wakes;

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

#[test]
fn panics_of_tasks_and_wakers_are_counted_once() {
    let (timer, clock) = by_hand();
    timer.add(TimerEntry::after(S, || panic!("a task"))).unwrap();
    timer.add(TimerEntry::after(S, Task::from(Waker::from(Arc::new(Wakes))))).unwrap();
    assert_eq!(after(1, &timer, &clock), 2);
}

/// An operation whose drop panics.
struct Fetch(Bomb);

impl DelayedOperation for Fetch {
    fn try_complete(&mut self) -> bool {
        let _ = &self.0;
        false
    }

    fn on_complete(&mut self) {}
}

/// Seen to fail: what a guard or a future drops was reported, and not counted.
#[test]
fn panics_of_what_guards_drop_are_counted() {
    let (timer, _) = by_hand();
    let bomb = || Bomb(Arc::new(AtomicBool::new(true)));
    let purgatory = Purgatory::new(&timer);
    let watch = purgatory.try_complete_else_watch(Fetch(bomb()), S, &[1]).unwrap();
    drop(watch.pending().map(Pending::cancel_on_drop));
    let waits: Purgatory<u32, FutureOperation> = Purgatory::new(&timer);
    let armed = bomb();
    drop(waits.wait(&[1], S, move || std::ptr::eq(&armed, std::ptr::null())).unwrap());
    assert_eq!((purgatory.stats().panicked, waits.stats().panicked), (1, 1));
    let tasks: Timer<Bomb> = Timer::builder().executor(std::mem::forget).build().unwrap();
    drop(tasks.after(S, bomb()).unwrap().cancel_on_drop());
    assert_eq!((tasks.stats().panicked, timer.stats().panicked), (1, 0));
    assert!(timer.is_empty() && tasks.is_empty());
}
