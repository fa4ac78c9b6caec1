//! What most services write first: a binary heap behind a mutex, whose cancelled entries stay until
//! they reach the top.

use crate::threads::{Expiring, Shared};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Default)]
pub struct LazyHeap(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    slots: Vec<(u32, Option<u64>)>,
    vacant: Vec<u32>,
}

impl Inner {
    fn take(&mut self, index: u32, generation: u32) -> Option<u64> {
        let slot = &mut self.slots[index as usize];
        if slot.0 != generation {
            return None;
        }
        slot.0 = generation.wrapping_add(1);
        self.vacant.push(index);
        slot.1.take()
    }
}

impl Shared for LazyHeap {
    type Deadline = u64;
    type Handle = (u32, u32);

    fn new() -> Self {
        Self::default()
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&self, deadline: u64, task: u64) -> (u32, u32) {
        let mut inner = self.0.lock();
        let index = inner.vacant.pop().unwrap_or_else(|| {
            inner.slots.push((0, None));
            inner.slots.len() as u32 - 1
        });
        let slot = &mut inner.slots[index as usize];
        slot.1 = Some(task);
        let generation = slot.0;
        inner.heap.push(Reverse((deadline, index, generation)));
        (index, generation)
    }

    fn cancel(&self, (index, generation): (u32, u32)) -> bool {
        self.0.lock().take(index, generation).is_some()
    }
}

impl Expiring for LazyHeap {
    fn expire_all(&self, last_ms: u64) -> (u64, u64) {
        let (mut count, mut sum) = (0, 0);
        for now in 1..=last_ms {
            let mut inner = self.0.lock();
            while inner.heap.peek().is_some_and(|Reverse(top)| top.0 <= now) {
                let Some(Reverse((_, index, generation))) = inner.heap.pop() else { break };
                if let Some(task) = inner.take(index, generation) {
                    count += 1;
                    sum += task;
                }
            }
        }
        (count, sum)
    }
}
