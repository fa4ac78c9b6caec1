//! The sweep: takes stale references out of the buckets, a few at each call.
//!
//! It goes round all buckets. In a cheap round it leaves a bucket as soon as a look at it does not
//! pay: timers that are cancelled about in the order in which they were added leave their stale
//! references in front. Where that does not suffice, because they lie scattered in large buckets,
//! the next round is a thorough one and looks at every reference once. So the work of a round is in
//! proportion to what is filed, and after two of them whatever was stale before is gone.

use crate::wheel::bucket::Reference;
use crate::wheel::wheels::Wheels;
use crate::work;

/// References after which one call ends, and buckets that it looks at.
const STEP: usize = 32;

/// Where the sweep is: see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The bucket that is swept, by its ordinal.
    bucket: usize,
    /// How many of its references this round has yet to look at; 0 before the first look.
    left: usize,
    is_thorough: bool,
}

impl Sweep {
    /// Goes on, a block of references at a time, until enough were looked at.
    #[inline(never)]
    pub(crate) fn step(
        &mut self,
        wheels: &mut Wheels,
        batch: &mut Vec<Reference>,
        is_live: impl Fn(Reference) -> bool,
    ) {
        let mut looked_at = 0;
        for _ in 0..STEP {
            work::count(1);
            let Some(bucket) = wheels.nth_bucket(self.bucket) else {
                // Called again at the end of a round: that one was not enough.
                *self = Sweep { is_thorough: !self.is_thorough, ..Sweep::default() };
                continue;
            };
            let len = wheels.len_of(bucket);
            if len == 0 {
                (self.bucket, self.left) = (self.bucket + 1, 0);
                continue;
            }
            let (taken, live) = wheels.sweep_front(bucket, batch, &is_live);
            looked_at += taken;
            // The bucket may have been flushed since the last look: then less is left of it.
            let left = if self.left == 0 { len } else { self.left.min(len) };
            let pays = self.is_thorough || live * 4 <= taken * 3;
            self.left = if pays { left.saturating_sub(taken) } else { 0 };
            self.bucket += usize::from(self.left == 0);
            if looked_at >= STEP {
                return;
            }
        }
    }
}
