//! The entries of the operations that are watched on the keys of one shard.
//!
//! A key's entries form a line, first in, first out. They lie in blocks of a few, in a doubly
//! linked list. An entry never moves, so it is found by its [`Place`] and leaves in constant time,
//! wherever in the line it stands; a block goes with its last entry.
//!
//! Whoever visits a line takes a batch of its operations along and pins the block where it stopped:
//! a pinned block stays, even if it is empty when its visitor comes back.
//!
//! A visit that wants only some of them begins at the line's cursor, goes around, and leaves the
//! cursor behind the last one that it took along when it has enough. It goes on by a position of
//! its own: whatever others do to the cursor meanwhile, it comes by each that was there when it
//! began.
//!
//! Invariants, checked by [`Entries::assert_invariants`] while nobody visits: a line has as many
//! entries as its blocks; each block has one, and is not pinned; the cursor is in one of them, or
//! behind all, where whoever comes next makes a new block.

use crate::purgatory::place::{Id, Place};
use crate::store::key::Key;
use crate::store::slab::Slab;
use crate::work;
use std::cmp::Ordering;

/// Entries of a block: with what belongs to it, it fills 256 bytes. Few in models, so that a visit
/// of few operations takes several batches.
const BLOCK: usize = if cfg!(tickwheel_model) { 2 } else { 17 };
/// What a visit takes along at once.
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
    /// The slot where the line's cursor stands, if it stands in this block.
    cursor: u8,
    pins: u16,
}

/// The entries of one key.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    first: u32,
    last: u32,
    /// The block where the cursor stands, `NONE` if it stands behind all of them.
    cursor: u32,
    /// How many visits have moved the cursor since one began at the front.
    moves: u32,
    /// Of the next block: no number comes twice, whichever blocks have left.
    next_number: u64,
    len: usize,
}

/// Where a visit begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Front,
    /// Goes on at the front when it has come to the end.
    Cursor,
}

/// Where a visit goes on, and where it ends: before what was watched after it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// Between two batches this block is pinned.
    block: u32,
    slot: u8,
    until: Mark,
    /// Where it ends instead, once it has gone on at the front: where it began.
    around: Option<Mark>,
}

/// A slot of a block, which is told by its number, because it may have left.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: u64,
    slot: u8,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Entries(Slab<Block>);

