//! The bucket: references to the entries under one slot of a wheel, first in, first out; and the
//! sweep that takes stale references out of all buckets.
//!
//! A reference takes 12 bytes: enough to cascade an entry without touching it. References lie in
//! blocks, read in order, so no cache miss waits for another, and a bucket grows without copying.
//!
//! A bucket does not own its entries. A cancelled entry, or one that is filed again, leaves a
//! *stale* reference behind. Code that takes references out asks the slab which of them are stale.
//!
//! Invariants, checked by [`Bucket::assert_invariants`]: a bucket's blocks are linked from `first`
//! to `last`, all full but for the front of the first and the back of the last; an empty bucket has
//! no block.

use crate::wheel::expirations::Expirations;
use crate::wheel::slab::{Slab, TINY};
use crate::wheel::tick::Nanos;
use alloc::vec::Vec;
use core::num::NonZeroU64;

/// References in a block, which fills 240 bytes with its links.
const BLOCK: usize = if TINY { 3 } else { 19 };

/// Small, because blocks come and go in bursts, and a few of them stay.
const CHUNK: usize = 32;

const NONE: u32 = u32::MAX;

/// An item and its deadline in the slab: 24 bytes for a 64-bit item. The deadline is stored as one
/// more, so that an option of an entry takes no more memory.
#[derive(Clone, Debug)]
pub(crate) struct Entry<T> {
    deadline: NonZeroU64,
    pub(crate) item: T,
}

impl<T> Entry<T> {
    #[inline]
    pub(crate) fn new(deadline: Nanos, item: T) -> Self {
        Entry {
            deadline: stored(deadline),
            item,
        }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        Nanos(self.deadline.get() - 1)
    }

    #[inline]
    pub(crate) fn set_deadline(&mut self, deadline: Nanos) {
        self.deadline = stored(deadline);
    }
}

#[inline]
fn stored(deadline: Nanos) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(deadline.min(Nanos::NEVER).0)
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reference {
    /// The low 32 bits of the tick under which the entry is filed.
    pub(crate) tick: u32,
    pub(crate) index: u32,
    /// The number of the filing: the entry's tag in the slab if this is its latest filing.
    pub(crate) filing: u32,
}

/// The blocks of all buckets of a wheel. A block's tag is the next block of its bucket.
pub(crate) type Blocks = Slab<[Reference; BLOCK], CHUNK>;

/// One slot of a wheel. An empty one takes 16 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    first: u32,
    last: u32,
    len: u32,
    /// References taken from the front of the first block.
    start: u8,
    /// References in the last block; a full block's number if there is no block.
    end: u8,
    /// Whether the bucket is among the wheel's expirations.
    pub(crate) armed: bool,
}

impl Bucket {
    pub(crate) const EMPTY: Self = Bucket {
        first: NONE,
        last: NONE,
        len: 0,
        start: 0,
        end: BLOCK as u8,
        armed: false,
    };

