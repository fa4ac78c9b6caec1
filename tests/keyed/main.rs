//! The behaviour of `KeyedTimer`, in virtual time.

#[path = "../common/delta.rs"]
mod delta;
mod edges;
mod entries;
mod held;
#[path = "../common/idle.rs"]
mod idle;
mod model;
mod owners;
#[path = "../common/quick.rs"]
mod quick;
mod steps;
#[path = "../common/times.rs"]
mod times;
mod visits;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{AddError, ManualClock, Task, Timer, TimerBuilder, TimerEntry};

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
        let builder = Timer::builder().shards(1).clock(clock.clone());
        let timer = options(builder).build().expect("the options are in their ranges");
        let (sender, expired) = channel();
        let keyed = KeyedTimer::new(&timer, move |key, task| {
            sender.send((key, task)).expect("the fixture lives");
        });
        Fixture { keyed, timer, clock, expired }
    }

    /// Schedules a task that nothing refuses; the one that it replaces.
    pub(crate) fn schedule(&self, key: u32, delay: Duration, task: u32) -> Option<u32> {
        self.keyed.schedule(key, TimerEntry::after(delay, task)).expect("there is room")
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

#[test]
fn a_key_is_found_in_any_form_that_it_can_be_borrowed_as() {
    let fixture = Fixture::new();
    let keyed = KeyedTimer::new(&fixture.timer, |_: String, _: u32| ());
    keyed.schedule("ada".to_owned(), TimerEntry::after(MS, 1)).unwrap();
    assert!(keyed.contains("ada") && !keyed.contains("bob"));
    assert!(keyed.touch("ada", 2 * MS) && keyed.reschedule("ada", 3 * MS));
    assert_eq!(keyed.deadline("ada"), Some(fixture.clock.now() + 3 * MS));
    assert_eq!(keyed.cancel("ada"), Some(1));
}

#[test]
fn a_task_that_schedules_its_own_key_keeps_it() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let (sender, again) = channel::<KeyedTimer<u32, u32>>();
    let again = std::sync::Mutex::new(again);
    let keyed = KeyedTimer::new(&timer, move |key, run: u32| {
        let keyed = again.lock().unwrap().try_recv().expect("one for each run");
        keyed.schedule(key, TimerEntry::after(MS, run + 1)).unwrap();
    });
    for run in 0..5 {
        if run == 0 {
            keyed.schedule(7, TimerEntry::after(MS, 0)).unwrap();
        }
        sender.send(keyed.clone()).unwrap();
        clock.advance(MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert!(keyed.contains(&7));
    }
    assert_eq!(keyed.cancel(&7), Some(5));
}

/// Between a timer's expiry and its task there may be a queue.
#[test]
fn what_is_replaced_or_cancelled_on_its_way_to_the_executor_does_not_expire() {
    let clock = ManualClock::new();
    let (sender, queue) = channel::<Task>();
    let executor = move |task| sender.send(task).expect("the queue lives");
    let timer = Timer::builder().clock(clock.clone()).executor(executor).build().unwrap();
    let (sender, expired) = channel();
    let keyed = KeyedTimer::new(&timer, move |key: u32, task: u32| {
        sender.send((key, task)).expect("the test lives");
    });
    for key in 1..=4 {
        keyed.schedule(key, TimerEntry::after(MS, key)).unwrap();
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 4);
    assert_eq!(keyed.schedule(1, TimerEntry::after(MS, 11)).unwrap(), Some(1));
    assert_eq!(keyed.cancel(&2), Some(2));
    assert!(keyed.touch(&4, 2 * MS), "just in time");
    queue.try_iter().for_each(Task::run);
    assert_eq!(expired.try_iter().collect::<Vec<_>>(), [(3, 3)]);
    assert!(keyed.contains(&1) && keyed.contains(&4) && keyed.len() == 2);
    for (turns, key) in [(1, (1, 11)), (1, (4, 4))] {
        clock.advance(MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), turns);
        queue.try_iter().for_each(Task::run);
        assert_eq!(expired.try_iter().collect::<Vec<_>>(), [key]);
    }
}

/// Its alarm goes off at the former deadline, and finds the later one.
#[test]
fn a_touched_key_costs_the_timer_nothing_until_its_former_deadline() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    fixture.schedule(1, 10 * MS, 1);
    for _ in 0..100 {
        assert!(fixture.keyed.touch(&1, 15 * MS) && fixture.keyed.touch(&1, MS));
    }
    assert!(fixture.keyed.reschedule(&1, 20 * MS));
    let stats = fixture.timer.stats();
    assert_eq!((stats.added, stats.rescheduled), (1, 2), "what did not extend it does not count");
    assert_eq!(fixture.advance(19 * MS), []);
    // It goes on, also where the timer is full; and may still become earlier.
    assert!(fixture.keyed.reschedule(&1, HOUR) && fixture.keyed.reschedule(&1, MS));
    assert_eq!(fixture.advance(MS), [(1, 1)]);
    assert_eq!(fixture.schedule(2, MS, 2), None, "the permit is back, once");
    let full = fixture.keyed.schedule(3, TimerEntry::after(MS, 3));
    assert!(matches!(full, Err(AddError::Full(_))));
}

#[test]
fn after_a_shutdown_of_the_timer_nothing_expires_and_everything_can_be_taken() {
    let fixture = Fixture::new();
    for key in 1..=3 {
        fixture.schedule(key, MS * key, key);
    }
    assert!(fixture.keyed.touch(&1, 2 * MS));
    let alarms = fixture.timer.shutdown();
    assert!(matches!(
        fixture.keyed.schedule(1, TimerEntry::after(MS, 9)),
        Err(AddError::Shutdown(_))
    ));
    fixture.clock.advance(MS);
    alarms.into_iter().map(TimerEntry::into_task).for_each(Task::run);
    assert_eq!(fixture.advance(HOUR), [], "whose time was not up");
    let mut left = fixture.keyed.cancel_all();
    left.sort_unstable();
    assert_eq!(left, [(1, 1), (2, 2), (3, 3)]);
}
