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

    /// Hands over what was added, and gives its buffer to `room`. Returns how much that was.
    pub(crate) fn hand_over(&mut self, room: &mut Expired) -> usize {
        let mut batches = mem::take(&mut self.batches);
        let handed_over = self.hand_over_all(&mut batches);
        batches.iter_mut().for_each(|(_, expired)| expired.lend_to(room));
        handed_over
    }

    fn hand_over_all(&self, batches: &mut [(Arc<dyn Owner>, Expired)]) -> usize {
        if let [(owner, expired)] = batches {
            if expired.len() == 1 {
                return owner.hand_over(expired);
            }
        }
        let mut order = Vec::new();
        for (number, (_, expired)) in batches.iter_mut().enumerate() {
            order.extend(iter::repeat_n(number, expired.len()));
            self.shuffle(expired.len(), |one, other| expired.swap(one, other));
        }
        self.shuffle(order.len(), |one, other| order.swap(one, other));
        let mut next = Expired::default();
        for number in &order {
            let (owner, expired) = &mut batches[*number];
            expired.pop_to(&mut next);
            owner.hand_over(&mut next);
        }
        order.len()
    }

    /// Fisher and Yates' shuffle of so many items (Knuth, "The Art of Computer Programming",
    /// vol. 2, 3.4.2).
    fn shuffle(&self, len: usize, mut swap: impl FnMut(usize, usize)) {
        for last in (1..len).rev() {
            let scaled = u128::from(self.clock.random()) * (last as u128 + 1);
            swap(last, (scaled >> 64) as usize);
        }
    }
}
