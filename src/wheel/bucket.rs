//! The bucket: references to the entries that were filed under one slot of a wheel, first in,
//! first out.
//!
//! An entry is stored in the slab and never moves. A bucket holds 12 bytes for it, enough to
//! cascade it without touching the entry. References are stored in blocks, which are read in order
//! when the bucket is flushed. So no cache miss waits for another one, and a bucket grows without
//! copying.
//!
//! A bucket refers to entries but does not own them: cancelling an entry, or filing it again,
//! leaves its reference behind, which is then *stale*. Code that takes references out asks the slab
//! which of them are stale. The core keeps the number of stale references below that of the others.
//!
//! A bucket begins with a small block. Most buckets of a wheel with many slots hold a reference or
//! two, and a cancelled one should not leave half a kilobyte behind.
//!
//! Invariants, checked by [`Bucket::assert_invariants`]: a bucket's blocks are linked from `first`
//! to `last`, all full but for the front of the first and the back of the last, and only the first
//! is small; an empty bucket has no block.

use crate::store::slab::{Slab, TINY};
use alloc::vec::Vec;

/// References in a block. With its header, a block fills 512 bytes, a small one 64.
const BLOCK: usize = if TINY { 3 } else { 41 };
const SMALL_BLOCK: usize = if TINY { 2 } else { 4 };

/// Blocks come and go in bursts, and a few of them stay after a burst, so their chunks are small.
/// A chunk of large ones has enough of them to give most of its memory back when few are left.
const SMALL_CHUNK_BYTES: usize = 4 << 10;
const CHUNK_BYTES: usize = 16 << 10;

/// Marks the number of a small block.
const SMALL: u32 = 1 << 31;
const NONE: u32 = u32::MAX;

/// What a bucket keeps for an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reference {
    /// The low 32 bits of the tick under which the entry was filed; a mark of it if it had passed.
    pub(crate) tick: u32,
    /// The entry's index in the slab.
    pub(crate) index: u32,
    /// The number of the filing: the entry's tag in the slab, as long as this is its latest filing.
    pub(crate) filing: u32,
}

/// Level and slot of a bucket in the wheels of its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BucketId {
    pub(crate) level: u8,
    pub(crate) slot: u32,
}

#[derive(Clone, Debug)]
struct Block<const N: usize> {
    next: u32,
    references: [Reference; N],
}

impl<const N: usize> Block<N> {
    const EMPTY: Self =
        Block { next: NONE, references: [Reference { tick: 0, index: 0, filing: 0 }; N] };
}

/// The blocks of all buckets of one core.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    small: Slab<Block<SMALL_BLOCK>, SMALL_CHUNK_BYTES>,
    large: Slab<Block<BLOCK>, CHUNK_BYTES>,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        Blocks { small: Slab::new(), large: Slab::new() }
    }

    #[inline]
    fn release(&mut self, block: u32) {
        if block & SMALL == 0 {
            self.large.release(block)
        } else {
            self.small.release(block ^ SMALL)
        }
    }

    /// Returns the references of a block, and which block follows it.
    #[inline(always)]
    fn block(&self, number: u32) -> (&[Reference], u32) {
        if number & SMALL == 0 {
            let block = self.large.at(number);
            (&block.references, block.next)
        } else {
            let block = self.small.at(number ^ SMALL);
            (&block.references, block.next)
        }
    }

    #[inline(always)]
    fn block_mut(&mut self, number: u32) -> (&mut [Reference], &mut u32) {
        if number & SMALL == 0 {
            let block = self.large.at_mut(number);
            (&mut block.references, &mut block.next)
        } else {
            let block = self.small.at_mut(number ^ SMALL);
            (&mut block.references, &mut block.next)
        }
    }

    pub(crate) fn assert_invariants(&self) {
        self.small.assert_invariants();
        self.large.assert_invariants();
    }
}

/// Returns how many references the block with this number, or its mark, has room for.
#[inline]
fn capacity(block: u32) -> u8 {
    (if block & SMALL == 0 { BLOCK } else { SMALL_BLOCK }) as u8
}

/// One slot of a wheel. An empty bucket takes 16 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    first: u32,
    last: u32,
    len: u32,
    /// References taken from the front of the first block.
    start: u8,
    /// References in the last block, counted from the block's front, and its capacity.
    end: u8,
    capacity: u8,
    /// Whether the bucket is in the delay queue, or held by the thread that took it from there to
    /// flush it.
    pub(crate) armed: bool,
}

impl Bucket {
    pub(crate) const fn new() -> Self {
        Bucket { first: NONE, last: NONE, len: 0, start: 0, end: 0, capacity: 0, armed: false }
    }

    /// Returns how many references the bucket holds, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the oldest reference.
    #[inline]
    pub(crate) fn front(&self, blocks: &Blocks) -> Option<Reference> {
        (self.len > 0).then(|| blocks.block(self.first).0[usize::from(self.start)])
    }

    /// Adds a reference at the end. Always inlined: the call made up half of its instructions.
    #[inline(always)]
    pub(crate) fn push(&mut self, blocks: &mut Blocks, reference: Reference) {
        if self.end == self.capacity {
            self.add_block(blocks);
        }
        blocks.block_mut(self.last).0[usize::from(self.end)] = reference;
        self.end += 1;
        self.len += 1;
    }

