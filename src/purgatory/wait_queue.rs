//! The wait queue: the entries of the operations that are watched on one key.
//!
//! The entries are in order, first in, first out. They are stored in small blocks, which form a
//! doubly linked list. An entry never moves, so it is found by its [`Spot`] and leaves in constant
//! time, wherever in the queue it is. A block is removed with its last entry. The first block is a
//! small one, because most keys of most services have one or two operations.
//!
//! Invariants, checked by [`Entries::assert_invariants`] while no visit is under way: each block
//! has an entry, and is not pinned; all but the last were full, and only the first may be small;
//! the cursor is in one of them, or behind all of them, where the next entry makes a new block.
//!
//! # Visits
//! A visit takes a batch of a queue's operations along and pins the block at which it stopped. A
//! pinned block stays, even if it is empty when the visit is resumed.
//!
//! A visit that wants only some operations begins at the queue's cursor, goes around, and leaves
//! the cursor behind the last operation that it took along when it has enough. It keeps a position
//! of its own: whatever other visits do to the cursor in between, it reaches each entry that was
//! present when it began. Entries that were passed over are looked at again by a visit that begins
//! at the front. Such a visit comes after as many others as the last visit from the front looked at
//! entries.

use crate::store::slab::{Key, Slab};
use crate::store::table::ShortHash;
use std::cmp::Ordering;
use std::num::{NonZeroU8, NonZeroU64};

/// Entries of a block. With its header, a block fills 256 bytes, a small one 64. Few in models, so
/// that a visit of few operations takes several batches.
const BLOCK: usize = if cfg!(tickwheel_model) { 2 } else { 18 };
const SMALL_BLOCK: usize = if cfg!(tickwheel_model) { 1 } else { 2 };

/// The number of entries that a visit takes along at once.
const BATCH: usize = if cfg!(tickwheel_model) { 2 } else { 32 };

/// Marks the number of a small block.
const SMALL: u32 = 1 << 31;
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Block<const N: usize> {
    head: Head,
    /// An entry is the name of its operation.
    entries: [Id; N],
}

#[derive(Debug)]
struct Head {
    /// The block's number in its queue, which grows from front to back.
    number: NonZeroU64,
    /// The entries that are present, a bit for each. Entries are added only at the end, so they
    /// stay in order.
    live: u32,
    queue: QueueName,
    previous: u32,
    next: u32,
    pins: u16,
    /// The slot of the queue's cursor, if it is in this block.
    cursor: u8,
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
    /// The block that contains the cursor, or `NONE` if the cursor is behind all of them.
    cursor: u32,
    /// How many visits begin at the cursor before one begins at the front.
    from_cursor: u32,
    /// The number of used slots of the last block, and its capacity.
    end: u8,
    capacity: u8,
}

/// The entries of all keys of one shard.
#[derive(Debug)]
pub(crate) struct Entries {
    small: Slab<Block<SMALL_BLOCK>>,
    large: Slab<Block<BLOCK>>,
}

/// The position at which a visit continues, and its end: before the entries that were watched after
/// it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// The block at which it continues, which is pinned between two batches.
    block: u32,
    slot: u8,
    /// The number of entries so far.
    looked_at: u32,
    until: Mark,
    /// Where it began, and so where it ends once it has continued at the front.
    around: Option<Mark>,
}

/// A slot of a block. The block is identified by its number, because it may have been removed.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: NonZeroU64,
    slot: u8,
}

impl<K> WaitQueue<K> {
    pub(crate) fn new(number: u32, key: K) -> Self {
        WaitQueue {
            number,
            key,
            next_number: NonZeroU64::MIN,
            first: NONE,
            last: NONE,
            cursor: NONE,
            from_cursor: 0,
            end: 0,
            capacity: 0,
        }
    }

    /// Returns whether the queue has no entries and no visit.
    pub(crate) fn is_unused(&self) -> bool {
        self.first == NONE
    }

    /// Returns how many slots of a block were used.
    fn used(&self, block: u32) -> u8 {
        if block == self.last { self.end } else { capacity(block) }
    }
}

impl Entries {
    pub(crate) fn new() -> Self {
        Entries { small: Slab::new(), large: Slab::new() }
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
        if queue.end == queue.capacity {
            self.append_block(hash, queue);
        }
        let slot = queue.end;
        queue.end += 1;
        let (head, entries) = self.block_mut(queue.last);
        entries[usize::from(slot)] = operation;
        head.live |= 1 << slot;
        Spot::new(shard, slot, queue.last)
    }

