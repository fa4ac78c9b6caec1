//! The behaviour of `KeyedTimer`, in virtual time.

#[path = "../common/busy.rs"]
mod busy;
#[path = "../common/delta.rs"]
mod delta;
mod due;
mod entries;
mod flushed;
mod held;
#[path = "../common/idle.rs"]
mod idle;
mod model;
mod owners;
#[path = "../common/quick.rs"]
mod quick;
#[path = "../common/times.rs"]
mod times;
#[cfg(debug_assertions)]
#[path = "../common/calls.rs"]
mod calls;

use std::cell::{Cell, OnceCell};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{AddError, ManualClock, Timer, TimerBuilder, TimerEntry};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Keyed timers of numbers on a manual clock, and what has expired.
pub(crate) struct Fixture {
    pub(crate) keyed: KeyedTimer<u32, u32>,
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
    expired: Receiver<(u32, u32)>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(options: impl FnOnce(TimerBuilder) -> TimerBuilder) -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().shards(2).clock(clock.clone());
        let timer = options(builder)
            .build()
            .expect("the options are in their ranges");
        let (sender, expired) = channel();
        let keyed = KeyedTimer::new(&timer, move |key, task| {
            sender.send((key, task)).expect("the fixture lives");
        });
        Fixture {
            keyed,
            timer,
            clock,
            expired,
        }
    }

    /// Schedules a task that nothing refuses; the one that it replaces.
    pub(crate) fn schedule(&self, key: u32, delay: Duration, task: u32) -> Option<u32> {
        self.keyed.add(key, delay, task).expect("there is room")
    }

    /// Returns the keys that expire when the clock is moved by `step`.
    pub(crate) fn advance(&self, step: Duration) -> Vec<(u32, u32)> {
        self.clock.advance(step);
        self.timer.advance_clock(Duration::ZERO);
        self.keyed.assert_invariants();
        self.timer.assert_invariants();
        self.expired.try_iter().collect()
    }
}

/// Such a closure names its result: stable Rust has no name for `!` as a type.
#[test]
fn a_closure_may_only_panic() {
    let fixture = Fixture::new();
    let keyed: KeyedTimer<u32, u32> =
        KeyedTimer::new(&fixture.timer, |_, _| -> () { panic!("contained") });
    let timer: Timer<u32> = Timer::builder()
        .clock(fixture.clock.clone())
        .executor(|_| -> () { panic!("contained") })
        .build()
        .unwrap();
    timer.after(MS, 1_u32).unwrap();
    keyed.add(1, MS, 1_u32).unwrap();
    fixture.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let panicked = (timer.stats().panicked, fixture.timer.stats().panicked);
    assert_eq!(panicked, (1, 1));
}

#[test]
fn a_key_is_found_in_any_form_that_it_can_be_borrowed_as() {
    let fixture = Fixture::new();
    let keyed = KeyedTimer::new(&fixture.timer, |_: String, _: u32| ());
    keyed.add("ada".to_owned(), MS, 1).unwrap();
    assert!(keyed.contains("ada") && !keyed.contains("bob"));
    assert!(keyed.touch("ada", 2 * MS) && keyed.reschedule("ada", 3 * MS));
    assert_eq!(keyed.deadline("ada"), Some(fixture.clock.now() + 3 * MS));
    assert_eq!(keyed.find("ada").map(|entry| entry.cancel()), Some(1));
    assert_eq!(keyed.cancel("ada"), None);
}

#[test]
fn a_task_that_schedules_its_own_key_keeps_it() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let (sender, again) = channel::<KeyedTimer<u32, u32>>();
    let again = std::sync::Mutex::new(again);
    let keyed = KeyedTimer::new(&timer, move |key, run: u32| {
        let keyed = again.lock().unwrap().try_recv().expect("one for each run");
        keyed.add(key, MS, run + 1).unwrap();
    });
    for run in 0..5 {
        if run == 0 {
            keyed.add(7, MS, 0).unwrap();
        }
        sender.send(keyed.clone()).unwrap();
        clock.advance(MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert!(keyed.contains(&7));
    }
    assert_eq!(keyed.cancel(&7), Some(5));
}

/// It is filed again at its former deadline.
#[test]
fn a_touched_key_costs_the_timer_nothing_until_its_former_deadline() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    fixture.schedule(1, 10 * MS, 1);
    for _ in 0..100 {
        assert!(fixture.keyed.touch(&1, 15 * MS) && fixture.keyed.touch(&1, MS));
    }
    assert!(fixture.keyed.reschedule(&1, 20 * MS));
    let stats = fixture.timer.stats();
    assert_eq!(
        (stats.added, stats.rescheduled),
        (1, 2),
        "what did not extend it does not count"
    );
    assert_eq!(fixture.advance(19 * MS), []);
    // It goes on, also where the timer is full; and may still become earlier.
    assert!(fixture.keyed.reschedule(&1, HOUR) && fixture.keyed.reschedule(&1, MS));
    assert_eq!(fixture.advance(MS), [(1, 1)]);
    assert_eq!(fixture.schedule(2, MS, 2), None, "the permit is back, once");
    let full = fixture.keyed.add(3, MS, 3);
    assert!(matches!(full, Err(AddError::Full(_))));
}

