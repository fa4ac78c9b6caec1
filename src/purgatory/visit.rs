//! The visit of a wait queue: passes its entries, a batch at a time.
//!
//! A visit takes a batch of a queue's operations along and pins the block at which it stopped. A
//! pinned block stays, even if it is empty when the visit is resumed.
//!
//! A visit that wants only some operations begins at the queue's cursor, goes around, and leaves
//! the cursor behind the last operation that it took along when it has enough. It keeps a position
//! of its own: whatever other visits do to the cursor in between, it reaches each entry that was
//! present when it began. Entries that were passed over are looked at again by a visit that begins
//! at the front. Such a visit comes after as many others as the last visit from the front looked at
//! entries.

use crate::purgatory::wait_queue::Id;
use crate::purgatory::wait_queue::{Entries, NONE, QueueName, WaitQueue};
use crate::work;
use std::cmp::Ordering;
use std::num::NonZeroU64;

/// The number of entries that a visit takes along at once.
const BATCH: usize = if cfg!(tickwheel_model) { 2 } else { 32 };

/// The position at which a visit begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Front,
    /// At the cursor; continues at the front when it reaches the end.
    Cursor,
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

impl Entries {
    /// Begins to visit the operations that are in a queue now: appends some of them to `out`, and
    /// no more than there is `room` for. A visit that is returned must be [resumed](Self::resume).
    pub(crate) fn visit(
        &mut self,
        queue: &WaitQueue,
        begin: Begin,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let (mut block, mut slot) = (queue.first, 0);
        if begin == Begin::Cursor && queue.from_cursor > 0 && queue.cursor != NONE {
            (block, slot) = (queue.cursor, self.head(queue.cursor).cursor);
        }
        let until = Mark { number: self.head(queue.last).number, slot: queue.end };
        let start = Mark { number: self.head(block).number, slot };
        let around = (begin == Begin::Cursor).then_some(start);
        self.take_along(queue, Visit { block, slot, looked_at: 0, until, around }, room, out)
    }

    /// Continues a visit in the same way. If there is no `room` any more, ends it and leaves the
    /// cursor where it stopped.
    pub(crate) fn resume(
        &mut self,
        queue: &mut WaitQueue,
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

    fn take_along(
        &mut self,
        queue: &WaitQueue,
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

    /// Returns the slot before which a visit ends in its current block; `None` if the block is
    /// behind its end.
    fn end_in_block(&self, queue: &WaitQueue, visit: Visit) -> Option<u8> {
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
}
