//! The behaviour of `Timer`, one rule of its documentation per test. Time is a `ManualClock`.

mod deadlines;
mod figures;
mod hand;
mod handles;
mod listener;
#[path = "../common/idle.rs"]
mod idle;
mod local;
mod shutdown;
mod tasks;
mod ticks;
#[path = "../common/calls.rs"]
mod calls;
#[path = "../common/wakes.rs"]
mod wakes;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tickwheel::{ManualClock, Task, Timeout, Timer, TimerBuilder, TimerEntry};

pub(crate) const NS: Duration = Duration::from_nanos(1);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A timer of numbers on a manual clock, and what has expired.
pub(crate) struct Fixture {
    pub(crate) timer: Timer<u32>,
    pub(crate) clock: ManualClock,
    expired: Receiver<u32>,
}

impl Fixture {
    /// Creates a timer with a tick of a millisecond and one shard.
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(options: impl FnOnce(TimerBuilder<Task>) -> TimerBuilder<Task>) -> Self {
        let clock = ManualClock::new();
        let (sender, expired) = channel();
        let builder = options(Timer::builder().shards(1).clock(clock.clone()));
        let executor = move |id: u32| sender.send(id).expect("the fixture lives");
        let timer = builder
            .executor(executor)
            .build()
            .expect("the options are in their ranges");
        Fixture {
            timer,
            clock,
            expired,
        }
    }

    pub(crate) fn after(&self, delay: Duration, id: u32) -> Timeout<u32> {
        self.timer
            .add(TimerEntry::after(delay, id))
            .expect("there is room")
    }

    /// Returns the tasks that expire when the clock is moved by `step`.
    pub(crate) fn advance(&self, step: Duration) -> Vec<u32> {
        self.clock.advance(step);
        let count = self.timer.advance_clock(Duration::ZERO);
        let expired: Vec<u32> = self.expired.try_iter().collect();
        assert_eq!(count, expired.len(), "the tasks that advance_clock counts");
        self.timer.assert_invariants();
        expired
    }
}

/// Returns a timer of closures on a manual clock.
pub(crate) fn closures() -> (Timer, ManualClock) {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .shards(2)
        .clock(clock.clone())
        .build()
        .expect("in range");
    (timer, clock)
}
