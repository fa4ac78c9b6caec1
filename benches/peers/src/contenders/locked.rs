//! A queue behind a mutex.

use crate::contenders::queue::DeadlineQueue;
use crate::threads::{Expiring, Shared};
use std::sync::Mutex;

#[derive(Default)]
pub struct Locked<Q>(Mutex<Q>);

impl<Q: DeadlineQueue> Shared for Locked<Q> {
    type Deadline = u64;
    type Handle = Q::Handle;

    fn new() -> Self {
        Self::default()
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&self, deadline: u64, task: u64) -> Q::Handle {
        self.0.lock().expect("no panic").add(deadline, task)
    }

    fn cancel(&self, handle: Q::Handle) -> bool {
        self.0.lock().expect("no panic").cancel(handle)
    }
}

impl<Q: DeadlineQueue> Expiring for Locked<Q> {
    fn expire_all(&self, last_ms: u64) -> (u64, u64) {
        let (mut count, mut sum) = (0, 0);
        for now in 1..=last_ms {
            let mut queue = self.0.lock().expect("no panic");
            while queue.pop(now, |task| {
                count += 1;
                sum += task;
            }) {}
        }
        (count, sum)
    }
}
