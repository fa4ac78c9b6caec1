//! The wait queue: the entries of the operations that are watched on one key.
//!
//! The entries are in order, first in, first out. They are stored in small blocks, which form a
//! doubly linked list. An entry never moves, so it is found by its [`Place`] and leaves in constant
//! time, wherever in the queue it is. A block is removed with its last entry. The first block is a
//! small one, because most keys of most services have one or two operations.
//!
//! Invariants, checked by [`Entries::assert_invariants`] while no visit is under way: each block
//! has an entry, and is not pinned; all but the last were full, and only the first may be small;
//! the cursor is in one of them, or behind all of them, where the next entry makes a new block.

use crate::store::slab::{Key, Slab};
use crate::store::table::ShortHash;
use std::num::{NonZeroU8, NonZeroU64};

/// Entries of a block. With its header, a block fills 256 bytes, a small one 64. Few in models, so
/// that a visit of few operations takes several batches.
const BLOCK: usize = if cfg!(tickwheel_model) { 2 } else { 18 };
const SMALL_BLOCK: usize = if cfg!(tickwheel_model) { 1 } else { 2 };

/// Marks the number of a small block.
const SMALL: u32 = 1 << 31;
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Block<const N: usize> {
    head: Head,
    /// An entry is the name of its operation.
    entries: [Id; N],
}

#[derive(Debug)]
pub(crate) struct Head {
    /// The block's number in its queue, which grows from front to back.
    pub(crate) number: NonZeroU64,
    /// The entries that are present, a bit for each. Entries are added only at the end, so they
    /// stay in order.
    pub(crate) live: u32,
    pub(crate) queue: QueueName,
    previous: u32,
    pub(crate) next: u32,
    pub(crate) pins: u16,
    /// The slot of the queue's cursor, if it is in this block.
    pub(crate) cursor: u8,
}

/// Identifies a queue in its shard: its key's hash, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueName {
    pub(crate) hash: ShortHash,
    pub(crate) number: u32,
}

/// The queue of entries of one key; see the [module](self).
#[derive(Debug)]
pub(crate) struct WaitQueue {
    pub(crate) name: QueueName,
    /// The number of the next block. No number is used twice, whichever blocks were removed.
    next_number: NonZeroU64,
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The block that contains the cursor, or `NONE` if the cursor is behind all of them.
    pub(crate) cursor: u32,
    /// How many visits begin at the cursor before one begins at the front.
    pub(crate) from_cursor: u32,
    /// The number of used slots of the last block, and its capacity.
    pub(crate) end: u8,
    capacity: u8,
}

/// The entries of all keys of one shard.
#[derive(Debug)]
pub(crate) struct Entries {
    small: Slab<Block<SMALL_BLOCK>>,
    large: Slab<Block<BLOCK>>,
}

