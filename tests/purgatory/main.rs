//! The behaviour of `Purgatory`, one rule of its documentation per test. Time is a `ManualClock`.

mod all;
#[path = "../common/busy.rs"]
mod busy;
mod chains;
mod expiry;
mod futures;
mod holders;
mod model;
mod naive;
mod nesting;
mod panics;
#[path = "../common/quick.rs"]
mod quick;
mod reentrancy;
mod script;
mod shutdown;
mod stages;
#[path = "../common/wakes.rs"]
mod wakes;
mod watch;

use reentrancy::hand;
use script::{Log, Script, What};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory, Watch};
use tickwheel::{ManualClock, Task, Timer, TimerBuilder};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A purgatory, its timer, and what the code of scripted operations wrote down.
pub(crate) struct Fixture<O: DelayedOperation = Script> {
    pub(crate) purgatory: Purgatory<u32, O>,
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
    pub(crate) log: Log,
}

impl<O: DelayedOperation> Fixture<O> {
    pub(crate) fn with(options: impl FnOnce(TimerBuilder<Task>) -> TimerBuilder<Task>) -> Self {
        let clock = ManualClock::new();
        let builder = options(Timer::builder().shards(2).clock(clock.clone()));
        let timer = builder.build().expect("the options are in their ranges");
        let purgatory = Purgatory::new(&timer);
        Fixture {
            purgatory,
            timer,
            clock,
            log: Log::default(),
        }
    }

    /// Returns the calls when the clock is moved by `step`, without the checks.
    pub(crate) fn advance(&self, step: Duration) -> Vec<(What, u32)> {
        self.clock.advance(step);
        self.timer.advance_clock(Duration::ZERO);
        self.purgatory.assert_invariants();
        self.log.ends()
    }

    /// Returns how many entries are watched, operations delayed, and timers pending.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        self.purgatory.assert_invariants();
        self.timer.assert_invariants();
        (
            self.purgatory.stats().watched,
            self.purgatory.len(),
            self.timer.len(),
        )
    }

    /// Asserts that no key and no timer is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.counts(), (0, 0, 0), "watched, delayed, timers");
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// Returns an operation whose condition never holds.
    pub(crate) fn script(&self, id: u32) -> Script {
        Script::new(id, &self.log)
    }

    /// Watches an operation that has to wait.
    pub(crate) fn watch(&self, script: Script, keys: &[u32]) -> Pending<u32, Script> {
        self.watch_for(HOUR, script, keys)
    }

    pub(crate) fn watch_for(
        &self,
        timeout: Duration,
        script: Script,
        keys: &[u32],
    ) -> Pending<u32, Script> {
        match self
            .purgatory
            .try_complete_else_watch(script, timeout, keys)
        {
            Ok(Watch::Pending(pending)) => pending,
            other => panic!("it has to wait: {other:?}"),
        }
    }

    /// Watches an operation that cancels itself in its next check.
    pub(crate) fn watch_cancelling(&self, script: Script, keys: &[u32]) {
        let (own, handle) = hand::<Pending<u32, Script>>();
        let cancels = |own: Pending<_, _>| own.cancel().into_operation().is_some();
        let script = script.when(move || own.lock().unwrap().take().is_some_and(cancels));
        *handle.lock().unwrap() = Some(self.watch(script, keys));
    }
}
