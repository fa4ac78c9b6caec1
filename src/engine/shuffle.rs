//! The shuffle: on a seeded clock, what expires in the same tick is handed over one by one, in an
//! order that the seed decides.

use crate::engine::manual_clock::ManualClock;
use crate::engine::owner::{Expired, Owner};
use std::iter;
use std::mem;
use std::sync::Arc;

/// What a turn has flushed of a tick and not handed over yet.
pub(crate) struct Shuffle<'a> {
    clock: &'a ManualClock,
    tick: u64,
    batches: Vec<(Arc<dyn Owner>, Expired)>,
}

impl<'a> Shuffle<'a> {
    /// Returns what shuffles on this clock; `None` without a seed.
    pub(crate) fn on(clock: &'a ManualClock) -> Option<Self> {
        clock.is_seeded().then_some(Shuffle { clock, tick: 0, batches: Vec::new() })
    }

    /// Adds what an owner has flushed. Hands the former tick over before, and returns how much that
    /// was.
    pub(crate) fn add(&mut self, owner: Arc<dyn Owner>, expired: &mut Expired) -> usize {
        expired.wake();
        if expired.len() == 0 {
            return 0;
        }
        let tick = mem::replace(&mut self.tick, expired.tick);
        let mut room = Expired::default();
        let handed_over = if tick == self.tick { 0 } else { self.hand_over(&mut room) };
        self.batches.push((owner, mem::replace(expired, room)));
        handed_over
    }

    /// Hands over what was added, one by one: each time any of what is left, all with the same
    /// chance. Gives a buffer to `room`. Returns how much it was.
    pub(crate) fn hand_over(&mut self, room: &mut Expired) -> usize {
        let mut batches = mem::take(&mut self.batches);
        let mut left = Vec::new();
        for (number, (_, expired)) in batches.iter().enumerate() {
            left.extend(iter::repeat_n(number, expired.len()));
        }
        let handed_over = left.len();
        let mut next = Expired::default();
        while !left.is_empty() {
            let (owner, expired) = &mut batches[left.swap_remove(self.clock.below(left.len()))];
            expired.move_to(&mut next, self.clock.below(expired.len()));
            owner.hand_over(&mut next);
        }
        batches.iter_mut().for_each(|(_, expired)| expired.lend_to(room));
        handed_over
    }
}