impl WaitQueue {
    pub(crate) fn new(name: QueueName) -> Self {
        WaitQueue {
            name,
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
    pub(crate) fn used(&self, block: u32) -> u8 {
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
    pub(crate) fn push(&mut self, queue: &mut WaitQueue, shard: u16, operation: Id) -> Place {
        if queue.end == queue.capacity {
            self.append_block(queue);
        }
        let slot = queue.end;
        queue.end += 1;
        let (head, entries) = self.block_mut(queue.last);
        entries[usize::from(slot)] = operation;
        head.live |= 1 << slot;
        Place::new(shard, slot, queue.last)
    }

    /// Removes an entry. Returns its queue if its block has to be [forgotten](Self::forget_block).
    #[inline(always)]
    pub(crate) fn remove(&mut self, place: Place) -> Option<QueueName> {
        let head = self.head_mut(place.block);
        head.live &= !(1 << place.slot());
        head.is_unused().then_some(head.queue)
    }

    #[inline(never)]
    fn append_block(&mut self, queue: &mut WaitQueue) {
        let previous = queue.last;
        let number = queue.next_number;
        queue.next_number = number.saturating_add(1);
        let name = queue.name;
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
    pub(crate) fn forget_block(&mut self, queue: &mut WaitQueue, index: u32) {
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
    pub(crate) fn head(&self, block: u32) -> &Head {
        if block & SMALL == 0 {
            &self.large.at(block).head
        } else {
            &self.small.at(block ^ SMALL).head
        }
    }

    #[inline(always)]
    pub(crate) fn head_mut(&mut self, block: u32) -> &mut Head {
        if block & SMALL == 0 {
            &mut self.large.at_mut(block).head
        } else {
            &mut self.small.at_mut(block ^ SMALL).head
        }
    }

    #[inline(always)]
    pub(crate) fn block_mut(&mut self, block: u32) -> (&mut Head, &mut [Id]) {
        if block & SMALL == 0 {
            let Block { head, entries } = self.large.at_mut(block);
            (head, entries)
        } else {
            let Block { head, entries } = self.small.at_mut(block ^ SMALL);
            (head, entries)
        }
    }

    /// Checks a queue, which is not empty. Returns how many blocks and entries it has.
    pub(crate) fn assert_invariants(&self, queue: &WaitQueue) -> (usize, usize) {
        let (mut blocks, mut len, mut previous, mut index) = (0, 0, NONE, queue.first);
        let mut has_cursor = queue.cursor == NONE && queue.end == queue.capacity;
        while index != NONE {
            let head = self.head(index);
            let live = head.live.count_ones();
            assert_eq!((head.queue, head.previous), (queue.name, previous));
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
    pub(crate) fn is_unused(&self) -> bool {
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
    pub(crate) const NONE: Id = Id { shard: 0, key: Key { index: 0, generation: 0 } };
}

/// The place of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) shard: u16,
    /// Counted from 1: the impossible value 0 distinguishes the variants of [`Places`], which saves
    /// 8 bytes for each operation.
    slot: NonZeroU8,
    pub(crate) block: u32,
}

/// The places of an operation's entries, in the order of its keys.
#[derive(Debug)]
pub(crate) enum Places {
    Few([Place; FEW]),
    Many(Box<[Place]>),
}

/// The number of places that need no memory of their own.
const FEW: usize = 3;

impl Place {
    const NONE: Place = Place { shard: 0, slot: NonZeroU8::MAX, block: u32::MAX };

    pub(crate) fn new(shard: u16, slot: u8, block: u32) -> Self {
        Place { shard, slot: NonZeroU8::MIN.saturating_add(slot), block }
    }

    #[inline]
    fn is_made(self) -> bool {
        self.block != Place::NONE.block
    }

    /// Returns the entry's slot in the block.
    pub(crate) fn slot(self) -> u8 {
        self.slot.get() - 1
    }
}

impl Places {
    pub(crate) const NONE: Places = Places::Few([Place::NONE; FEW]);

    /// Makes room for the places of one entry for each of so many keys.
    pub(crate) fn of(keys: usize) -> Self {
        if keys <= FEW { Places::NONE } else { Places::Many(vec![Place::NONE; keys].into()) }
    }

    /// Sets the place of the entry for a key.
    pub(crate) fn set(&mut self, number: usize, place: Place) {
        match self {
            Places::Few(places) => places[number] = place,
            Places::Many(places) => places[number] = place,
        }
    }

    /// Returns the place of the first key's entry, if it has been made.
    #[inline]
    pub(crate) fn first(&self) -> Option<Place> {
        self.as_slice().first().copied().filter(|place| place.is_made())
    }

    /// Returns the places of the other keys' entries, as far as they have been made.
    #[inline]
    pub(crate) fn others(&self) -> impl Iterator<Item = Place> {
        self.as_slice().iter().skip(1).copied().take_while(|place| place.is_made())
    }

    #[inline]
    fn as_slice(&self) -> &[Place] {
        match self {
            Places::Few(places) => places,
            Places::Many(places) => places,
        }
    }
}

impl Default for Places {
    fn default() -> Self {
        Places::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(tickwheel_model))]
    fn blocks_fill_their_lines_of_the_cache() {
        // Includes the generation and the tag of their places.
        assert_eq!(size_of::<Option<Block<SMALL_BLOCK>>>() + 8, 64);
        assert_eq!(size_of::<Option<Block<BLOCK>>>() + 8, 256);
    }

    #[test]
    fn the_places_of_three_entries_take_24_bytes() {
        assert_eq!(size_of::<Places>(), 24);
    }
}
