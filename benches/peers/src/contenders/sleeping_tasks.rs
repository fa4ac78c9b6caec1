//! What services on tokio write: for each key a task that sleeps, in a concurrent map.
//!
//! To cancel aborts the task. To touch aborts it and spawns another, as is usual.

use crate::keyed::{BATCH, Keyed};
use crate::tokio_runner::Tokio;
use dashmap::{DashMap, Entry};
use std::hint::black_box;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until};

#[derive(Clone)]
pub struct SleepingTasks {
    map: Arc<DashMap<u64, Slot>>,
    start: Instant,
}

struct Slot {
    task: u64,
    sleeping: JoinHandle<()>,
}

impl SleepingTasks {
    fn spawn(&self, key: u64, deadline: Instant) -> JoinHandle<()> {
        let map = Arc::clone(&self.map);
        tokio::spawn(async move {
            sleep_until(deadline).await;
            black_box(map.remove(&key).map(|(key, slot)| (key, slot.task)));
        })
    }
}

impl Keyed for SleepingTasks {
    type Deadline = Instant;
    type Runner = Tokio;

    fn new() -> Self {
        SleepingTasks { map: Arc::default(), start: Instant::now() }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        let slot = Slot { task, sleeping: self.spawn(key, deadline) };
        match self.map.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(slot);
                true
            }
            Entry::Occupied(mut occupied) => {
                occupied.insert(slot).sleeping.abort();
                false
            }
        }
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        let Some(mut slot) = self.map.get_mut(&key) else { return false };
        let sleeping = self.spawn(key, deadline);
        mem::replace(&mut slot.sleeping, sleeping).abort();
        true
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        let (_, slot) = self.map.remove(&key)?;
        slot.sleeping.abort();
        Some(slot.task)
    }

    fn len(&self) -> usize {
        Handle::current().metrics().num_alive_tasks() - 1 // Without the one that asks.
    }

    /// Yields often enough: a worker runs at most 61 tasks until it returns to one that has
    /// yielded, and a step of K1 leaves four.
    async fn rest(&self) {
        for _ in 0..1 + (4 * BATCH).div_ceil(61) {
            yield_now().await;
        }
    }
}
