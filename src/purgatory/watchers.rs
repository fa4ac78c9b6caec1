//! The watchers: which operations wait for which key, in one shard.
//!
//! A key has a queue of entries, in a doubly linked list of small blocks. An entry never moves: it
//! is found by its [`Spot`] and leaves in constant time. A block is removed with its last entry,
//! and a queue with its last block. The entries of an operation are in different shards; its record
//! has all their spots.
//!
//! Invariants, checked by [`Watchers::assert_invariants`]: every watched key has one queue of
//! entries and is found by its hash; no other key is present; each block has an entry, and all but
//! the last were full.
//!
//! # A visit
//! A visit takes a batch of a queue's operations under the lock. It checks them without the lock,
//! and goes on at the next entry. The queue changes meanwhile; the numbers stand at the lines that
//! deal with it:
//!
//! 1. *The block of the next entry goes.* T1 has seen the positions up to 40, and is to go on in
//!    the block of 41. T2 cancels the entries of that block, and another queue gets its place. The
//!    block's key finds nothing then. T1 begins at the front of the queue, which still has blocks
//!    that T1 has seen: positions grow and are never used twice, so `from`, 41, tells what to skip.
//!    If the queue has gone, a queue of the same key that came after it is not visited: its number
//!    is another one.
//! 2. *Entries are added.* A check of T1's adds an operation under the same key, whose check adds
//!    one, and so on: the visit would not end. So it ends at `until`, the last position that there
//!    was when it began.
//! 3. *Blocks hold little.* A thousand operations came and went, and left one entry in each of a
//!    thousand blocks. Or a visit that began anew at the front (1) has seen all of a thousand
//!    blocks. A batch looks at as many blocks as it may have entries, so that the lock is not held
//!    for long.

use crate::table::KeyTable;
use crate::wheel::slab::{Key, Slab};
use hashbrown::HashTable;
use std::borrow::Borrow;
use std::num::{NonZeroU8, NonZeroU64};

/// Entries of a block, which takes 120 bytes: few, because most keys have one or two operations.
/// Fewer in models, so that a visit takes several blocks.
const BLOCK: u8 = if cfg!(tickwheel_model) { 2 } else { 7 };

/// The distance between the positions of two blocks. A block's slots are counted from 1.
const STRIDE: u64 = FULL + 1;

const FULL: u64 = BLOCK as u64;

/// How many entries a visit takes at once, and how many blocks it looks at.
const BATCH: usize = if cfg!(tickwheel_model) { 2 } else { 32 };

const NONE: u32 = u32::MAX;

/// A shard's map from keys to operations; see the [module](self).
pub(crate) struct Watchers<K> {
    pub(crate) shard: u16,
    queues: KeyTable<Queue<K>>,
    blocks: Slab<Block, 32>,
    /// The last queue's number. It wraps around after 2^32: only a queue of the same hash that
    /// lives so long could be mistaken.
    number: u32,
    /// The entries of all keys.
    pub(crate) len: usize,
}

struct Queue<K> {
    number: u32,
    key: K,
    /// The position of the last entry that was added, as if a full block preceded the first.
    /// Positions are never used twice.
    end: u64,
    first: u32,
    last: u32,
}

struct Block {
    /// The position before the block's first entry.
    start: NonZeroU64,
    /// A bit for each entry that is present. Entries are added only at the end, so they stay in
    /// order.
    live: u32,
    queue: QueueName,
    previous: u32,
    next: u32,
    entries: [Id; BLOCK as usize],
}

/// Identifies a queue in its shard.
#[derive(Clone, Copy, PartialEq, Eq)]
struct QueueName {
    hash: u32,
    number: u32,
}

/// A visit that has not come to its end.
#[derive(Clone, Copy)]
pub(crate) struct Visit {
    queue: QueueName,
    /// The block at which the visit continues, if the block is still there.
    block: Key,
    /// The positions of the first and the last entry to see.
    from: u64,
    until: u64,
}

/// Identifies one operation forever: its record's key, in the shard of its first key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) shard: u16,
    pub(crate) key: Key,
}

#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) shard: u16,
    /// Counted from 1: the niche 0 distinguishes the variants of `Spots`, which saves 8 bytes for
    /// each operation.
    slot: NonZeroU8,
    block: u32,
}

impl<K> Default for Watchers<K> {
    fn default() -> Self {
        let queues = KeyTable(HashTable::new());
        Watchers {
            shard: 0,
            queues,
            blocks: Slab::new(),
            number: 0,
            len: 0,
        }
    }
}

