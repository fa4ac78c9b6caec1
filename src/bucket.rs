//! The bucket: references to the entries that were filed under one slot of a wheel, first in,
//! first out.
//!
//! An entry lies in the slab and never moves; a bucket holds 12 bytes for it, enough to cascade it
//! without touching the entry. References lie in blocks, read in order when the bucket is flushed,
//! so that no cache miss waits for another one, and a bucket grows without copying.
//!
//! A bucket points and does not own: cancelling an entry, or filing it anew, leaves its reference
//! behind, which is then *stale*. Whoever takes references out asks the slab which of them are. The
//! shard keeps the number of stale references below that of the others.
//!
//! Invariants, checked by [`Bucket::assert_invariants`]: a bucket's blocks are linked from `first`
//! to `last`, all full but for the front of the first and the back of the last; an empty bucket has
//! no block.

use crate::slab::Slab;

/// References in a block: with what belongs to it, a block fills 512 bytes.
const BLOCK: u32 = 41;
const NONE: u32 = u32::MAX;

/// What a bucket keeps of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reference {
    /// The low 32 bits of the tick under which the entry was filed.
    pub(crate) tick: u32,
    /// The entry's index in the slab.
    pub(crate) index: u32,
    /// The number of the filing: the entry's tag in the slab, as long as this is its last filing.
    pub(crate) filing: u32,
}

/// Level and slot of a bucket in the wheels of its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BucketId {
    pub(crate) level: u8,
    pub(crate) slot: u32,
}

#[derive(Debug)]
struct Block {
    next: u32,
    references: [Reference; BLOCK as usize],
}

/// The blocks of all buckets of one shard.
#[derive(Debug)]
pub(crate) struct Blocks(Slab<Block, 1>);

impl Blocks {
    pub(crate) fn new() -> Self {
        Blocks(Slab::new())
    }

    #[inline(never)]
    fn allocate(&mut self) -> u32 {
        let references = [Reference::default(); BLOCK as usize];
        self.0.insert(Block { next: NONE, references }, 0).index
    }

    pub(crate) fn assert_invariants(&self) {
        self.0.assert_invariants();
    }
}

/// One slot of a wheel. An empty bucket costs 24 bytes.
#[derive(Debug)]
pub(crate) struct Bucket {
    first: u32,
    last: u32,
    /// References taken from the front of the first block.
    start: u32,
    /// References in the last block, counted from the block's front.
    end: u32,
    len: u32,
    /// In the delay queue, or held by the one who took it from there to flush it.
    pub(crate) armed: bool,
}

impl Bucket {
    pub(crate) const fn new() -> Self {
        Bucket { first: NONE, last: NONE, start: 0, end: BLOCK, len: 0, armed: false }
    }

    /// How many references it holds, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// The reference that was pushed first.
    #[inline]
    pub(crate) fn front(&self, blocks: &Blocks) -> Option<Reference> {
        (self.len > 0).then(|| blocks.0.at(self.first).references[self.start as usize])
    }

    #[inline]
    pub(crate) fn push(&mut self, blocks: &mut Blocks, reference: Reference) {
        if self.end == BLOCK {
            let block = blocks.allocate();
            if self.last == NONE {
                self.first = block;
            } else {
                blocks.0.at_mut(self.last).next = block;
            }
            self.last = block;
            self.end = 0;
        }
        blocks.0.at_mut(self.last).references[self.end as usize] = reference;
        self.end += 1;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self, blocks: &mut Blocks) {
        if self.len > 0 {
            self.drop_front(blocks, 1);
        }
    }

    /// Takes at most `limit` references from the front and appends them to `out`.
    pub(crate) fn take_front(
        &mut self,
        blocks: &mut Blocks,
        limit: usize,
        out: &mut Vec<Reference>,
    ) {
        let mut wanted = limit.min(self.len());
        while wanted > 0 {
            let end = if self.first == self.last { self.end } else { BLOCK };
            let (start, taken) = (self.start as usize, wanted.min((end - self.start) as usize));
            out.extend_from_slice(&blocks.0.at(self.first).references[start..start + taken]);
            self.drop_front(blocks, taken as u32);
            wanted -= taken;
        }
    }

    /// Drops `count` references of the first block, and the block with its last one.
    #[inline]
    fn drop_front(&mut self, blocks: &mut Blocks, count: u32) {
        self.start += count;
        self.len -= count;
        if self.len == 0 || self.start == BLOCK {
            self.release_first(blocks);
        }
    }

    #[inline(never)]
    fn release_first(&mut self, blocks: &mut Blocks) {
        let next = blocks.0.at(self.first).next;
        blocks.0.release(self.first);
        if self.len == 0 {
            *self = Bucket { armed: self.armed, ..Bucket::new() };
        } else {
            self.first = next;
            self.start = 0;
        }
    }

    /// Checks this bucket's blocks and calls `check` with each reference.
    pub(crate) fn assert_invariants(&self, blocks: &Blocks, mut check: impl FnMut(Reference)) {
        let (mut count, mut last, mut index, mut start) = (0, NONE, self.first, self.start);
        while index != NONE {
            let block = blocks.0.at(index);
            let end = if index == self.last { self.end } else { BLOCK };
            assert!(start < end, "a block without references");
            block.references[start as usize..end as usize].iter().copied().for_each(&mut check);
            count += end - start;
            (last, index, start) = (index, block.next, 0);
        }
        assert_eq!((last, count), (self.last, self.len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_leave_in_the_order_in_which_they_came() {
        let (mut blocks, mut bucket, mut out) = (Blocks::new(), Bucket::new(), Vec::new());
        let (mut pushed, mut taken) = (0, 0);
        for step in 0..400 {
            for _ in 0..step % 97 {
                bucket.push(&mut blocks, Reference { tick: pushed, ..Reference::default() });
                pushed += 1;
            }
            bucket.take_front(&mut blocks, step as usize % 71, &mut out);
            bucket.assert_invariants(&blocks, |_| ());
            blocks.assert_invariants();
            for reference in out.drain(..) {
                assert_eq!(reference.tick, taken);
                taken += 1;
            }
            assert_eq!(bucket.len() as u32, pushed - taken);
            let front = bucket.front(&blocks).map(|front| front.tick);
            assert_eq!(front, (taken < pushed).then_some(taken));
        }
        while bucket.len() > 0 {
            bucket.pop_front(&mut blocks);
        }
        assert_eq!(blocks.0.len(), 0, "an empty bucket has no block");
    }
}
