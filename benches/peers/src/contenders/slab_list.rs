//! An intrusive list in a slab, as in mio-extras' timer and in sozu's: a wheel of one level, whose
//! slots hold the timers of all rounds.

use crate::work::Contender;
use slab::Slab;

/// Slots of the wheel.
const SLOTS: usize = 256;
/// Milliseconds of a slot.
const TICK_MS: u64 = 100;

const NONE: u32 = u32::MAX;

pub struct SlabList {
    timers: Slab<Timer>,
    /// The first timer of each slot.
    slots: [u32; SLOTS],
    /// The last tick that has expired.
    now: u64,
    /// How many timers were added.
    added: u64,
}

struct Timer {
    /// What a handle has to show.
    number: u64,
    tick: u64,
    task: u64,
    before: u32,
    after: u32,
}

impl SlabList {
    fn remove(&mut self, index: u32) -> u64 {
        let timer = self.timers.remove(index as usize);
        match self.timers.get_mut(timer.before as usize) {
            Some(before) => before.after = timer.after,
            None => self.slots[timer.tick as usize % SLOTS] = timer.after,
        }
        if let Some(after) = self.timers.get_mut(timer.after as usize) {
            after.before = timer.before;
        }
        timer.task
    }
}

impl Contender for SlabList {
    type Deadline = u64;
    type Handle = (u32, u64);

    fn new() -> Self {
        SlabList {
            timers: Slab::new(),
            slots: [NONE; SLOTS],
            now: 0,
            added: 0,
        }
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&mut self, deadline: u64, task: u64) -> (u32, u64) {
        self.added += 1;
        let tick = deadline.div_ceil(TICK_MS).max(self.now + 1);
        let slot = &mut self.slots[tick as usize % SLOTS];
        let index = self.timers.insert(Timer {
            number: self.added,
            tick,
            task,
            before: NONE,
            after: *slot,
        }) as u32;
        let after = std::mem::replace(slot, index);
        if let Some(after) = self.timers.get_mut(after as usize) {
            after.before = index;
        }
        (index, self.added)
    }

    fn cancel(&mut self, (index, number): (u32, u64)) -> bool {
        let is_there = self
            .timers
            .get(index as usize)
            .is_some_and(|it| it.number == number);
        if is_there {
            self.remove(index);
        }
        is_there
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let mut count = 0;
        let mut sum = 0;
        for tick in self.now + 1..=last_ms.div_ceil(TICK_MS) {
            self.now = tick;
            let mut next = self.slots[tick as usize % SLOTS];
            while let Some(timer) = self.timers.get(next as usize) {
                let index = std::mem::replace(&mut next, timer.after);
                if timer.tick == tick {
                    count += 1;
                    sum += self.remove(index);
                }
            }
        }
        (count, sum)
    }
}
