//! The crate hierarchical_hash_wheel_timer: its cancellable wheel, single-threaded.

use crate::contender::Contender;
use hierarchical_hash_wheel_timer::wheels::TimerEntryWithDelay;
use hierarchical_hash_wheel_timer::wheels::cancellable::{
    CancellableTimerEntry, QuadWheelWithOverflow,
};
use std::time::Duration;

#[derive(Debug)]
struct Entry {
    id: u64,
    task: u64,
    delay: Duration,
}

impl CancellableTimerEntry for Entry {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.id
    }
}

impl TimerEntryWithDelay for Entry {
    fn delay(&self) -> Duration {
        self.delay
    }
}

pub struct HashWheel {
    wheel: QuadWheelWithOverflow<Entry>,
    next_id: u64,
}

impl Contender for HashWheel {
    type Deadline = Duration;
    type Handle = u64;

    fn new() -> Self {
        HashWheel { wheel: QuadWheelWithOverflow::new(), next_id: 0 }
    }

    /// Returns a delay, counted from the wheel's present, which is 0 whenever something is added
    /// here.
    fn deadline(&self, at_ms: u64) -> Duration {
        Duration::from_millis(at_ms)
    }

    fn add(&mut self, delay: Duration, task: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.wheel.insert(Entry { id, task, delay }).expect("the delay is not zero");
        id
    }

    fn cancel(&mut self, id: u64) -> bool {
        self.wheel.cancel(&id).is_ok()
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let (mut count, mut sum) = (0, 0);
        for _ in 0..last_ms {
            for entry in self.wheel.tick() {
                count += 1;
                sum += entry.task;
            }
        }
        (count, sum)
    }
}