#[test]
fn after_a_shutdown_of_the_timer_nothing_expires_or_moves_and_everything_can_be_taken() {
    let fixture = Fixture::new();
    for key in 1..=3 {
        fixture.schedule(key, 10 * MS * key, key);
    }
    assert!(fixture.timer.shutdown().is_empty());
    let refused = fixture.keyed.add(1, MS, 9);
    assert!(matches!(refused, Err(AddError::Shutdown(_))));
    let keyed = &fixture.keyed;
    let before = keyed.deadline(&1);
    let moves = [
        keyed.touch(&1, HOUR),
        keyed.touch_if(&1, HOUR, |_, _| true),
        keyed.hasten(&1, MS),
        keyed.reschedule(&1, HOUR),
    ];
    assert_eq!(moves, [false; 4], "as a handle's");
    let mut entry = keyed.find(&1).unwrap();
    entry.touch(HOUR);
    entry.hasten(MS);
    entry.reschedule(HOUR);
    assert_eq!(entry.deadline(), before);
    drop(entry);
    assert_eq!(fixture.advance(HOUR), []);
    let mut left = fixture.keyed.cancel_all();
    left.sort_unstable();
    assert_eq!(left, [(1, 1), (2, 2), (3, 3)]);
}

const S: Duration = Duration::from_secs(1);

/// "When the last clone is dropped, all are cancelled": also while a key expires elsewhere.
#[test]
fn nothing_expires_after_the_last_clone_was_dropped() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .shards(2)
        .clock(clock.clone())
        .build()
        .unwrap();
    let last: Arc<Mutex<Option<KeyedTimer<u32, u32>>>> = Arc::default();
    let (sender, expired) = channel();
    let held = Arc::clone(&last);
    let inner = timer.downgrade();
    let hands = clock.clone();
    let keyed = KeyedTimer::new(&timer, move |key, _| {
        sender.send(key).unwrap();
        if key == 1 {
            drop(held.lock().unwrap().take());
            hands.advance(10 * MS);
            inner.upgrade().unwrap().advance_clock(Duration::ZERO);
        }
    });
    keyed.add(1, 10 * MS, 1_u32).unwrap();
    keyed.add(2, 20 * MS, 2_u32).unwrap();
    *last.lock().unwrap() = Some(keyed);
    clock.advance(10 * MS);
    timer.advance_clock(Duration::ZERO);
    assert_eq!(expired.try_iter().collect::<Vec<_>>(), [1]);
    assert_eq!(timer.len(), 0);
}

#[test]
fn a_key_that_is_taken_out_gives_its_permit_back() {
    type Keyed = KeyedTimer<u32, u32>;
    let timer = Timer::builder().shards(1).max_pending(1).build().unwrap();
    let keyed: Keyed = KeyedTimer::new(&timer, |_, _| ());
    let ways: [fn(&Keyed) -> bool; 4] = [
        |keyed| keyed.cancel(&1) == Some(1),
        |keyed| keyed.cancel_if(&1, |_, _| true) == Some(1),
        |keyed| keyed.find(&1).is_some_and(|entry| entry.cancel() == 1),
        |keyed| keyed.cancel_all().len() == 1,
    ];
    for (number, take_out) in ways.iter().enumerate() {
        keyed.add(1, S, 1).unwrap();
        assert!(keyed.add(2, S, 2).is_err(), "it is full");
        assert!(take_out(&keyed) && timer.is_empty(), "way {number}");
    }
    keyed.add(1, S, 1).unwrap();
    drop(keyed);
    assert!(
        timer.add(TimerEntry::after(S, || ())).is_ok(),
        "its keyed timer was dropped"
    );
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
    let timer = Timer::builder()
        .clock(ManualClock::new())
        .max_pending(1)
        .build()
        .unwrap();
    let keyed = KeyedTimer::new(&timer, |_: Curious, _: u32| ());
    LOOKED_AT.with(|looked_at| assert!(looked_at.set(keyed.clone()).is_ok()));
    assert!(keyed.add(Curious(1), S, 1_u32).unwrap().is_none());
    assert_eq!(keyed.add(Curious(1), S, 1_u32).unwrap(), Some(1));
    assert!(keyed.add(Curious(2), S, 1_u32).is_err());
    let Entry::Vacant(vacant) = keyed.entry(Curious(2)) else {
        unreachable!("it is full")
    };
    assert!(vacant.add(S, 1_u32).is_err());
    drop(keyed.entry(Curious(2)));
    assert_eq!(LOOKS.get(), 4, "each but the first one, which is there");
    let Entry::Occupied(occupied) = keyed.entry(Curious(1)) else {
        unreachable!("it is there")
    };
    assert_eq!((occupied.cancel(), LOOKS.get()), (1, 6));
}
