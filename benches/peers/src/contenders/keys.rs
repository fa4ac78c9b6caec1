//! Timers by key: tickwheel's on the system's clock with the reaper running; tokio-util's
//! DelayQueue with a map from key to task; and for each key a task that sleeps. Beside them a map
//! that several threads share, without timers.

use crate::keyed::{BATCH, Keyed, Threads, add_key};
use crate::sleeps::Tokio;
use dashmap::DashMap;
use std::collections::hash_map::{self, HashMap};
use std::hint::black_box;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{self, sleep_until};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

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
        KeyedTimer {
            timer,
            keyed,
            start: Instant::now(),
        }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        add_key(&self.keyed, key, deadline, task).is_none()
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        self.keyed.touch(&key, deadline)
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        self.keyed.cancel(&key)
    }

    fn len(&self) -> usize {
        self.timer.len()
    }
}

pub struct QueueAndMap {
    queue: DelayQueue<u64>,
    map: HashMap<u64, (u64, Key)>,
    start: time::Instant,
}

impl Keyed for QueueAndMap {
    type Deadline = time::Instant;
    type Runner = Tokio;

    fn new() -> Self {
        QueueAndMap {
            queue: DelayQueue::new(),
            map: HashMap::new(),
            start: time::Instant::now(),
        }
    }

    fn deadline(&self, after: Duration) -> time::Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: time::Instant, task: u64) -> bool {
        match self.map.entry(key) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert((task, self.queue.insert_at(key, deadline)));
                true
            }
            hash_map::Entry::Occupied(mut occupied) => {
                self.queue.reset_at(&occupied.get().1, deadline);
                occupied.get_mut().0 = task;
                false
            }
        }
    }

    fn touch(&mut self, key: u64, deadline: time::Instant) -> bool {
        let found = self.map.get(&key);
        found
            .map(|(_, timer)| self.queue.reset_at(timer, deadline))
            .is_some()
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

#[derive(Clone)]
pub struct SleepingTasks {
    map: Arc<DashMap<u64, Slot>>,
    start: time::Instant,
}

struct Slot {
    task: u64,
    sleeping: JoinHandle<()>,
}

impl SleepingTasks {
    fn spawn(&self, key: u64, deadline: time::Instant) -> JoinHandle<()> {
        let map = Arc::clone(&self.map);
        tokio::spawn(async move {
            sleep_until(deadline).await;
            black_box(map.remove(&key).map(|(key, slot)| (key, slot.task)));
        })
    }
}

impl Keyed for SleepingTasks {
    type Deadline = time::Instant;
    type Runner = Tokio;

    fn new() -> Self {
        SleepingTasks {
            map: Arc::default(),
            start: time::Instant::now(),
        }
    }

    fn deadline(&self, after: Duration) -> time::Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: time::Instant, task: u64) -> bool {
        let slot = Slot {
            task,
            sleeping: self.spawn(key, deadline),
        };
        match self.map.entry(key) {
            dashmap::Entry::Vacant(vacant) => {
                vacant.insert(slot);
                true
            }
            dashmap::Entry::Occupied(mut occupied) => {
                occupied.insert(slot).sleeping.abort();
                false
            }
        }
    }

    fn touch(&mut self, key: u64, deadline: time::Instant) -> bool {
        let Some(mut slot) = self.map.get_mut(&key) else {
            return false;
        };
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

/// Keeps each key's task and deadline, and never expires any: the part of the time that sharing a
/// map takes.
#[derive(Clone)]
pub struct MapAlone {
    map: Arc<DashMap<u64, (u64, Instant)>>,
    start: Instant,
}

impl Keyed for MapAlone {
    type Deadline = Instant;
    type Runner = Threads;

    fn new() -> Self {
        MapAlone {
            map: Arc::default(),
            start: Instant::now(),
        }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        self.map.insert(key, (task, deadline)).is_none()
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        let found = self.map.get_mut(&key);
        found.map(|mut found| found.1 = deadline).is_some()
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        self.map.remove(&key).map(|(_, (task, _))| task)
    }

    fn len(&self) -> usize {
        self.map.len()
    }
}