impl<K: Eq + Clone> Watchers<K> {
    #[inline]
    pub(crate) fn push(&mut self, hash: u64, key: &K, operation: Id) -> Spot {
        let hash = hash as u32;
        let number = &mut self.number;
        let make = || {
            let key = key.clone();
            *number = number.wrapping_add(1);
            Queue {
                number: *number,
                key,
                end: FULL,
                first: NONE,
                last: NONE,
            }
        };
        let queue = self
            .queues
            .find_or_insert(hash, |queue| queue.key == *key, make);
        if queue.end % STRIDE == FULL {
            queue.append(hash, &mut self.blocks);
        }
        queue.end += 1;
        let slot = (queue.end % STRIDE) as u8;
        let block = self.blocks.at_mut(queue.last);
        block.entries[usize::from(slot - 1)] = operation;
        block.live |= 1 << slot;
        self.len += 1;
        let slot = NonZeroU8::new(slot).unwrap_or(NonZeroU8::MIN);
        Spot {
            shard: self.shard,
            slot,
            block: queue.last,
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, spot: Spot) {
        self.len -= 1;
        let block = self.blocks.at_mut(spot.block);
        block.live &= !(1 << spot.slot.get());
        if block.live == 0 {
            self.forget(spot.block);
        }
    }

    #[inline(never)]
    fn forget(&mut self, block: u32) {
        let QueueName { hash, number } = self.blocks.at(block).queue;
        let is_own = |queue: &Queue<K>| queue.number == number;
        let Some(queue) = self.queues.find_mut(hash, is_own) else {
            return;
        };
        queue.forget(block, &mut self.blocks);
        if queue.first == NONE {
            drop(self.queues.remove(hash, is_own));
        }
    }

    /// Begins to visit the operations that are watched on a key now.
    #[inline]
    pub(crate) fn visit<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<Visit>
    where
        K: Borrow<Q>,
    {
        let hash = hash as u32;
        let queue = self.queues.find(hash, |queue| queue.key.borrow() == key)?;
        let block = self.blocks.key_at(queue.first)?;
        let name = QueueName {
            hash,
            number: queue.number,
        };
        Some(Visit {
            queue: name,
            block,
            from: 0,
            until: queue.end,
        })
    }

    /// Begins a new visit of the queue that another visit has named.
    pub(crate) fn visit_again(&self, named: Visit) -> Option<Visit> {
        let QueueName { hash, number } = named.queue;
        let until = self.queues.find(hash, |queue| queue.number == number)?.end;
        Some(Visit { until, ..named })
    }

    /// Returns the block at which a visit goes on; `None` if its queue has gone.
    #[inline]
    fn next_block(&self, visit: Visit) -> Option<u32> {
        if self.blocks.get(visit.block).is_some() {
            return Some(visit.block.index);
        }
        // (1)
        let QueueName { hash, number } = visit.queue;
        let queue = self.queues.find(hash, |queue| queue.number == number)?;
        Some(queue.first)
    }

    /// Appends at most `room` operations of a visit to `out`. Returns the rest of the visit.
    pub(crate) fn go_on(&self, mut visit: Visit, room: usize, out: &mut Vec<Id>) -> Option<Visit> {
        let mut index = self.next_block(visit)?;
        // (3)
        for _ in 0..BATCH {
            visit.block = self.blocks.key_at(index)?;
            let block = self.blocks.at(index);
            let mut live = block.live;
            while live != 0 {
                let slot = live.trailing_zeros();
                live &= live - 1;
                let position = block.start.get() + u64::from(slot);
                if position > visit.until {
                    return None; // (2)
                }
                if position < visit.from {
                    continue; // Seen before: by (1), or in this block, where the last batch ended.
                }
                if out.len() == room.min(BATCH) {
                    return Some(visit);
                }
                visit.from = position + 1;
                out.push(block.entries[slot as usize - 1]);
            }
            index = block.next;
        }
        visit.block = self.blocks.key_at(index)?;
        Some(visit)
    }

    /// Adds up how many entries a visit sees, for some blocks. Returns the rest of the visit.
    pub(crate) fn count(&self, mut visit: Visit, count: &mut usize) -> Option<Visit> {
        let mut index = self.next_block(visit)?;
        for _ in 0..BATCH {
            let block = self.blocks.at(index);
            // Without this bound, a key to which others keep adding would be counted forever.
            if block.start.get() > visit.until {
                return None;
            }
            if block.start.get() >= visit.from {
                *count += block.live.count_ones() as usize;
                visit.from = block.start.get() + STRIDE;
            }
            index = block.next;
            visit.block = self.blocks.key_at(index)?;
        }
        Some(visit)
    }

    /// Returns the keys of a chunk of blocks, each with how many entries its blocks have; `None`
    /// behind the last chunk.
    pub(crate) fn keys_of(&self, chunk: usize) -> Option<Vec<(K, usize)>> {
        if chunk >= self.blocks.chunks() {
            return None;
        }
        let mut keys: Vec<(K, usize)> = Vec::new();
        for (_, block) in self.blocks.of_chunk(chunk) {
            let QueueName { hash, number } = block.queue;
            let Some(queue) = self.queues.find(hash, |queue| queue.number == number) else {
                continue;
            };
            let entries = block.live.count_ones() as usize;
            // Most blocks of a key with many operations are neighbours.
            match keys.last_mut() {
                Some((key, count)) if *key == queue.key => *count += entries,
                _ => keys.push((queue.key.clone(), entries)),
            }
        }
        Some(keys)
    }

    pub(crate) fn assert_invariants(&self) {
        let mut len = 0;
        let mut blocks = 0;
        for (hash, queue) in self.queues.0.iter() {
            let found = self.queues.find(*hash, |other| other.key == queue.key);
            assert!(
                found.is_some_and(|found| std::ptr::eq(found, queue)),
                "found by its key"
            );
            assert!(queue.first != NONE, "a key without entries is forgotten");
            let name = QueueName {
                hash: *hash,
                number: queue.number,
            };
            let mut previous = NONE;
            let mut index = queue.first;
            while index != NONE {
                let block = self.blocks.at(index);
                assert!((block.queue, block.previous) == (name, previous));
                assert!(block.live != 0, "an empty block goes");
                let used = if index == queue.last {
                    queue.end % STRIDE
                } else {
                    FULL
                };
                assert!(block.live >> used <= 1, "no entry behind the used slots");
                blocks += 1;
                len += block.live.count_ones() as usize;
                previous = index;
                index = block.next;
            }
            assert_eq!(queue.last, previous);
        }
        assert_eq!((self.len, self.blocks.len()), (len, blocks));
    }
}

impl<K> Queue<K> {
    #[inline(never)]
    fn append(&mut self, hash: u32, blocks: &mut Slab<Block, 32>) {
        let start = NonZeroU64::MIN.saturating_add(self.end);
        let previous = self.last;
        let queue = QueueName {
            hash,
            number: self.number,
        };
        let nobody = Id {
            shard: 0,
            key: Key {
                index: 0,
                generation: 0,
            },
        };
        let entries = [nobody; BLOCK as usize];
        let block = Block {
            start,
            live: 0,
            queue,
            previous,
            next: NONE,
            entries,
        };
        self.last = blocks.insert(block, 0).index;
        self.end = start.get();
        match previous {
            NONE => self.first = self.last,
            previous => blocks.at_mut(previous).next = self.last,
        }
    }

