//! The sweep: takes stale references out of the buckets, a few per call.
//!
//! It visits all buckets in rounds. In a cheap round it leaves a bucket as soon as looking at it
//! does not pay: timers that are cancelled about in the order in which they were added leave their
//! stale references at the front. If that does not suffice, because the stale references are
//! scattered over large buckets, the next round is thorough and looks at every reference once. So
//! the work of a round is proportional to the number of filed references, and two rounds remove
//! every reference that was stale before.

use crate::wheel::bucket::Reference;
use crate::wheel::wheels::Wheels;
use crate::work;

/// The number of references after which one call ends, and the most buckets that it looks at.
const STEP: usize = 32;

/// The position of the sweep; see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The bucket that is being swept, by its ordinal.
    bucket: usize,
    /// How many of its references remain to be looked at in this round; 0 before the first look.
    left: usize,
    is_thorough: bool,
}

impl Sweep {
    /// Continues the sweep, a block of references at a time, until enough references were looked
    /// at.
    #[inline(never)]
    pub(crate) fn step(
        &mut self,
        wheels: &mut Wheels,
        batch: &mut Vec<Reference>,
        is_live: impl Fn(Reference) -> bool,
    ) {
        let (mut looked_at, mut buckets) = (0, STEP);
        while looked_at < STEP && buckets > 0 {
            let Some(bucket) = wheels.nth_bucket(self.bucket) else {
                // Called again at the end of a round: that round was not enough.
                *self = Sweep { is_thorough: !self.is_thorough, ..Sweep::default() };
                // mutants: `looked_at` ends the step as well, since there are references.
                buckets -= 1;
                continue;
            };
            let len = wheels.len_of(bucket);
            if len == 0 {
                let empty = wheels.count_empty(bucket, buckets);
                work::count(empty);
                (self.bucket, self.left) = (self.bucket + empty, 0);
                buckets -= empty;
                continue;
            }
            work::count(1);
            // mutants: `looked_at` ends the step as well, since there are references.
            buckets -= 1;
            let (taken, live) = wheels.sweep_front(bucket, batch, &is_live);
            looked_at += taken;
            // The bucket may have been flushed since the last look: then fewer references are left.
            let left = if self.left == 0 { len } else { self.left.min(len) };
            // mutants(/): whether the rest is looked at in this round or the next.
            let pays = self.is_thorough || live * 4 <= taken * 3;
            self.left = if pays { left.saturating_sub(taken) } else { 0 };
            self.bucket += usize::from(self.left == 0);
        }
    }
}
