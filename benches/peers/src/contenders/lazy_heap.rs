//! What most services write first: a binary heap whose cancelled entries stay until they are due.

use crate::contenders::locked::Locked;
use crate::contenders::queue::DeadlineQueue;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Behind a mutex.
pub type LazyHeap = Locked<Heap>;

#[derive(Default)]
pub struct Heap {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    slots: Vec<(u32, Option<u64>)>,
    vacant: Vec<u32>,
}

impl Heap {
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

impl DeadlineQueue for Heap {
    type Handle = (u32, u32);

    fn add(&mut self, deadline: u64, task: u64) -> (u32, u32) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(task);
        let generation = slot.0;
        self.heap.push(Reverse((deadline, index, generation)));
        (index, generation)
    }

    fn cancel(&mut self, (index, generation): (u32, u32)) -> bool {
        self.take(index, generation).is_some()
    }

    fn first(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(top)| top.0)
    }

    fn pop(&mut self, now: u64, expired: impl FnOnce(u64)) -> bool {
        if self.first().is_none_or(|first| first > now) {
            return false;
        }
        if let Some(Reverse((_, index, generation))) = self.heap.pop() {
            self.take(index, generation).map(expired);
        }
        true
    }
}
