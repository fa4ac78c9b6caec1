//! tickwheel's keyed timers, as a service has them: on the system's clock, with the reaper running.

use crate::keyed::Keyed;
use crate::runner::Threads;
use std::hint::black_box;
use std::time::{Duration, Instant};
use tickwheel::{Timer, TimerEntry};

#[derive(Clone)]
pub struct KeyedTimer {
    timer: Timer,
    keyed: tickwheel::keyed::KeyedTimer<u64, u64>,
    start: Instant,
}

impl Keyed for KeyedTimer {
    type Deadline = Instant;
    type Runner = Threads;

    fn new() -> Self {
        let timer = Timer::builder().start().expect("a thread");
        let expired = |key, task| {
            black_box((key, task));
        };
        let keyed = tickwheel::keyed::KeyedTimer::new(&timer, expired);
        KeyedTimer { timer, keyed, start: Instant::now() }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        let former = self.keyed.schedule(key, TimerEntry::at(deadline, task));
        former.expect("there is no limit").is_none()
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        self.keyed.touch_at(&key, deadline)
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        self.keyed.cancel(&key)
    }

    fn len(&self) -> usize {
        self.timer.len()
    }
}
