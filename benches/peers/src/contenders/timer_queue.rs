//! The crate timer-queue: 11 levels of 64 slots, single-threaded.

use crate::contender::Contender;

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
        let (mut count, mut sum) = (0, 0);
        for now in 1..=last_ms {
            while let Some(task) = self.0.poll(now) {
                count += 1;
                sum += task;
            }
        }
        (count, sum)
    }
}
