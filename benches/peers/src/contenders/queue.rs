//! tickwheel's keyed queue: as a timer whose handles are keys, on a clock that the work moves, and
//! as a map from keys to timers, on the system's clock.

use crate::keyed::{Keyed, Threads};
use crate::work::Contender;
use std::future::pending;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tickwheel::{Clock, ManualClock, SystemClock, queue};

type Queue = queue::KeyedQueue<u64, u64>;

pub struct KeyedQueue {
    queue: Queue,
    clock: ManualClock,
    start: Instant,
    next: u64,
}

/// Returns a queue that is polled only when something is due.
fn queue(clock: impl Into<Clock>) -> Queue {
    queue::KeyedQueue::new(clock, |_| pending::<()>())
}

impl Contender for KeyedQueue {
    type Deadline = Instant;
    type Handle = u64;

    fn new() -> Self {
        let clock = ManualClock::new();
        KeyedQueue {
            queue: queue(clock.clone()),
            start: clock.now(),
            clock,
            next: 0,
        }
    }

    fn deadline(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms)
    }

    fn add(&mut self, deadline: Instant, task: u64) -> u64 {
        self.next += 1;
        self.queue.insert(self.next, deadline, task);
        self.next
    }

    fn cancel(&mut self, key: u64) -> bool {
        self.queue.remove(&key).is_some()
    }

    fn touch(&mut self, key: &u64, deadline: Instant) -> Option<()> {
        self.queue.reschedule(key, deadline).then_some(())
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let mut count = 0;
        let mut sum = 0;
        let mut context = Context::from_waker(Waker::noop());
        for _ in 1..=last_ms {
            self.clock.advance(Duration::from_millis(1));
            while let Poll::Ready(Some(expired)) = self.queue.poll_expired(&mut context) {
                count += 1;
                sum += expired.value;
            }
        }
        (count, sum)
    }
}

/// The same on the system's clock.
pub struct OnSystemClock {
    queue: Queue,
    start: Instant,
}

impl Keyed for OnSystemClock {
    type Deadline = Instant;
    type Runner = Threads;

    fn new() -> Self {
        OnSystemClock {
            queue: queue(SystemClock),
            start: Instant::now(),
        }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        self.queue.insert(key, deadline, task).is_none()
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        self.queue.touch(&key, deadline)
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        self.queue.remove(&key)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
