//! The sweep: takes stale references out of the buckets, a few at each call.
//!
//! It goes round all buckets. In a cheap round it leaves a bucket as soon as a look at it does not
//! pay: timers that are cancelled about in the order in which they were added leave their stale
//! references in front. Where that does not suffice, because they lie scattered in large buckets,
//! the next round is a thorough one and looks at every reference once. So the work of a round is in
//! proportion to what is filed, and after two of them whatever was stale before is gone.

use crate::wheel::bucket::{Reference, SMALL_BLOCK};
use crate::wheel::wheels::Wheels;
use crate::work;

/// References that one call looks at, and buckets.
const STEP: usize = 32;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The bucket that is swept, by its ordinal.
    bucket: usize,
    /// How many of its references this round has yet to look at; `None` before the first look.
    left: Option<usize>,
    is_thorough: bool,
}

impl Sweep {
    /// Goes on: takes the stale ones out of the first references of a bucket, and puts the others
    /// back behind its last, until enough were looked at. `batch` is room for them.
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
            // The bucket may have been flushed since the last look: then less is left of it.
            let len = wheels.len_of(bucket);
            let left = self.left.map_or(len, |left| left.min(len));
            wheels.take_front(bucket, left.min(STEP - looked_at), batch);
            let taken = batch.len();
            looked_at += taken;
            batch.retain(|reference| is_live(*reference));
            let pays = self.is_thorough || batch.len() * 4 <= taken * 3;
            if left > taken && pays {
                self.left = Some(left - taken);
            } else {
                self.bucket += 1;
                self.left = None;
            }
            batch.drain(..).for_each(|reference| wheels.put_back(bucket, reference));
            if self.left.is_none() && wheels.len_of(bucket) <= SMALL_BLOCK {
                // Once more, so that they move from a large block to a small one.
                wheels.take_front(bucket, SMALL_BLOCK, batch);
                batch.drain(..).for_each(|reference| wheels.put_back(bucket, reference));
            }
            if looked_at == STEP {
                return;
            }
        }
    }
}