    fn forget(&mut self, index: u32, blocks: &mut Slab<Block, 32>) {
        let Block { previous, next, .. } = *blocks.at(index);
        blocks.free(index);
        match previous {
            NONE => self.first = next,
            previous => blocks.at_mut(previous).next = next,
        }
        match next {
            // The slots of the block before it are used up: only then was this one appended. So
            // `end` goes to the end of that block. The next entry would overwrite one there
            // otherwise, at a position that a visit has passed.
            NONE => (self.last, self.end) = (previous, self.end - self.end % STRIDE + FULL),
            next => blocks.at_mut(next).previous = previous,
        }
    }
}

/// The spots of an operation's entries, in the order of its keys.
pub(crate) enum Spots {
    Few([Spot; FEW]),
    Many(Box<[Spot]>),
}

/// How many spots need no allocation.
const FEW: usize = 3;

impl Spots {
    const VACANT: Spot = Spot {
        shard: 0,
        slot: NonZeroU8::MAX,
        block: NONE,
    };
    pub(crate) const NONE: Spots = Spots::Few([Self::VACANT; FEW]);

    #[inline]
    pub(crate) fn of(keys: usize) -> Self {
        if keys <= FEW {
            Spots::NONE
        } else {
            Spots::Many(vec![Self::VACANT; keys].into())
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, number: usize, spot: Spot) {
        match self {
            Spots::Few(spots) => spots[number] = spot,
            Spots::Many(spots) => spots[number] = spot,
        }
    }

    /// Returns the spots from this number on, as far as they have been made.
    #[inline]
    pub(crate) fn made(&self, from: usize) -> impl Iterator<Item = Spot> {
        let spots = match self {
            Spots::Few(spots) => &spots[..],
            Spots::Many(spots) => spots,
        };
        spots
            .iter()
            .skip(from)
            .copied()
            .take_while(|spot| spot.block != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes entries of a key that all have this hash.
    fn push(watchers: &mut Watchers<u32>, count: usize) -> Vec<Spot> {
        let operation = Id {
            shard: 0,
            key: Key::from_bits(0),
        };
        (0..count)
            .map(|_| watchers.push(5, &5, operation))
            .collect()
    }

    #[test]
    fn a_count_goes_on_when_its_place_has_gone_and_ends_before_what_is_added_meanwhile() {
        let mut watchers = Watchers::default();
        let in_one_step = BATCH * usize::from(BLOCK);
        let spots = push(&mut watchers, 3 * in_one_step);
        let mut count = 0;
        let rest = watchers.count(watchers.visit(5, &5).unwrap(), &mut count);
        assert_eq!(count, in_one_step);
        // The last that was counted, the next one, and so the block in which the visit goes on.
        for spot in &spots[in_one_step - 1..in_one_step + usize::from(BLOCK)] {
            watchers.remove(*spot);
        }
        push(&mut watchers, 9 * in_one_step);
        let mut rest = rest;
        while let Some(visit) = rest {
            rest = watchers.count(visit, &mut count);
        }
        assert_eq!(count, spots.len() - usize::from(BLOCK));
        watchers.assert_invariants();
    }

    #[test]
    fn the_spots_of_three_entries_take_24_bytes() {
        assert_eq!(size_of::<Spots>(), 24);
    }
}
