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
//! began. Those that it passes over are asked again by one that begins at the front: after so many
//! others as the last one from there has looked at entries.
//!
//! A line begins with a small block: most keys of most services have one operation or two.
//!
//! Invariants, checked by [`Entries::assert_invariants`] while nobody visits: each block
//! has an entry, and is not pinned; all but the last were full, and only the first may be small; the cursor is in one of them, or behind
//! all, where whoever comes next makes a new block.

use crate::purgatory::place::{Id, Place};
use crate::store::key_index::ShortHash;
use crate::store::slab::Slab;
use crate::work;
use std::cmp::Ordering;
use std::num::NonZeroU64;

/// Entries of a block: with what belongs to it, it fills 256 bytes, a small one 64. Few in models,
/// so that a visit of few operations takes several batches.
const BLOCK: usize = if cfg!(tickwheel_model) { 2 } else { 18 };
const SMALL_BLOCK: usize = if cfg!(tickwheel_model) { 1 } else { 2 };
/// What a visit takes along at once.
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
    /// Its number in the line: grows from front to back.
    number: NonZeroU64,
    /// Which of the entries there are, a bit for each. They come in at the end only, so they stay
    /// in order.
    live: u32,
    line: LineName,
    previous: u32,
    next: u32,
    pins: u16,
    /// The slot where the line's cursor stands, if it stands in this block.
    cursor: u8,
}

/// Tells a line from the others of its shard: its key's hash, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineName {
    pub(crate) hash: ShortHash,
    pub(crate) number: u32,
}

/// The entries of one key.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    pub(crate) name: LineName,
    /// Of the next block: no number comes twice, whichever blocks have left.
    next_number: NonZeroU64,
    first: u32,
    last: u32,
    /// The block where the cursor stands, `NONE` if it stands behind all of them.
    cursor: u32,
    /// How many visits begin at the cursor before one begins at the front.
    from_cursor: u32,
    /// Slots of the last block that were used, and its capacity.
    end: u8,
    capacity: u8,
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
    /// Entries so far.
    looked_at: u32,
    until: Mark,
    /// Where it ends instead, once it has gone on at the front: where it began.
    around: Option<Mark>,
}

/// A slot of a block, which is told by its number, because it may have left.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: NonZeroU64,
    slot: u8,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Entries {
    small: Slab<Block<SMALL_BLOCK>>,
    large: Slab<Block<BLOCK>>,
}

impl WaitQueue {
    pub(crate) fn new(name: LineName) -> Self {
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

    /// Whether nothing is in it, and nobody visits it.
    pub(crate) fn is_unused(&self) -> bool {
        self.first == NONE
    }

    /// Slots of a block that were used.
    fn used(&self, block: u32) -> u8 {
        if block == self.last { self.end } else { capacity(block) }
    }
}

impl Entries {
    pub(crate) fn new() -> Self {
        Entries { small: Slab::new(), large: Slab::new() }
    }

    /// Adds an entry to the end of a line, which is one of this shard.
    ///
    /// Always inlined, as what takes it out: a third of their instructions were those of a call.
    #[inline(always)]
    pub(crate) fn push(&mut self, line: &mut WaitQueue, shard: u16, operation: Id) -> Place {
        if line.end == line.capacity {
            self.append_block(line);
        }
        let slot = line.end;
        line.end += 1;
        let (head, entries) = self.block_mut(line.last);
        entries[usize::from(slot)] = operation;
        head.live |= 1 << slot;
        Place::new(shard, slot, line.last)
    }

    /// Takes an entry out. Returns its line if its block is to be [forgotten](Self::forget_block).
    #[inline(always)]
    pub(crate) fn remove(&mut self, place: Place) -> Option<LineName> {
        let head = self.head_mut(place.block);
        head.live &= !(1 << place.slot());
        head.is_unused().then_some(head.line)
    }

