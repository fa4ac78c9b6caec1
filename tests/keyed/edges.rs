//! What a review found at the edges: the last clone's end, panics, what the executor has already.

use crate::MS;
use std::cell::{Cell, OnceCell};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{ManualClock, Timer, TimerEntry};

const S: Duration = Duration::from_secs(1);

/// "When the last clone is dropped, all are cancelled": also while a key expires elsewhere.
#[test]
fn nothing_expires_after_the_last_clone_was_dropped() {
    let clock = ManualClock::new();
    let timer = Timer::builder().shards(1).clock(clock.clone()).build().unwrap();
    let last: Arc<Mutex<Option<KeyedTimer<u32, u32>>>> = Arc::default();
    let (sender, expired) = channel();
    let (held, inner, hands) = (Arc::clone(&last), timer.downgrade(), clock.clone());
    let keyed = KeyedTimer::new(&timer, move |key, _| {
        sender.send(key).unwrap();
        if key == 1 {
            drop(held.lock().unwrap().take());
            hands.advance(10 * MS);
            inner.upgrade().unwrap().advance_clock(Duration::ZERO);
        }
    });
    keyed.schedule(1, TimerEntry::after(10 * MS, 1_u32)).unwrap();
    keyed.schedule(2, TimerEntry::after(20 * MS, 2_u32)).unwrap();
    *last.lock().unwrap() = Some(keyed);
    clock.advance(10 * MS);
    timer.advance_clock(Duration::ZERO);
    assert_eq!(expired.try_iter().collect::<Vec<_>>(), [1]);
    assert_eq!(timer.len(), 0);
}

#[test]
fn a_key_has_its_permit_until_its_task_runs() {
    let clock = ManualClock::new();
    let (sender, queue) = channel::<tickwheel::Task>();
    let timer = Timer::builder()
        .shards(1)
        .max_pending(1)
        .clock(clock.clone())
        .executor(move |task| sender.send(task).unwrap())
        .build()
        .unwrap();
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    keyed.schedule(1, TimerEntry::after(10 * MS, 1_u32)).unwrap();
    let is_full = || timer.add(TimerEntry::after(S, || ())).is_err();
    clock.advance(10 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(keyed.touch(&1, S) && is_full(), "its task is on its way");
    queue.try_recv().unwrap().run();
    assert!(keyed.contains(&1) && is_full(), "it was extended");
    clock.advance(S);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(is_full() && timer.len() == 1);
    queue.try_recv().unwrap().run();
    assert!(timer.is_empty() && !is_full());
}

#[test]
fn a_key_that_is_taken_out_gives_its_permit_back() {
    type Keyed = KeyedTimer<u32, u32>;
    let timer = Timer::builder().shards(1).max_pending(1).build().unwrap();
    let keyed: Keyed = KeyedTimer::new(&timer, |_, _| ());
    let ways: [fn(&Keyed) -> bool; 5] = [
        |keyed| keyed.cancel(&1) == Some(1),
        |keyed| keyed.cancel_if(&1, |_, _| true) == Some(1),
        |keyed| keyed.take(&1).is_some(),
        |keyed| keyed.find_entry(&1).is_some_and(|entry| entry.cancel() == 1),
        |keyed| keyed.cancel_all().len() == 1,
    ];
    for (number, take_out) in ways.iter().enumerate() {
        keyed.schedule(1, TimerEntry::after(S, 1)).unwrap();
        assert!(keyed.schedule(2, TimerEntry::after(S, 2)).is_err(), "it is full");
        assert!(take_out(&keyed) && timer.is_empty(), "way {number}");
    }
    keyed.schedule(1, TimerEntry::after(S, 1)).unwrap();
    drop(keyed);
    assert!(timer.add(TimerEntry::after(S, || ())).is_ok(), "its keyed timer was dropped");
}

#[test]
fn what_the_executor_has_expires_after_a_shutdown() {
    let clock = ManualClock::new();
    let (sender, queue) = channel::<tickwheel::Task>();
    let builder = Timer::builder().clock(clock.clone());
    let timer = builder.executor(move |task| sender.send(task).unwrap()).build().unwrap();
    let (expire, expired) = channel();
    let keyed = KeyedTimer::new(&timer, move |key: u32, _: u32| expire.send(key).unwrap());
    keyed.schedule(1, TimerEntry::after(10 * MS, 1_u32)).unwrap();
    clock.advance(10 * MS);
    timer.advance_clock(Duration::ZERO);
    assert!(timer.shutdown().is_empty());
    queue.try_iter().for_each(tickwheel::Task::run);
    assert_eq!(expired.try_iter().count(), 1);
}

#[test]
fn a_key_can_be_moved_up_after_a_shutdown_and_expires_no_more() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| panic!("it expires"));
    keyed.schedule(1, TimerEntry::after(20 * MS, 1_u32)).unwrap();
    let soon = timer.now() + 10 * MS;
    assert!(timer.shutdown().is_empty());
    assert!(keyed.reschedule_at(&1, soon));
    assert_eq!(keyed.deadline(&1), Some(soon));
    clock.advance(30 * MS);
    assert_eq!((timer.advance_clock(Duration::ZERO), timer.stats().panicked), (0, 0));
    timer.assert_invariants();
    assert_eq!(keyed.cancel(&1), Some(1));
}

thread_local! {
    /// What the drop of a key looks at, and how often it did.
    static LOOKED_AT: OnceCell<KeyedTimer<Curious, u32>> = const { OnceCell::new() };
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

#[derive(PartialEq, Eq, Hash)]
struct Curious(u32);

impl Drop for Curious {
    fn drop(&mut self) {
        // At the end of the thread there is nothing to look at any more.
        let looked = LOOKED_AT.try_with(|keyed| keyed.get().map(KeyedTimer::len));
        LOOKS.set(LOOKS.get() + u32::from(looked.is_ok_and(|len| len.is_some())));
    }
}

/// Seen to fail: keys that were refused, or were there already, were dropped under the lock.
#[test]
fn a_keys_drop_may_use_the_keyed_timer() {
    let timer = Timer::builder().clock(ManualClock::new()).max_pending(1).build().unwrap();
    let keyed = KeyedTimer::new(&timer, |_: Curious, _: u32| ());
    LOOKED_AT.with(|looked_at| assert!(looked_at.set(keyed.clone()).is_ok()));
    let entry = || TimerEntry::after(S, 1_u32);
    assert!(keyed.schedule(Curious(1), entry()).unwrap().is_none());
    assert_eq!(keyed.schedule(Curious(1), entry()).unwrap(), Some(1));
    assert!(keyed.schedule(Curious(2), entry()).is_err());
    assert!(keyed.schedule_if_absent(Curious(1), entry()).unwrap().is_some());
    assert!(keyed.schedule_if_absent(Curious(2), entry()).is_err());
    drop(keyed.entry(Curious(2)));
    assert_eq!(LOOKS.get(), 5, "each but the first one, which is there");
    let Entry::Occupied(occupied) = keyed.entry(Curious(1)) else { unreachable!("it is there") };
    assert_eq!((occupied.cancel(), LOOKS.get()), (1, 7));
}