    /// Removes an entry. Returns its queue if its block has to be [forgotten](Self::forget_block).
    #[inline(always)]
    pub(crate) fn remove(&mut self, spot: Spot) -> Option<QueueName> {
        let head = self.head_mut(spot.block);
        head.live &= !(1 << spot.slot());
        head.is_unused().then_some(head.queue)
    }

    #[inline(never)]
    fn append_block<K>(&mut self, hash: ShortHash, queue: &mut WaitQueue<K>) {
        let previous = queue.last;
        let number = queue.next_number;
        queue.next_number = number.saturating_add(1);
        let name = QueueName { hash, number: queue.number };
        let head = Head { number, live: 0, queue: name, previous, next: NONE, pins: 0, cursor: 0 };
        queue.last = if previous == NONE {
            let entries = [Id::NONE; SMALL_BLOCK];
            self.small.insert(Block { head, entries }, 0).index | SMALL
        } else {
            self.large.insert(Block { head, entries: [Id::NONE; BLOCK] }, 0).index
        };
        (queue.end, queue.capacity) = (0, capacity(queue.last));
        if queue.cursor == NONE {
            queue.cursor = queue.last;
        }
        match previous {
            NONE => queue.first = queue.last,
            previous => self.head_mut(previous).next = queue.last,
        }
    }

    /// Removes a block without entries and without a visit.
    #[inline(never)]
    pub(crate) fn forget_block<K>(&mut self, queue: &mut WaitQueue<K>, index: u32) {
        let Head { previous, next, .. } = *self.head(index);
        if index & SMALL == 0 {
            self.large.release(index);
        } else {
            self.small.release(index ^ SMALL);
        }
        match previous {
            NONE => queue.first = next,
            previous => self.head_mut(previous).next = next,
        }
        match next {
            NONE => {
                // The block before it is full: only then was this one appended.
                let end = if previous == NONE { 0 } else { capacity(previous) };
                (queue.last, queue.end, queue.capacity) = (previous, end, end);
            }
            next => self.head_mut(next).previous = previous,
        }
        if queue.cursor == index {
            queue.cursor = next;
            if next != NONE {
                self.head_mut(next).cursor = 0;
            }
        }
    }

    #[inline]
    fn head(&self, block: u32) -> &Head {
        if block & SMALL == 0 {
            &self.large.at(block).head
        } else {
            &self.small.at(block ^ SMALL).head
        }
    }

    #[inline(always)]
    fn head_mut(&mut self, block: u32) -> &mut Head {
        if block & SMALL == 0 {
            &mut self.large.at_mut(block).head
        } else {
            &mut self.small.at_mut(block ^ SMALL).head
        }
    }

    #[inline(always)]
    fn block_mut(&mut self, block: u32) -> (&mut Head, &mut [Id]) {
        if block & SMALL == 0 {
            let Block { head, entries } = self.large.at_mut(block);
            (head, entries)
        } else {
            let Block { head, entries } = self.small.at_mut(block ^ SMALL);
            (head, entries)
        }
    }

    /// Begins to visit the operations that are in a queue now: from the front, or, if there is a
    /// `limit`, from the cursor on. Appends some of them to `out`, and no more than that. A visit
    /// that is returned must be [resumed](Self::resume).
    pub(crate) fn visit<K>(
        &mut self,
        queue: &WaitQueue<K>,
        limit: Option<usize>,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let (mut block, mut slot) = (queue.first, 0);
        if limit.is_some() && queue.from_cursor > 0 && queue.cursor != NONE {
            (block, slot) = (queue.cursor, self.head(queue.cursor).cursor);
        }
        let until = Mark { number: self.head(queue.last).number, slot: queue.end };
        let start = Mark { number: self.head(block).number, slot };
        let around = limit.map(|_| start);
        let visit = Visit { block, slot, looked_at: 0, until, around };
        self.take_along(queue, visit, limit.unwrap_or(usize::MAX), out)
    }

