//! Other crates' timers, single-threaded: tokio-util's DelayQueue on tokio's paused clock,
//! hierarchical_hash_wheel_timer, and two with levels of 64 slots.

use crate::work::Contender;
use hierarchical_hash_wheel_timer::wheels::TimerEntryWithDelay;
use hierarchical_hash_wheel_timer::wheels::cancellable::{
    CancellableTimerEntry, QuadWheelWithOverflow,
};
use nexus_timer::{TimerHandle, Wheel};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::coop::unconstrained;
use tokio::time;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

pub struct TokioDelayQueue {
    queue: DelayQueue<u64>,
    start: time::Instant,
    runtime: Runtime,
}

impl Contender for TokioDelayQueue {
    type Deadline = time::Instant;
    type Handle = Key;

    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("a runtime");
        let guard = runtime.enter();
        let queue = DelayQueue::new();
        let start = time::Instant::now();
        drop(guard);
        TokioDelayQueue {
            queue,
            start,
            runtime,
        }
    }

    fn deadline(&self, at_ms: u64) -> time::Instant {
        self.start + Duration::from_millis(at_ms)
    }

    fn add(&mut self, deadline: time::Instant, task: u64) -> Key {
        // Entering costs a few nanoseconds; a user's task runs inside the runtime anyway.
        let _guard = self.runtime.enter();
        self.queue.insert_at(task, deadline)
    }

    fn cancel(&mut self, key: Key) -> bool {
        self.queue.try_remove(&key).is_some()
    }

    fn touch(&mut self, key: &Key, deadline: time::Instant) -> Option<()> {
        self.queue.reset_at(key, deadline);
        Some(())
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let queue = &mut self.queue;
        self.runtime.block_on(unconstrained(async {
            let mut count = 0;
            let mut sum = 0;
            for _ in 0..last_ms {
                time::advance(Duration::from_millis(1)).await;
                poll_fn(|_| {
                    let mut context = Context::from_waker(Waker::noop());
                    while let Poll::Ready(Some(expired)) = queue.poll_expired(&mut context) {
                        count += 1;
                        sum += expired.into_inner();
                    }
                    Poll::Ready(())
                })
                .await;
            }
            (count, sum)
        }))
    }
}

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
        HashWheel {
            wheel: QuadWheelWithOverflow::new(),
            next_id: 0,
        }
    }

    /// Returns a delay, counted from the wheel's present, which is 0 whenever something is added
    /// here.
    fn deadline(&self, at_ms: u64) -> Duration {
        Duration::from_millis(at_ms)
    }

    fn add(&mut self, delay: Duration, task: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.wheel
            .insert(Entry { id, task, delay })
            .expect("the delay is not zero");
        id
    }

    fn cancel(&mut self, id: u64) -> bool {
        self.wheel.cancel(&id).is_ok()
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let mut count = 0;
        let mut sum = 0;
        for _ in 0..last_ms {
            for entry in self.wheel.tick() {
                count += 1;
                sum += entry.task;
            }
        }
        (count, sum)
    }
}

pub struct Nexus {
    start: Instant,
    wheel: Wheel<u64>,
}

impl Contender for Nexus {
    type Deadline = Instant;
    type Handle = TimerHandle<u64>;

    fn new() -> Self {
        let start = Instant::now();
        Nexus {
            start,
            wheel: Wheel::unbounded(4096, start),
        }
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
        let mut count = 0;
        let mut sum = 0;
        let mut expired = Vec::new();
        for now in 1..=last_ms {
            let now = self.start + Duration::from_millis(now);
            count += self.wheel.poll_and_rebalance(now, &mut expired) as u64;
            sum += expired.drain(..).sum::<u64>();
        }
        (count, sum)
    }
}

pub struct Queue(timer_queue::TimerQueue<u64>);

impl Contender for Queue {
    type Deadline = u64;
    type Handle = timer_queue::Timer;

    fn new() -> Self {
        Queue(timer_queue::TimerQueue::new())
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&mut self, deadline: u64, task: u64) -> timer_queue::Timer {
        self.0.insert(deadline, task)
    }

    fn cancel(&mut self, handle: timer_queue::Timer) -> bool {
        self.0.remove(handle);
        true
    }

    fn touch(&mut self, handle: &timer_queue::Timer, deadline: u64) -> Option<()> {
        self.0.reset(*handle, deadline);
        Some(())
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let mut count = 0;
        let mut sum = 0;
        for now in 1..=last_ms {
            while let Some(task) = self.0.poll(now) {
                count += 1;
                sum += task;
            }
        }
        (count, sum)
    }
}