    /// The number of references, stale ones included.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn front(&self, blocks: &Blocks) -> Option<Reference> {
        (self.len > 0).then(|| blocks.at(self.first)[usize::from(self.start)])
    }

    /// Adds a reference at the end. Always inlined: the call made up half of its instructions.
    #[inline(always)]
    pub(crate) fn push(&mut self, blocks: &mut Blocks, reference: Reference) {
        if usize::from(self.end) == BLOCK {
            self.add_block(blocks);
        }
        blocks.at_mut(self.last)[usize::from(self.end)] = reference;
        self.end += 1;
        self.len += 1;
    }

    #[inline(never)]
    fn add_block(&mut self, blocks: &mut Blocks) {
        let block = blocks.insert([Reference::default(); BLOCK], NONE).index;
        if self.len == 0 {
            self.first = block;
            self.start = 0;
        } else {
            blocks.set_tag(self.last, block);
        }
        self.last = block;
        self.end = 0;
    }

    /// Takes references from the front until `out` has `limit` of them, or none is left.
    pub(crate) fn take_front(
        &mut self,
        blocks: &mut Blocks,
        limit: usize,
        out: &mut Vec<Reference>,
    ) {
        while out.len() < limit && self.len > 0 {
            let start = usize::from(self.start);
            let taken = (limit - out.len()).min(self.end_of_first() - start);
            out.extend_from_slice(&blocks.at(self.first)[start..start + taken]);
            self.drop_front(blocks, taken);
        }
    }

    /// Drops `unwanted` references from the front, at most `limit`. Returns their number.
    pub(crate) fn drop_front_while(
        &mut self,
        blocks: &mut Blocks,
        limit: usize,
        unwanted: impl Fn(&Reference) -> bool,
    ) -> usize {
        let mut dropped = 0;
        while dropped < limit && self.front(blocks).is_some_and(|front| unwanted(&front)) {
            self.drop_front(blocks, 1);
            dropped += 1;
        }
        dropped
    }

    #[inline]
    fn end_of_first(&self) -> usize {
        if self.first == self.last {
            usize::from(self.end)
        } else {
            BLOCK
        }
    }

    #[inline]
    pub(crate) fn drop_front(&mut self, blocks: &mut Blocks, count: usize) {
        self.start += count as u8;
        self.len -= count as u32;
        if usize::from(self.start) == self.end_of_first() {
            self.free_first(blocks);
        }
    }

    #[inline(never)]
    fn free_first(&mut self, blocks: &mut Blocks) {
        let next = blocks.tag(self.first).unwrap_or(NONE);
        blocks.free(self.first);
        if self.len == 0 {
            *self = Bucket {
                armed: self.armed,
                ..Bucket::EMPTY
            };
        } else {
            self.first = next;
            self.start = 0;
        }
    }

    pub(crate) fn iter(&self, blocks: &Blocks) -> impl Iterator<Item = Reference> {
        let mut index = self.first;
        let mut start = usize::from(self.start);
        core::iter::from_fn(move || {
            let block = blocks.get(blocks.key_at(index)?)?;
            let end = if index == self.last {
                usize::from(self.end)
            } else {
                BLOCK
            };
            let references = block[start..end].iter().copied();
            index = blocks.tag(index).unwrap_or(NONE);
            start = 0;
            Some(references)
        })
        .flatten()
    }

    pub(crate) fn assert_invariants(&self, blocks: &Blocks) {
        assert_eq!(self.iter(blocks).count(), self.len());
        assert_eq!(
            (self.first == NONE, self.last == NONE),
            (self.len == 0, self.len == 0)
        );
        let is_last = |index| blocks.tag(index) == Some(NONE);
        assert!(
            self.len == 0 || is_last(self.last),
            "a block behind the last"
        );
    }
}

/// Stale references that are never worth a sweep.
const STALE_ALLOWED: isize = 256;

/// The number of references and of empty buckets that one step looks at.
const STEP: usize = 32;

/// The stale references per step that a cheap round has to find. Each step follows a call that
/// leaves at most one behind.
const PAYS: isize = 4;

/// The stale references that end a step: one more than its call leaves behind (7).
const ENOUGH: usize = 2;

/// The progress of the sweep, which takes stale references out of the buckets, a few per call.
///
/// The sweep goes over the buckets in rounds, and a round goes on in steps: one for each call that
/// may leave a stale reference behind. A step ends when it has found [`ENOUGH`], or after [`STEP`]
/// looks, because the caller holds a lock. Each of these cases breaks simpler code; the numbers
/// stand at the lines that deal with them.
///
/// 1. *Requests are cancelled about in the order of adding.* Their references lie at the fronts of
///    the buckets, first in, first out. So a *cheap* round looks at the front of each armed bucket
///    only. These belong to entries that were added at about the same time, and share cache lines
///    in the slab.
/// 2. *Live entries lie in front.* 10,000 timers were added before the requests. Each cheap round
///    looks at 32 of them at most, and moves them to the back: hundreds of rounds would find
///    nothing. So after a cheap round that finds too little comes a *thorough* one, which looks at
///    every reference.
/// 3. *Near buckets come and go.* The million references lie in a far bucket. Between two steps a
///    periodic timer arms a near bucket, and another one is flushed. Each moves other buckets in
///    the heap: the far one is the sixth, but the fifth when the round looks at the sixth place. By
///    places, each round may miss it in that way. So a thorough round goes by the buckets' numbers,
///    which do not change. It begins with the highest level: stale references stay there the
///    longest, while those of near buckets go with the next flush anyway.
/// 4. *A bucket holds one live reference.* A wheel of 512 slots has a timer in each. If a step
///    ended with each bucket, a round would take 512 steps, and 512 more requests would be
///    cancelled meanwhile. Worse, periodic timers move from bucket to bucket as they run. At the
///    same pace, a round would meet them in each bucket that it comes to, and never a stale
///    reference. So a step goes on to the next bucket until it has made 32 looks.
/// 5. *Most buckets are empty.* A thorough round passes thousands of slots that hold nothing. Each
///    counts as a look, or one step would pass them all under the lock.
/// 6. *A burst goes.* A million requests are cancelled beside 10,000 timers. 20,000 references are
///    left, few enough, but in blocks of all the chunks that held a million: three times the memory
///    before. So while most places of these chunks are vacant, each call makes a step, whether
///    references are stale or not. What is moved to the back comes into the first chunks, and the
///    others are given back.
/// 7. *Some steps find nothing.* Each request is cancelled before the next is added, and their
///    delays go round, one for each slot. A step that ended at its first find would only pay for
///    its own call, and what the calls whose steps found nothing have left would stay: up to 1,348
///    references to one timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    /// The bucket that is looked at: the nth that waits, or in a thorough round the nth last.
    nth: usize,
    /// In a thorough round, how many of its references remain to be looked at; 0 before the first
    /// look.
    left: usize,
    is_thorough: bool,
    /// What this round has found, less what its steps have to find.
    gain: isize,
    /// How many references there may be without a step, besides two for each entry.
    pub(crate) allowed: isize,
}

