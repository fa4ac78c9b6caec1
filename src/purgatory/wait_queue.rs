//! The wait queue: the entries of the operations that are watched on one key, first in, first out.
//!
//! The entries are stored in small blocks, which form a doubly linked list. An entry never moves,
//! so it is found by its [`Spot`] and leaves in constant time, wherever in the queue it is. A block
//! is removed with its last entry.
//!
//! Invariants, checked by [`Entries::assert_invariants`]: each block has an entry; all but the last
//! were full.
//!
//! # Visits
//! A visit takes a batch of a queue's operations along, and continues at the next entry that is
//! there. If the block of that entry has gone meanwhile, the visit looks for the place from the
//! front on, a few blocks at a time, and passes over what it has seen. It ends before the entries
//! that were watched after it began.

use crate::store::slab::{Key, Slab};
use crate::store::table::ShortHash;
use std::cmp::Ordering;
use std::num::{NonZeroU8, NonZeroU64};

/// Entries of a block, which takes 120 bytes in the slab: few, because most keys of most services
/// have one or two operations. Fewer in models, so that a visit of few operations takes several
/// blocks.
const BLOCK: u8 = if cfg!(tickwheel_model) { 2 } else { 7 };

/// The number of entries that a visit takes along at once, and of blocks that it looks at.
const BATCH: usize = if cfg!(tickwheel_model) { 2 } else { 32 };

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Block {
    /// The block's number in its queue, which grows from front to back.
    number: NonZeroU64,
    /// The entries that are present, a bit for each. Entries are added only at the end, so they
    /// stay in order.
    live: u32,
    queue: QueueName,
    previous: u32,
    next: u32,
    /// An entry is the name of its operation.
    entries: [Id; BLOCK as usize],
}

/// Identifies a queue in its shard: its key's hash, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueName {
    pub(crate) hash: ShortHash,
    pub(crate) number: u32,
}

/// The queue of entries of one key; see the [module](self).
#[derive(Debug)]
pub(crate) struct WaitQueue<K> {
    pub(crate) number: u32,
    pub(crate) key: K,
    /// The number of the next block. No number is used twice, whichever blocks were removed.
    next_number: NonZeroU64,
    first: u32,
    last: u32,
    /// The number of used slots of the last block; as if there were a full one before the first.
    end: u8,
}

/// The entries of all keys of one shard.
#[derive(Debug)]
pub(crate) struct Entries(Slab<Block, 32>);

/// A visit of a queue that has not come to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) queue: QueueName,
    /// The block at which it continues, if that is still there.
    block: Key,
    /// The first entry that it has not seen, and the end.
    from: Mark,
    until: Mark,
}

/// A slot of a block. The block is identified by its number, because it may have been removed.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: NonZeroU64,
    slot: u8,
}

impl<K> WaitQueue<K> {
    pub(crate) fn new(number: u32, key: K) -> Self {
        let next_number = NonZeroU64::MIN;
        WaitQueue { number, key, next_number, first: NONE, last: NONE, end: BLOCK }
    }

    /// Returns whether the queue has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

impl Entries {
    pub(crate) fn new() -> Self {
        Entries(Slab::new())
    }

    /// Adds an entry to the end of a queue, which belongs to this shard.
    ///
    /// Always inlined, like the removal of an entry: the calls made up a third of their
    /// instructions.
    #[inline(always)]
    pub(crate) fn push<K>(
        &mut self,
        (hash, queue): (ShortHash, &mut WaitQueue<K>),
        shard: u16,
        operation: Id,
    ) -> Spot {
        if queue.end == BLOCK {
            self.append_block(hash, queue);
        }
        let slot = queue.end;
        queue.end += 1;
        let block = self.0.at_mut(queue.last);
        block.entries[usize::from(slot)] = operation;
        block.live |= 1 << slot;
        Spot::new(shard, slot, queue.last)
    }

    /// Removes an entry. Returns its queue if its block has to be [forgotten](Self::forget_block).
    #[inline(always)]
    pub(crate) fn remove(&mut self, spot: Spot) -> Option<QueueName> {
        let block = self.0.at_mut(spot.block);
        block.live &= !(1 << spot.slot());
        (block.live == 0).then_some(block.queue)
    }

    #[inline(never)]
    fn append_block<K>(&mut self, hash: ShortHash, queue: &mut WaitQueue<K>) {
        let (number, previous) = (queue.next_number, queue.last);
        queue.next_number = number.saturating_add(1);
        let name = QueueName { hash, number: queue.number };
        let entries = [Id::NONE; BLOCK as usize];
        let block = Block { number, live: 0, queue: name, previous, next: NONE, entries };
        (queue.last, queue.end) = (self.0.insert(block, 0).index, 0);
        match previous {
            NONE => queue.first = queue.last,
            previous => self.0.at_mut(previous).next = queue.last,
        }
    }

