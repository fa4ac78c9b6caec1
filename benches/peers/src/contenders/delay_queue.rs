//! tokio-util's DelayQueue, on tokio's paused clock: single-threaded, in one task.

use crate::contender::Contender;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue::Key};

pub struct TokioDelayQueue {
    queue: DelayQueue<u64>,
    start: Instant,
    runtime: Runtime,
}

impl Contender for TokioDelayQueue {
    type Deadline = Instant;
    type Handle = Key;

    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let guard = runtime.enter();
        let (queue, start) = (DelayQueue::new(), Instant::now());
        drop(guard);
        TokioDelayQueue { queue, start, runtime }
    }

    fn deadline(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms)
    }

    fn add(&mut self, deadline: Instant, task: u64) -> Key {
        // Entering costs a few nanoseconds; a user's task runs inside the runtime anyway.
        let _guard = self.runtime.enter();
        self.queue.insert_at(task, deadline)
    }

    fn cancel(&mut self, key: Key) -> bool {
        self.queue.try_remove(&key).is_some()
    }

    fn touch(&mut self, key: &Key, deadline: Instant) -> Option<()> {
        self.queue.reset_at(key, deadline);
        Some(())
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let queue = &mut self.queue;
        self.runtime.block_on(unconstrained(async {
            let (mut count, mut sum) = (0, 0);
            for _ in 0..last_ms {
                tokio::time::advance(Duration::from_millis(1)).await;
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
