//! The crate nexus-timer: Linux-like levels of 64 slots, single-threaded.

use crate::contender::Contender;
use nexus_timer::{TimerHandle, Wheel};
use std::time::{Duration, Instant};

pub struct Nexus {
    start: Instant,
    wheel: Wheel<u64>,
}

impl Contender for Nexus {
    type Deadline = Instant;
    type Handle = TimerHandle<u64>;

    fn new() -> Self {
        let start = Instant::now();
        Nexus { start, wheel: Wheel::unbounded(4096, start) }
    }

    fn deadline(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms)
    }

    fn add(&mut self, deadline: Instant, task: u64) -> TimerHandle<u64> {
        self.wheel.schedule(deadline, task)
    }

    fn cancel(&mut self, handle: TimerHandle<u64>) -> bool {
        self.wheel.cancel(handle).is_some()
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let (mut count, mut sum) = (0, 0);
        let mut expired = Vec::new();
        for now in 1..=last_ms {
            let now = self.start + Duration::from_millis(now);
            count += self.wheel.poll_and_rebalance(now, &mut expired) as u64;
            sum += expired.drain(..).sum::<u64>();
        }
        (count, sum)
    }
}
