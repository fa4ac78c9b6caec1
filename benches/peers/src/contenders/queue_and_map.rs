//! tokio-util's DelayQueue of keys, and a map from key to task: single-threaded, in one task.

use crate::keyed::Keyed;
use crate::tokio_runner::Tokio;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue::Key};

pub struct QueueAndMap {
    queue: DelayQueue<u64>,
    map: HashMap<u64, (u64, Key)>,
    start: Instant,
}

impl Keyed for QueueAndMap {
    type Deadline = Instant;
    type Runner = Tokio;

    fn new() -> Self {
        QueueAndMap { queue: DelayQueue::new(), map: HashMap::new(), start: Instant::now() }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        match self.map.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert((task, self.queue.insert_at(key, deadline)));
                true
            }
            Entry::Occupied(mut occupied) => {
                self.queue.reset_at(&occupied.get().1, deadline);
                occupied.get_mut().0 = task;
                false
            }
        }
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        let found = self.map.get(&key);
        found.map(|(_, timer)| self.queue.reset_at(timer, deadline)).is_some()
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        let (task, timer) = self.map.remove(&key)?;
        self.queue.try_remove(&timer)?;
        Some(task)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
