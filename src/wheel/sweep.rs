//! The sweep: takes stale references out of the buckets, a few per call.
//!
//! It goes over the armed buckets in rounds. In a cheap round it leaves a bucket as soon as looking
//! at it does not pay: entries that are cancelled about in the order in which they were added leave
//! their stale references at the front. If that does not suffice, because the stale references are
//! scattered over large buckets, the next round looks at every reference, but for those of buckets
//! that have moved in the queue meanwhile.

use crate::wheel::bucket::{Blocks, Bucket, Reference};
use crate::wheel::expirations::Expirations;
use alloc::vec::Vec;

/// The number of references at which one step looks, and the most empty buckets.
const STEP: usize = 32;

/// Where a sweep is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sweep {
    /// The bucket that is looked at: the nth of those that wait.
    nth: usize,
    /// How many of its references remain to be looked at; 0 before the first look.
    left: usize,
    is_thorough: bool,
}

impl Sweep {
    /// Looks at a few references, and takes the stale ones out. Returns how many those were.
    pub(crate) fn step(
        &mut self,
        buckets: &mut [Bucket],
        blocks: &mut Blocks,
        expirations: &Expirations,
        scratch: &mut Vec<Reference>,
        is_live: impl Fn(&Reference) -> bool,
    ) -> usize {
        for _ in 0..STEP {
            let Some(expiration) = expirations.nth_waiting(self.nth) else {
                *self = Sweep { is_thorough: !self.is_thorough, ..Sweep::default() };
                continue;
            };
            let bucket = &mut buckets[expiration.bucket as usize];
            // The bucket may have been flushed since the last look: then fewer are left.
            let left = if self.left == 0 { bucket.len() } else { bucket.len().min(self.left) };
            if left == 0 {
                self.nth += 1;
                continue;
            }
            bucket.take_front(blocks, STEP.min(left), scratch);
            let taken = scratch.len();
            scratch.retain(is_live);
            let live = scratch.len();
            scratch.drain(..).for_each(|reference| bucket.push(blocks, reference));
            // mutants(/): whether the rest is looked at in this round or the next.
            let pays = self.is_thorough || live * 4 <= taken * 3;
            self.left = if pays { left - taken } else { 0 };
            self.nth += usize::from(self.left == 0);
            return taken - live;
        }
        0
    }
}