    #[inline(never)]
    fn add_block(&mut self, blocks: &mut Blocks) {
        if self.len == 0 {
            self.first = blocks.small.insert(Block::EMPTY, 0).index | SMALL;
            self.last = self.first;
        } else {
            let block = blocks.large.insert(Block::EMPTY, 0).index;
            *blocks.block_mut(self.last).1 = block;
            self.last = block;
        }
        (self.end, self.capacity) = (0, capacity(self.last));
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
            let (start, end) = (usize::from(self.start), usize::from(self.end_of_first()));
            let taken = wanted.min(end - start);
            out.extend_from_slice(&blocks.block(self.first).0[start..start + taken]);
            self.drop_front(blocks, taken);
            wanted -= taken;
        }
    }

    /// Takes the stale references out of the first block; there must be one. The others then follow
    /// behind the last reference, unless the bucket has no other block. Returns how many references
    /// there were in the block, and how many of them are live. `batch` is scratch space for them.
    pub(crate) fn sweep_front(
        &mut self,
        blocks: &mut Blocks,
        batch: &mut Vec<Reference>,
        is_live: impl Fn(Reference) -> bool,
    ) -> (usize, usize) {
        let references = usize::from(self.start)..usize::from(self.end_of_first());
        let taken = references.len();
        batch.extend_from_slice(&blocks.block(self.first).0[references]);
        batch.retain(|reference| is_live(*reference));
        let live = batch.len();
        // Few references move from a large block to a small one.
        let few = if self.first & SMALL == 0 { SMALL_BLOCK } else { 0 };
        if self.first == self.last && live > few {
            blocks.block_mut(self.first).0[..live].copy_from_slice(batch);
            (self.start, self.end, self.len) = (0, live as u8, live as u32);
        } else {
            self.drop_front(blocks, taken);
            self.extend(blocks, batch);
        }
        batch.clear();
        (taken, live)
    }

    /// Pushes all of these references.
    fn extend(&mut self, blocks: &mut Blocks, mut references: &[Reference]) {
        while let [first, rest @ ..] = references {
            self.push(blocks, *first);
            let end = usize::from(self.end);
            let room = &mut blocks.block_mut(self.last).0[end..];
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.end += now.len() as u8;
            self.len += now.len() as u32;
            references = later;
        }
    }

    /// Returns where the references of the first block end.
    #[inline]
    fn end_of_first(&self) -> u8 {
        if self.first == self.last { self.end } else { capacity(self.first) }
    }

    /// Drops `count` references of the first block, and the block too if it becomes empty.
    #[inline]
    pub(crate) fn drop_front(&mut self, blocks: &mut Blocks, count: usize) {
        self.start += count as u8;
        self.len -= count as u32;
        if self.start == self.end_of_first() {
            self.release_first(blocks);
        }
    }

    #[inline(never)]
    fn release_first(&mut self, blocks: &mut Blocks) {
        let (_, next) = blocks.block(self.first);
        blocks.release(self.first);
        if self.len == 0 {
            *self = Bucket { armed: self.armed, ..Bucket::new() };
        } else {
            self.first = next;
            self.start = 0;
        }
    }

    /// Checks this bucket's blocks and calls `check` with each reference.
    pub(crate) fn assert_invariants(&self, blocks: &Blocks, mut check: impl FnMut(Reference)) {
        let (mut count, mut index, mut start) = (0, self.first, self.start);
        while count < self.len {
            let end = if index == self.last { self.end } else { capacity(index) };
            assert!(start < end, "a block without references");
            assert!(index & SMALL == 0 || index == self.first, "only the first block is small");
            let (references, next) = blocks.block(index);
            let references = &references[usize::from(start)..usize::from(end)];
            references.iter().copied().for_each(&mut check);
            count += u32::from(end - start);
            start = 0;
            index = if index == self.last { NONE } else { next };
        }
        assert_eq!((index, count), (NONE, self.len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_what_is_stale_and_nothing_else() {
        for count in 1..200 {
            for nth in [1, 2, 3, 50, 1_000] {
                let (mut blocks, mut bucket, mut batch) =
                    (Blocks::new(), Bucket::new(), Vec::new());
                for tick in 1..=count {
                    bucket.push(&mut blocks, Reference { tick, ..Reference::default() });
                }
                let mut looked_at = 0;
                while looked_at < 2 * count as usize && bucket.len() > 0 {
                    let is_live = |reference: Reference| reference.tick % nth == 0;
                    looked_at += bucket.sweep_front(&mut blocks, &mut batch, is_live).0;
                    bucket.assert_invariants(&blocks, |_| ());
                }
                let large = blocks.large.len();
                let mut left = Vec::new();
                bucket.assert_invariants(&blocks, |reference| left.push(reference.tick));
                left.sort_unstable();
                assert_eq!(left, (1..=count / nth).map(|n| n * nth).collect::<Vec<_>>());
                assert!(left.len() > SMALL_BLOCK || large == 0, "few lie in a small block");
            }
        }
    }
}