impl Sweep {
    /// The beginning of a cheap round.
    pub(crate) const CHEAP: Self = Sweep {
        nth: 0,
        left: 0,
        is_thorough: false,
        gain: 0,
        allowed: STALE_ALLOWED,
    };

    /// Looks at a few references, and takes the stale ones out. Returns their number.
    pub(crate) fn step(
        &mut self,
        buckets: &mut [Bucket],
        blocks: &mut Blocks,
        expirations: &Expirations,
        scratch: &mut Vec<Reference>,
        is_live: impl Fn(&Reference) -> bool,
    ) -> usize {
        self.gain -= PAYS;
        let mut looks = 0;
        let mut found = 0;
        // Over many buckets, if need be (4). One is not enough (7).
        while looks < STEP && found < ENOUGH {
            let bucket = if self.is_thorough {
                // (3)
                buckets.iter_mut().nth_back(self.nth)
            } else {
                expirations
                    .nth_waiting(self.nth)
                    .map(|first| &mut buckets[first.bucket as usize])
            };
            let Some(bucket) = bucket else {
                // The round is over. After a cheap one that did not pay comes a thorough one (2).
                // mutants: only the pace, unless no round is thorough.
                let is_thorough = !self.is_thorough && self.gain < 0;
                let is_sparse = blocks.is_sparse(); // (6)
                *self = Sweep {
                    is_thorough,
                    allowed: if is_sparse { isize::MIN } else { STALE_ALLOWED },
                    ..Sweep::CHEAP
                };
                // mutants(*=): only the pace.
                looks += 1;
                continue;
            };
            // Fewer are left if the bucket was flushed since the last look.
            let left = if self.left == 0 {
                bucket.len()
            } else {
                bucket.len().min(self.left)
            };
            let before = bucket.len();
            bucket.take_front(blocks, left.min(STEP - looks), scratch);
            let taken = scratch.len();
            // (5)
            looks += taken.max(1);
            self.left = if self.is_thorough { left - taken } else { 0 };
            self.nth += usize::from(self.left == 0);
            // The live ones go to the back, where `left` ends before them: otherwise a thorough
            // round would never leave the bucket.
            let live = scratch.drain(..).filter(&is_live);
            live.for_each(|reference| bucket.push(blocks, reference));
            let gone = before - bucket.len();
            // mutants: only the pace.
            self.gain += gone as isize;
            found += gone;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::level::Levels;
    use crate::wheel::tick::Tick;
    use core::cell::Cell;

    /// No more, because the caller holds a shard's lock. As much, because each step may follow
    /// another cancel: a step that ended at the next bucket took three times as many.
    #[test]
    fn a_step_looks_at_as_much_as_it_may_and_at_no_more() {
        const EACH: usize = 10;
        let levels = Levels::new(512);
        let mut buckets = vec![Bucket::EMPTY; levels.size()];
        let mut blocks = Blocks::new();
        let mut expirations = Expirations::default();
        let mut scratch = Vec::new();
        for tick in (0..buckets.len()).step_by(4) {
            expirations.push(levels.expiration(tick, Tick(tick as u64)));
            (0..EACH).for_each(|_| buckets[tick].push(&mut blocks, Reference::default()));
        }
        let looks = Cell::new(0);
        let is_live = |_: &Reference| {
            looks.set(looks.get() + 1);
            true
        };
        let mut sweep = Sweep::CHEAP;
        let round = buckets.len() / 4 * (EACH + 3);
        for _ in 0..2 * round.div_ceil(STEP) {
            let before = looks.get();
            let found = sweep.step(
                &mut buckets,
                &mut blocks,
                &expirations,
                &mut scratch,
                is_live,
            );
            assert_eq!((found, scratch.len()), (0, 0));
            assert!(looks.get() - before <= STEP);
        }
        // The cheap round takes fewer steps: it passes no empty bucket.
        assert!(
            looks.get() >= 2 * buckets.len() / 4 * EACH,
            "{} looks",
            looks.get()
        );
        assert!(
            buckets
                .iter()
                .all(|bucket| [0, EACH].contains(&bucket.len())),
            "none is lost"
        );
    }
}