    /// Continues a visit in the same way. If there is no `room` any more, ends it and leaves the
    /// cursor where it stopped.
    pub(crate) fn resume<K>(
        &mut self,
        queue: &mut WaitQueue<K>,
        mut visit: Visit,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let head = self.head_mut(visit.block);
        head.pins -= 1;
        if room == 0 {
            (queue.cursor, head.cursor) = (visit.block, visit.slot);
            queue.from_cursor =
                queue.from_cursor.checked_sub(1).unwrap_or(visit.looked_at.saturating_sub(1));
        }
        let next = head.next;
        if head.is_unused() {
            self.forget_block(queue, visit.block);
            (visit.block, visit.slot) = (next, 0);
        }
        if room == 0 { None } else { self.take_along(queue, visit, room, out) }
    }

    fn take_along<K>(
        &mut self,
        queue: &WaitQueue<K>,
        mut visit: Visit,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let room = room.min(BATCH);
        loop {
            let Some(end) = self.end_in_block(queue, visit) else {
                visit.until = visit.around.take()?;
                (visit.block, visit.slot) = (queue.first, 0);
                continue;
            };
            let (head, entries) = self.block_mut(visit.block);
            let mut live = head.live & ((1 << end) - 1) >> visit.slot << visit.slot;
            while live != 0 && out.len() < room {
                let slot = live.trailing_zeros();
                live &= live - 1;
                out.push(entries[slot as usize]);
                visit.slot = slot as u8 + 1;
            }
            if out.len() >= room {
                head.pins += 1;
                visit.looked_at = visit.looked_at.saturating_add(out.len() as u32);
                return Some(visit);
            }
            (visit.block, visit.slot) = (head.next, 0);
        }
    }

    /// Returns the slot before which a visit ends in its current block; `None` if the block is
    /// behind its end.
    fn end_in_block<K>(&self, queue: &WaitQueue<K>, visit: Visit) -> Option<u8> {
        if visit.block == NONE {
            return None;
        }
        match self.head(visit.block).number.cmp(&visit.until.number) {
            Ordering::Less => Some(queue.used(visit.block)),
            Ordering::Equal => Some(visit.until.slot),
            Ordering::Greater => None,
        }
    }

    /// Returns the queue that is visited.
    pub(crate) fn queue_of_visit(&self, visit: Visit) -> QueueName {
        self.head(visit.block).queue
    }

    /// Checks a queue, which is not empty. Returns how many blocks and entries it has.
    pub(crate) fn assert_invariants<K>(
        &self,
        (hash, queue): &(ShortHash, WaitQueue<K>),
    ) -> (usize, usize) {
        let name = QueueName { hash: *hash, number: queue.number };
        let (mut blocks, mut len, mut previous, mut index) = (0, 0, NONE, queue.first);
        let mut has_cursor = queue.cursor == NONE && queue.end == queue.capacity;
        while index != NONE {
            let head = self.head(index);
            let live = head.live.count_ones();
            assert_eq!((head.queue, head.previous), (name, previous));
            assert!(head.live >> queue.used(index) == 0, "no entry behind the used slots");
            assert!(live > 0 && head.pins == 0, "empty blocks go, and nobody visits now");
            assert!(index & SMALL == 0 || previous == NONE, "only the first is small");
            has_cursor |= index == queue.cursor && head.cursor <= queue.used(index);
            blocks += 1;
            len += live as usize;
            (previous, index) = (index, head.next);
        }
        assert_eq!((queue.last, queue.capacity), (previous, capacity(previous)));
        assert!(queue.end <= queue.capacity);
        assert!(has_cursor, "the cursor is in a block, or behind all of them");
        (blocks, len)
    }

    /// Returns how many blocks there are in all queues.
    pub(crate) fn blocks(&self) -> usize {
        self.small.len() + self.large.len()
    }
}

impl Head {
    /// Returns whether the block has no entries and no visit.
    #[inline]
    fn is_unused(&self) -> bool {
        self.live == 0 && self.pins == 0
    }
}

/// Returns how many entries the block with this number, or its mark, has room for.
#[inline]
fn capacity(block: u32) -> u8 {
    (if block & SMALL == 0 { BLOCK } else { SMALL_BLOCK }) as u8
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(tickwheel_model))]
    fn blocks_fill_their_lines_of_the_cache() {
        // Includes the generation and the tag of a slot.
        assert_eq!(size_of::<Option<Block<SMALL_BLOCK>>>() + 8, 64);
        assert_eq!(size_of::<Option<Block<BLOCK>>>() + 8, 256);
    }
}