impl WaitQueue {
    pub(crate) fn new() -> Self {
        WaitQueue { first: NONE, last: NONE, cursor: NONE, moves: 0, next_number: 0, len: 0 }
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

    /// Adds an entry to the end of the line that has this `id` in this shard.
    pub(crate) fn push(
        &mut self,
        line: &mut WaitQueue,
        id: u32,
        shard: u16,
        operation: Id,
    ) -> Place {
        if line.last == NONE || usize::from(self.0.at(line.last).used) == BLOCK {
            self.append_block(line, id);
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

    /// Begins to visit the operations that are in a line now: appends some of them to `out`, and no
    /// more than there is `room` for. Whoever gets a visit has to [resume](Self::resume) it.
    pub(crate) fn visit(
        &mut self,
        line: &mut WaitQueue,
        begin: Begin,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let (mut block, mut slot) = (line.first, 0);
        if begin == Begin::Cursor && line.moves as usize >= line.len {
            // It was the turn of each: now those that were passed over are asked again.
            line.moves = 0;
        } else if begin == Begin::Cursor && line.cursor != NONE {
            (block, slot) = (line.cursor, self.0.at(line.cursor).cursor);
        }
        let last = self.0.at(line.last);
        let until = Mark { number: last.number, slot: last.used };
        let start = Mark { number: self.0.at(block).number, slot };
        let around = (begin == Begin::Cursor).then_some(start);
        self.take_along(line, Visit { block, slot, until, around }, room, out)
    }

    /// Goes on with a visit: likewise. If there is no room any more, ends it and leaves the cursor
    /// here.
    pub(crate) fn resume(
        &mut self,
        line: &mut WaitQueue,
        mut visit: Visit,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let block = self.0.at_mut(visit.block);
        block.pins -= 1;
        if room == 0 {
            (line.cursor, block.cursor) = (visit.block, visit.slot);
            line.moves = line.moves.saturating_add(1);
        }
        let next = block.next;
        if self.forget_block_if_empty(line, visit.block) {
            (visit.block, visit.slot) = (next, 0);
        }
        if room == 0 { None } else { self.take_along(line, visit, room, out) }
    }

    fn take_along(
        &mut self,
        line: &WaitQueue,
        mut visit: Visit,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let room = room.min(BATCH);
        loop {
            let Some(end) = self.end_in_block(visit) else {
                visit.until = visit.around.take()?;
                (visit.block, visit.slot) = (line.first, 0);
                continue;
            };
            let block = self.0.at_mut(visit.block);
            let mut live = block.live & ((1 << end) - 1) >> visit.slot << visit.slot;
            work::count(1);
            while live != 0 && out.len() < room {
                let slot = live.trailing_zeros();
                work::count(1);
                live &= live - 1;
                out.push(block.entries[slot as usize]);
                visit.slot = slot as u8 + 1;
            }
            if out.len() >= room {
                block.pins += 1;
                return Some(visit);
            }
            (visit.block, visit.slot) = (block.next, 0);
        }
    }

    /// The slot before which a visit ends in the block where it is; `None` if that is behind its
    /// end.
    fn end_in_block(&self, visit: Visit) -> Option<u8> {
        if visit.block == NONE {
            return None;
        }
        let block = self.0.at(visit.block);
        match block.number.cmp(&visit.until.number) {
            Ordering::Less => Some(block.used),
            Ordering::Equal => Some(visit.until.slot),
            Ordering::Greater => None,
        }
    }

    /// The line that a visit is in.
    pub(crate) fn line_of_visit(&self, visit: Visit) -> u32 {
        self.0.at(visit.block).line
    }

    fn append_block(&mut self, line: &mut WaitQueue, id: u32) {
        let previous = line.last;
        let number = line.next_number;
        line.next_number += 1;
        let block = Block {
            entries: [Id { shard: 0, key: Key { index: 0, generation: 0 } }; BLOCK],
            live: 0,
            line: id,
            number,
            previous,
            next: NONE,
            used: 0,
            cursor: 0,
            pins: 0,
        };
        line.last = self.0.insert(block, 0).index;
        if line.cursor == NONE {
            line.cursor = line.last;
        }
        match previous {
            NONE => line.first = line.last,
            previous => self.0.at_mut(previous).next = line.last,
        }
    }

    /// Returns whether the block was.
    fn forget_block_if_empty(&mut self, line: &mut WaitQueue, index: u32) -> bool {
        let Block { previous, next, live, pins, .. } = *self.0.at(index);
        if live > 0 || pins > 0 {
            return false;
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
        if line.cursor == index {
            line.cursor = next;
            if next != NONE {
                self.0.at_mut(next).cursor = 0;
            }
        }
        true
    }

    /// Checks a line, which is not empty. Returns how many blocks it has.
    pub(crate) fn assert_invariants(&self, line: &WaitQueue) -> usize {
        let id = self.0.at(line.first).line;
        let (mut blocks, mut len, mut previous, mut index) = (0, 0, NONE, line.first);
        let mut has_cursor = line.cursor == NONE && usize::from(self.0.at(line.last).used) == BLOCK;
        while index != NONE {
            let block = self.0.at(index);
            let live = block.live.count_ones() as usize;
            assert_eq!((block.line, block.previous), (id, previous));
            assert!(block.live >> block.used == 0 && usize::from(block.used) <= BLOCK);
            assert!(live > 0 && block.pins == 0, "empty blocks go, and nobody visits now");
            has_cursor |= index == line.cursor && block.cursor <= block.used;
            blocks += 1;
            len += live;
            (previous, index) = (index, block.next);
        }
        assert_eq!((line.len, line.last), (len, previous));
        assert!(has_cursor, "the cursor is in a block, or behind all of them");
        blocks
    }

    /// How many blocks there are in all lines.
    pub(crate) fn blocks(&self) -> usize {
        self.0.len()
    }
}