    /// Removes a block without entries.
    pub(crate) fn forget_block<K>(&mut self, queue: &mut WaitQueue<K>, index: u32) {
        let Block { previous, next, .. } = *self.0.at(index);
        self.0.release(index);
        match previous {
            NONE => queue.first = next,
            previous => self.0.at_mut(previous).next = next,
        }
        match next {
            // The block before it is full: only then was this one appended.
            NONE => (queue.last, queue.end) = (previous, BLOCK),
            next => self.0.at_mut(next).previous = previous,
        }
    }

    /// Begins to visit the operations that are in a queue now. Appends some of them to `out`, and
    /// no more than there is `room` for. Returns where the visit has to be
    /// [resumed](Self::resume).
    pub(crate) fn visit<K>(
        &self,
        (hash, queue): (ShortHash, &WaitQueue<K>),
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let from = Mark { number: NonZeroU64::MIN, slot: 0 };
        let until = Mark { number: self.0.at(queue.last).number, slot: queue.end };
        let visit = Visit {
            queue: QueueName { hash, number: queue.number },
            block: self.0.key_at(queue.first)?,
            from,
            until,
        };
        self.resume(queue, visit, room, out)
    }

    /// Continues a visit in the same way.
    pub(crate) fn resume<K>(
        &self,
        queue: &WaitQueue<K>,
        visit: Visit,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let is_there = self.0.get(visit.block).is_some();
        let mut index = if is_there { visit.block.index } else { queue.first };
        for _ in 0..BATCH {
            let block = (index != NONE).then(|| self.0.at(index));
            let block = block.filter(|block| block.number <= visit.until.number)?;
            let mut live = block.live & !block.before(visit.from) & block.before(visit.until);
            while live != 0 {
                let slot = live.trailing_zeros() as u8;
                if out.len() == room.min(BATCH) {
                    let from = Mark { number: block.number, slot };
                    return Some(Visit { block: self.0.key_at(index)?, from, ..visit });
                }
                out.push(block.entries[usize::from(slot)]);
                live &= live - 1;
            }
            index = block.next;
        }
        let block = self.0.key_at(index)?;
        let next = Mark { number: self.0.at(index).number, slot: 0 };
        // What was taken along lies before this block.
        let from = if next.number > visit.from.number { next } else { visit.from };
        Some(Visit { block, from, ..visit })
    }

    /// Checks a queue, which is not empty. Returns how many blocks and entries it has.
    pub(crate) fn assert_invariants<K>(
        &self,
        (hash, queue): &(ShortHash, WaitQueue<K>),
    ) -> (usize, usize) {
        let name = QueueName { hash: *hash, number: queue.number };
        let (mut blocks, mut len, mut previous, mut index) = (0, 0, NONE, queue.first);
        while index != NONE {
            let block = self.0.at(index);
            let used = if index == queue.last { queue.end } else { BLOCK };
            assert_eq!((block.queue, block.previous), (name, previous));
            assert!(block.live >> used == 0, "no entry behind the used slots");
            assert!(block.live > 0, "an empty block goes");
            blocks += 1;
            len += block.live.count_ones() as usize;
            (previous, index) = (index, block.next);
        }
        assert!(queue.last == previous && queue.end <= BLOCK);
        (blocks, len)
    }

    /// Returns how many blocks there are in all queues.
    pub(crate) fn blocks(&self) -> usize {
        self.0.len()
    }
}

impl Block {
    /// Returns the bits of the slots that come before a mark in its queue.
    fn before(&self, mark: Mark) -> u32 {
        match self.number.cmp(&mark.number) {
            Ordering::Less => u32::MAX,
            Ordering::Equal => (1 << mark.slot) - 1,
            Ordering::Greater => 0,
        }
    }
}

/// Identifies one operation, and never another one: its record's key, in the shard of its first
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) shard: u16,
    pub(crate) key: Key,
}

impl Id {
    /// The name of no operation, for a slot without an entry.
    const NONE: Id = Id { shard: 0, key: Key { index: 0, generation: 0 } };
}

/// The spot of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) shard: u16,
    /// Counted from 1: the impossible value 0 distinguishes the variants of `Spots`, which saves
    /// 8 bytes for each operation.
    slot: NonZeroU8,
    pub(crate) block: u32,
}

impl Spot {
    pub(crate) const NONE: Spot = Spot { shard: 0, slot: NonZeroU8::MAX, block: u32::MAX };

    fn new(shard: u16, slot: u8, block: u32) -> Self {
        Spot { shard, slot: NonZeroU8::MIN.saturating_add(slot), block }
    }

    #[inline]
    pub(crate) fn is_made(self) -> bool {
        self.block != Spot::NONE.block
    }

    /// Returns the entry's slot in the block.
    fn slot(self) -> u8 {
        self.slot.get() - 1
    }
}
