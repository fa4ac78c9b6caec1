//! The scene: the virtual time in which a job plays, and a diary of what happens.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{BuildError, ManualClock, Timer, TimerBuilder};

#[derive(Clone, Default)]
pub(crate) struct Scene {
    clock: ManualClock,
    after_ms: Arc<Mutex<u64>>,
    diary: Arc<Mutex<String>>,
}

impl Scene {
    /// Builds a timer that runs while the scene [waits](Self::wait_until).
    pub(crate) fn timer<T: Send>(&self, builder: TimerBuilder<T>) -> Result<Timer<T>, BuildError> {
        builder.clock(self.clock.clone()).build()
    }

    /// Lets the time pass until so many milliseconds after the start.
    pub(crate) fn wait_until<T: Send>(&self, timer: &Timer<T>, after_ms: u64) {
        timer.advance_clock(Duration::ZERO);
        while *self.after_ms.lock().unwrap() < after_ms {
            *self.after_ms.lock().unwrap() += 1;
            self.clock.advance(Duration::from_millis(1));
            timer.advance_clock(Duration::ZERO);
        }
    }

    /// Writes into the diary what happens now.
    pub(crate) fn tell(&self, what: &str) {
        let line = format!("{} ms  {what}\n", self.after_ms.lock().unwrap());
        self.diary.lock().unwrap().push_str(&line);
    }

    pub(crate) fn diary(&self) -> String {
        self.diary.lock().unwrap().clone()
    }
}