    /// Begins to visit the operations that are in a line now: appends some of them to `out`, and no
    /// more than there is `room` for. Whoever gets a visit has to [resume](Self::resume) it.
    pub(crate) fn visit(
        &mut self,
        line: &WaitQueue,
        begin: Begin,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let (mut block, mut slot) = (line.first, 0);
        if begin == Begin::Cursor && line.from_cursor > 0 && line.cursor != NONE {
            (block, slot) = (line.cursor, self.head(line.cursor).cursor);
        }
        let until = Mark { number: self.head(line.last).number, slot: line.end };
        let start = Mark { number: self.head(block).number, slot };
        let around = (begin == Begin::Cursor).then_some(start);
        self.take_along(line, Visit { block, slot, looked_at: 0, until, around }, room, out)
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
        let head = self.head_mut(visit.block);
        head.pins -= 1;
        if room == 0 {
            (line.cursor, head.cursor) = (visit.block, visit.slot);
            line.from_cursor = line.from_cursor.checked_sub(1).unwrap_or(visit.looked_at - 1);
        }
        let next = head.next;
        if head.is_unused() {
            self.forget_block(line, visit.block);
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
            let Some(end) = self.end_in_block(line, visit) else {
                visit.until = visit.around.take()?;
                (visit.block, visit.slot) = (line.first, 0);
                continue;
            };
            let (head, entries) = self.block_mut(visit.block);
            let mut live = head.live & ((1 << end) - 1) >> visit.slot << visit.slot;
            work::count(1);
            while live != 0 && out.len() < room {
                let slot = live.trailing_zeros();
                work::count(1);
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

    /// The slot before which a visit ends in the block where it is; `None` if that is behind its
    /// end.
    fn end_in_block(&self, line: &WaitQueue, visit: Visit) -> Option<u8> {
        if visit.block == NONE {
            return None;
        }
        match self.head(visit.block).number.cmp(&visit.until.number) {
            Ordering::Less => Some(line.used(visit.block)),
            Ordering::Equal => Some(visit.until.slot),
            Ordering::Greater => None,
        }
    }

    /// The line that a visit is in.
    pub(crate) fn line_of_visit(&self, visit: Visit) -> LineName {
        self.head(visit.block).line
    }

    #[inline(never)]
    fn append_block(&mut self, line: &mut WaitQueue) {
        let previous = line.last;
        let number = line.next_number;
        line.next_number = number.saturating_add(1);
        let name = line.name;
        let head = Head { number, live: 0, line: name, previous, next: NONE, pins: 0, cursor: 0 };
        line.last = if previous == NONE {
            let entries = [Id::NONE; SMALL_BLOCK];
            self.small.insert(Block { head, entries }, 0).index | SMALL
        } else {
            self.large.insert(Block { head, entries: [Id::NONE; BLOCK] }, 0).index
        };
        (line.end, line.capacity) = (0, capacity(line.last));
        if line.cursor == NONE {
            line.cursor = line.last;
        }
        match previous {
            NONE => line.first = line.last,
            previous => self.head_mut(previous).next = line.last,
        }
    }

    /// Forgets a block without entries that nobody visits.
    #[inline(never)]
    pub(crate) fn forget_block(&mut self, line: &mut WaitQueue, index: u32) {
        let Head { previous, next, .. } = *self.head(index);
        if index & SMALL == 0 {
            self.large.release(index);
        } else {
            self.small.release(index ^ SMALL);
        }
        match previous {
            NONE => line.first = next,
            previous => self.head_mut(previous).next = next,
        }
        match next {
            NONE => {
                // The one before it is full: only then was this one appended.
                let end = if previous == NONE { 0 } else { capacity(previous) };
                (line.last, line.end, line.capacity) = (previous, end, end);
            }
            next => self.head_mut(next).previous = previous,
        }
        if line.cursor == index {
            line.cursor = next;
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

    /// Checks a line, which is not empty. Returns how many blocks and entries it has.
    pub(crate) fn assert_invariants(&self, line: &WaitQueue) -> (usize, usize) {
        let (mut blocks, mut len, mut previous, mut index) = (0, 0, NONE, line.first);
        let mut has_cursor = line.cursor == NONE && line.end == line.capacity;
        while index != NONE {
            let head = self.head(index);
            let live = head.live.count_ones();
            assert_eq!((head.line, head.previous), (line.name, previous));
            assert!(head.live >> line.used(index) == 0, "no entry behind the used slots");
            assert!(live > 0 && head.pins == 0, "empty blocks go, and nobody visits now");
            assert!(index & SMALL == 0 || previous == NONE, "only the first is small");
            has_cursor |= index == line.cursor && head.cursor <= line.used(index);
            blocks += 1;
            len += live as usize;
            (previous, index) = (index, head.next);
        }
        assert_eq!((line.last, line.capacity), (previous, capacity(previous)));
        assert!(line.end <= line.capacity);
        assert!(has_cursor, "the cursor is in a block, or behind all of them");
        (blocks, len)
    }

    /// How many blocks there are in all lines.
    pub(crate) fn blocks(&self) -> usize {
        self.small.len() + self.large.len()
    }
}

impl Head {
    /// Whether it has no entries, and nobody visits it.
    #[inline]
    fn is_unused(&self) -> bool {
        self.live == 0 && self.pins == 0
    }
}

/// How many entries the block with this number, or its mark, has room for.
#[inline]
fn capacity(block: u32) -> u8 {
    (if block & SMALL == 0 { BLOCK } else { SMALL_BLOCK }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(tickwheel_model))]
    fn blocks_fill_their_lines_of_the_cache() {
        // With the generation and the tag of their places.
        assert_eq!(size_of::<Option<Block<SMALL_BLOCK>>>() + 8, 64);
        assert_eq!(size_of::<Option<Block<BLOCK>>>() + 8, 256);
    }
}
