//! The scene: the time in which a scenario plays, and a diary of what happens.

use crate::Outcome;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{BuildError, ManualClock, Timer, TimerBuilder};

#[derive(Clone)]
pub(crate) struct Scene {
    /// `None` in real time.
    clock: Option<ManualClock>,
    start: Instant,
    diary: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Scene {
    pub(crate) fn in_real_time() -> Self {
        Scene { clock: None, start: Instant::now(), diary: Arc::default() }
    }

    pub(crate) fn in_virtual_time() -> Self {
        let clock = ManualClock::new();
        Scene { start: clock.now(), clock: Some(clock), diary: Arc::default() }
    }

    /// Starts a timer that runs while the scene [waits](Self::wait_until).
    pub(crate) fn start<T: Send>(&self, builder: TimerBuilder<T>) -> Result<Timer<T>, BuildError> {
        match &self.clock {
            None => builder.start(),
            Some(clock) => builder.clock(clock.clone()).build(),
        }
    }

    /// Lets the time pass until so many milliseconds after the start.
    pub(crate) fn wait_until<T: Send>(&self, timer: &Timer<T>, after_ms: u64) {
        let end = self.start + Duration::from_millis(after_ms);
        let Some(clock) = &self.clock else {
            return thread::sleep(end.saturating_duration_since(Instant::now()));
        };
        while let Some(next) = timer.next_expiration().filter(|next| *next <= end) {
            clock.advance_to(next);
            timer.advance_clock(Duration::ZERO);
        }
        clock.advance_to(end);
    }

    /// Writes into the diary what happens now.
    pub(crate) fn tell(&self, what: impl Into<String>) {
        let now = self.clock.as_ref().map_or_else(Instant::now, ManualClock::now);
        let (after, what) = (now.saturating_duration_since(self.start), what.into());
        print(&format!("{:8.1} ms  {what}", after.as_secs_f64() * 1000.0));
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.diary.lock().unwrap().push((after_ms, what));
    }

    pub(crate) fn went_as(&self, outcome: &Outcome) -> bool {
        let diary = self.diary.lock().unwrap();
        diary.iter().map(|(after_ms, what)| (*after_ms, what.as_str())).eq(outcome.iter().copied())
    }
}

/// Prints a line on stdout. A closed one is no reason to stop: the exit status tells all the same.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
