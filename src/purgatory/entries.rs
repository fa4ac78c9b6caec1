//! The entries of the operations that are watched on the keys of one shard.
//!
//! A key's entries form a line, first in, first out. They lie in blocks of a few, in a doubly
//! linked list. An entry never moves, so it is found by its [`Place`] and leaves in constant time,
//! wherever in the line it stands; a block goes with its last entry.
//!
//! Whoever visits a line takes a batch of its operations along and pins the block where it stopped:
//! a pinned block stays, even if it is empty when its visitor comes back.
//!
//! Invariants, checked by [`Entries::assert_invariants`] while nobody visits: a line has as many
//! entries as its blocks; each block has one, and is not pinned.

use crate::purgatory::place::{Id, Place};
use crate::store::key::Key;
use crate::store::slab::Slab;
use crate::work;

/// Entries of a block: with what belongs to it, it fills 256 bytes. Few in models, so that a visit
/// of few operations takes several batches.
const BLOCK: usize = if cfg!(tickwheel_model) { 2 } else { 17 };
/// What a visit takes along at once, at least, if there is that much: blocks are visited whole.
const BATCH: usize = if cfg!(tickwheel_model) { 2 } else { 32 };
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Block {
    /// An entry is the name of its operation.
    entries: [Id; BLOCK],
    /// Which of them there are, a bit for each.
    live: u32,
    line: u32,
    /// Its number in the line: grows from front to back.
    number: u64,
    previous: u32,
    next: u32,
    /// Slots that were used: entries come in at the end only, so they stay in order.
    used: u8,
    pins: u16,
}

/// The entries of one key.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    id: u32,
    first: u32,
    last: u32,
    /// Of the next block: no number comes twice, whichever blocks have left.
    next_number: u64,
    len: usize,
}

/// Where a visit goes on, and where it ends: before what was watched after it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// The block that was visited last, and is pinned.
    pinned: u32,
    /// The number of the block where the visit ends, and the slot there.
    until: u64,
    until_slot: u8,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Entries(Slab<Block>);

impl WaitQueue {
    /// A line that still has to get its id.
    pub(crate) fn new() -> Self {
        WaitQueue { id: NONE, first: NONE, last: NONE, next_number: 0, len: 0 }
    }

    pub(crate) fn set_id(&mut self, id: u32) {
        self.id = id;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it, and nobody visits it.
    pub(crate) fn is_unused(&self) -> bool {
        self.first == NONE
    }
}

impl Entries {
    pub(crate) fn new() -> Self {
        Entries(Slab::new())
    }

    /// Adds an entry to the end of a line of this shard.
    pub(crate) fn push(&mut self, line: &mut WaitQueue, shard: u16, operation: Id) -> Place {
        if line.last == NONE || usize::from(self.0.at(line.last).used) == BLOCK {
            self.append_block(line);
        }
        let block = self.0.at_mut(line.last);
        let slot = block.used;
        block.entries[usize::from(slot)] = operation;
        block.live |= 1 << slot;
        block.used += 1;
        line.len += 1;
        Place::new(shard, slot, line.last)
    }

    /// The line that a block belongs to.
    pub(crate) fn line_of(&self, place: Place) -> u32 {
        self.0.at(place.block).line
    }

    /// Takes an entry out of its line.
    pub(crate) fn remove(&mut self, line: &mut WaitQueue, place: Place) {
        let block = self.0.at_mut(place.block);
        block.live &= !(1 << place.slot());
        line.len -= 1;
        self.forget_block_if_empty(line, place.block);
    }

    /// Begins to visit the operations that are in a line now: appends some of them to `out`.
    /// Whoever gets a visit has to [resume](Self::resume) it.
    pub(crate) fn visit(&mut self, line: &WaitQueue, out: &mut Vec<Id>) -> Option<Visit> {
        let last = self.0.at(line.last);
        let visit = Visit { pinned: NONE, until: last.number, until_slot: last.used };
        self.take_along(line.first, visit, out)
    }

    /// Goes on with a visit: likewise.
    pub(crate) fn resume(
        &mut self,
        line: &mut WaitQueue,
        visit: Visit,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let block = self.0.at_mut(visit.pinned);
        block.pins -= 1;
        let next = block.next;
        self.forget_block_if_empty(line, visit.pinned);
        self.take_along(next, visit, out)
    }

    fn take_along(&mut self, mut index: u32, visit: Visit, out: &mut Vec<Id>) -> Option<Visit> {
        while index != NONE {
            let block = self.0.at_mut(index);
            if block.number > visit.until {
                return None;
            }
            let is_last = block.number == visit.until;
            let end = if is_last { visit.until_slot } else { block.used };
            work::count(1 + usize::from(end));
            let entries = block.entries[..usize::from(end)].iter().enumerate();
            let live = entries.filter(|(slot, _)| block.live >> slot & 1 != 0);
            out.extend(live.map(|(_, operation)| *operation));
            if is_last {
                return None;
            }
            if out.len() >= BATCH {
                block.pins += 1;
                return Some(Visit { pinned: index, ..visit });
            }
            index = block.next;
        }
        None
    }

    /// The line that a visit is in.
    pub(crate) fn line_of_visit(&self, visit: Visit) -> u32 {
        self.0.at(visit.pinned).line
    }

    fn append_block(&mut self, line: &mut WaitQueue) {
        let previous = line.last;
        let number = line.next_number;
        line.next_number += 1;
        let block = Block {
            entries: [Id { shard: 0, key: Key { index: 0, generation: 0 } }; BLOCK],
            live: 0,
            line: line.id,
            number,
            previous,
            next: NONE,
            used: 0,
            pins: 0,
        };
        line.last = self.0.insert(block, 0).index;
        match previous {
            NONE => line.first = line.last,
            previous => self.0.at_mut(previous).next = line.last,
        }
    }

    fn forget_block_if_empty(&mut self, line: &mut WaitQueue, index: u32) {
        let Block { previous, next, live, pins, .. } = *self.0.at(index);
        if live > 0 || pins > 0 {
            return;
        }
        self.0.release(index);
        match previous {
            NONE => line.first = next,
            previous => self.0.at_mut(previous).next = next,
        }
        match next {
            NONE => line.last = previous,
            next => self.0.at_mut(next).previous = previous,
        }
    }

    /// Checks a line. Returns how many blocks it has.
    pub(crate) fn assert_invariants(&self, line: &WaitQueue) -> usize {
        let (mut blocks, mut len, mut previous, mut index) = (0, 0, NONE, line.first);
        while index != NONE {
            let block = self.0.at(index);
            let live = block.live.count_ones() as usize;
            assert_eq!((block.line, block.previous), (line.id, previous));
            assert!(block.live >> block.used == 0 && usize::from(block.used) <= BLOCK);
            assert!(live > 0 && block.pins == 0, "empty blocks go, and nobody visits now");
            blocks += 1;
            len += live;
            (previous, index) = (index, block.next);
        }
        assert_eq!((line.len, line.last), (len, previous));
        blocks
    }

    /// How many blocks there are in all lines.
    pub(crate) fn blocks(&self) -> usize {
        self.0.len()
    }
}
