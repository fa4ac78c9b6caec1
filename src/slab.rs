//! The slab: values at places that never move, named by keys that never alias.
//!
//! Values lie in chunks of a fixed size, so growing never copies a value, and a chunk whose last
//! value was removed is given back (one is kept, so that a count that swings around a chunk's edge
//! does not allocate each time). A [`Key`] is a place and the generation of that place; the
//! generation is bumped when the value is removed, so a stale key finds nothing, for ever: a place
//! whose generation is used up is retired instead of starting again, and a chunk that is made again
//! starts beyond every generation that was handed out before.
//!
//! Invariants, held between calls and checked by [`Slab::assert_invariants`]:
//! - every chunk with a vacant place is in `open` or is `filling`; no full or retired chunk is;
//! - a chunk is appended only while no other is open, so `open` never names a chunk twice;
//! - no generation that was handed out for a place is handed out for it again.

use crate::chunk::{Chunk, LAST_GENERATION, NONE, Slot, WORN_GENERATION};
use crate::key::Key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Chunks of `1 << BITS` places.
#[derive(Debug)]
pub(crate) struct Slab<V, const BITS: u32> {
    chunks: Vec<Chunk<V>>,
    /// The chunk that is filled, which has a vacant place; `NONE` if all are full.
    filling: u32,
    /// The other chunks with a vacant place. The first is filled next, so that the last run empty.
    open: BinaryHeap<Reverse<u32>>,
    /// The empty chunk that keeps its memory.
    spare: Option<u32>,
    /// Where the generations of the next new chunk start.
    first_generation: u32,
    len: usize,
}

impl<V, const BITS: u32> Slab<V, BITS> {
    const SIZE: usize = 1 << BITS;
    const MASK: u32 = (1 << BITS) - 1;

    pub(crate) fn new() -> Self {
        Slab {
            chunks: Vec::new(),
            filling: NONE,
            open: BinaryHeap::new(),
            spare: None,
            first_generation: 0,
            len: 0,
        }
    }

    /// An empty slab that never gives out a key of this one again.
    pub(crate) fn successor(&self) -> Self {
        let used_up = self.chunks.iter().map(Chunk::used_up).max().unwrap_or(0);
        Slab { first_generation: used_up.max(self.first_generation), ..Slab::new() }
    }

    /// Whether few generations are left for new keys.
    pub(crate) fn is_worn(&self) -> bool {
        self.first_generation >= WORN_GENERATION
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts `value` into a vacant place, `tag` beside it. Allocates a chunk when there is none.
    #[inline]
    pub(crate) fn insert(&mut self, value: V, tag: u32) -> Key {
        if self.filling as usize >= self.chunks.len() {
            self.open_chunk();
        }
        let id = self.filling;
        let chunk = &mut self.chunks[id as usize];
        if chunk.vacant == NONE {
            chunk.push_vacant(Self::SIZE);
        }
        let offset = chunk.vacant;
        let slot = &mut chunk.slots[offset as usize];
        chunk.vacant = slot.tag;
        slot.tag = tag;
        slot.value = Some(value);
        let generation = slot.generation;
        chunk.used += 1;
        let was_empty = chunk.used == 1;
        if chunk.is_full(Self::SIZE) {
            self.filling = self.open.pop().map_or(NONE, |id| id.0);
        }
        if was_empty && self.spare == Some(id) {
            self.spare = None;
        }
        self.len += 1;
        Key { index: (id << BITS) | offset, generation }
    }

    /// Takes the value of `key` out, if the key is not stale.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<V> {
        self.take_if(key.index, |generation, _| generation == key.generation)
    }

    /// Takes the value at `index` out, if there is one and it is as `wanted`.
    #[inline]
    pub(crate) fn remove_if(&mut self, index: u32, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        self.take_if(index, |_, value| wanted(value))
    }

    /// Drops the value at `index`.
    pub(crate) fn release(&mut self, index: u32) {
        drop(self.take_if(index, |_, _| true));
    }

    #[inline]
    fn take_if(&mut self, index: u32, wanted: impl FnOnce(u32, &V) -> bool) -> Option<V> {
        let (id, offset) = (index >> BITS, index & Self::MASK);
        let chunk = self.chunks.get_mut(id as usize)?;
        let was_full = chunk.is_full(Self::SIZE);
        let slot = chunk.slots.get_mut(offset as usize)?;
        let generation = slot.generation;
        let value = slot.value.take_if(|value| wanted(generation, value))?;
        slot.generation += 1;
        if slot.generation != LAST_GENERATION {
            slot.tag = chunk.vacant;
            chunk.vacant = offset;
            if was_full && self.filling == NONE {
                self.filling = id;
            } else if was_full {
                self.open.push(Reverse(id));
            }
        }
        chunk.used -= 1;
        self.len -= 1;
        if chunk.used == 0 {
            self.keep_or_give_back(id);
        }
        Some(value)
    }

    /// The value of `key`, if the key is not stale.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&V> {
        let slot = self.slot(key.index)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The value of `key`, if the key is not stale.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        let slot = self.slot_mut(key.index)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The indices of at most `limit` values, from the end. To take these out shortens the
    /// directory, so that it does not take longer each time.
    pub(crate) fn last_indices(&self, limit: usize) -> Vec<u32> {
        let indices = (0..self.chunks.len()).rev().flat_map(|id| {
            let slots = self.chunks[id].slots.iter().enumerate();
            let used = slots.filter(|(_, slot)| slot.value.is_some());
            used.map(move |(offset, _)| (id << BITS | offset) as u32)
        });
        indices.take(limit).collect()
    }

    /// The keys of all values, with these.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(|(id, chunk)| {
            chunk.slots.iter().enumerate().filter_map(move |(offset, slot)| {
                let key = Key { index: (id << BITS | offset) as u32, generation: slot.generation };
                slot.value.as_ref().map(|value| (key, value))
            })
        })
    }

    /// The tag of the value at `index`, if there is one.
    #[inline]
    pub(crate) fn tag(&self, index: u32) -> Option<u32> {
        self.slot(index).filter(|slot| slot.value.is_some()).map(|slot| slot.tag)
    }

    /// Gives the value at `index`, which must be there, another tag.
    pub(crate) fn set_tag(&mut self, index: u32, tag: u32) {
        if let Some(slot) = self.slot_mut(index).filter(|slot| slot.value.is_some()) {
            slot.tag = tag;
        }
    }

    /// The value at `index`; there must be one.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &V {
        let value = self.slot(index).and_then(|slot| slot.value.as_ref());
        value.expect("the index names a value")
    }

    /// The value at `index`; there must be one.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        let value = self.slot_mut(index).and_then(|slot| slot.value.as_mut());
        value.expect("the index names a value")
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<V>> {
        self.chunks.get((index >> BITS) as usize)?.slots.get((index & Self::MASK) as usize)
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<V>> {
        let chunk = self.chunks.get_mut((index >> BITS) as usize)?;
        chunk.slots.get_mut((index & Self::MASK) as usize)
    }

    /// Finds a chunk to fill; appends one if all are full.
    #[cold]
    #[inline(never)]
    fn open_chunk(&mut self) {
        let first = self.open.pop().map_or(NONE, |id| id.0);
        if (first as usize) < self.chunks.len() {
            self.filling = first;
            return;
        }
        // What is left names chunks that were given back, and the directory cut behind them.
        self.open.clear();
        let id = self.chunks.len() as u32;
        assert!(id <= u32::MAX >> BITS, "a slab holds at most 2^32 values");
        self.chunks.push(Chunk::new(self.first_generation));
        self.filling = id;
    }

    #[cold]
    #[inline(never)]
    fn keep_or_give_back(&mut self, id: u32) {
        // The lower one is kept: the directory can only be cut behind it.
        let kept = self.spare.map_or(id, |spare| spare.min(id));
        let Some(spare) = self.spare.replace(kept) else { return };
        let id = spare.max(id);
        let chunk = &mut self.chunks[id as usize];
        let next = chunk.used_up();
        *chunk = Chunk::new(next);
        if next == LAST_GENERATION {
            // Retired: it stays in the directory as a mark, so that its keys stay stale.
            self.open.retain(|open| open.0 != id);
            self.filling = if self.filling == id { NONE } else { self.filling };
        } else if !chunk.is_worn() {
            self.first_generation = self.first_generation.max(next);
        }
        self.cut_directory();
    }

    /// Forgets the chunks at the end that were given back.
    fn cut_directory(&mut self) {
        let given_back = |chunk: &Chunk<V>| chunk.slots.capacity() == 0 && !chunk.is_worn();
        while self.chunks.last().is_some_and(given_back) {
            self.chunks.pop();
        }
        // Rarely, so that the cost per chunk stays constant.
        if self.chunks.capacity() > 64 && self.chunks.len() < self.chunks.capacity() / 4 {
            let len = self.chunks.len();
            self.chunks.shrink_to(len * 2);
            self.open.retain(|id| (id.0 as usize) < len);
            self.open.shrink_to(len * 2);
        }
    }

    /// Checks the invariants of the head of this file. Takes time proportional to the slab.
    pub(crate) fn assert_invariants(&self) {
        let filling = std::iter::once(self.filling);
        let mut open: Vec<u32> = self.open.iter().map(|id| id.0).chain(filling).collect();
        open.retain(|&id| (id as usize) < self.chunks.len());
        open.sort_unstable();
        let listed = open.len();
        open.dedup();
        assert_eq!(open.len(), listed, "a chunk is open twice");
        let mut len = 0;
        for (id, chunk) in self.chunks.iter().enumerate() {
            let used = chunk.slots.iter().filter(|slot| slot.value.is_some()).count();
            assert_eq!(used, chunk.used as usize);
            len += used;
            let is_retired = chunk.first_generation == LAST_GENERATION;
            let fresh = chunk.slots.len() < Self::SIZE && !is_retired;
            let is_open = open.binary_search(&(id as u32)).is_ok();
            assert_eq!(is_open, chunk.vacant != NONE || fresh, "chunk {id} is wrongly open or not");
            let mut vacant = chunk.vacant;
            while vacant != NONE {
                let slot = &chunk.slots[vacant as usize];
                assert!(slot.value.is_none() && slot.generation < LAST_GENERATION);
                vacant = slot.tag;
            }
        }
        assert_eq!(len, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Small = Slab<u64, 2>;

    #[test]
    fn a_stale_key_finds_nothing_after_its_place_was_reused() {
        let mut slab = Small::new();
        let old = slab.insert(1, 0);
        assert_eq!(slab.remove(old), Some(1));
        let new = slab.insert(2, 0);
        assert_eq!(new.index, old.index);
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&2));
        slab.assert_invariants();
    }

    #[test]
    fn chunks_are_given_back_but_one_and_their_keys_stay_stale() {
        let mut slab = Small::new();
        let old: Vec<Key> = (0..400).map(|value| slab.insert(value, 0)).collect();
        for &key in &old {
            slab.remove(key);
            slab.assert_invariants();
        }
        assert_eq!(slab.chunks.iter().filter(|chunk| chunk.slots.capacity() > 0).count(), 1);
        let new: Vec<Key> = (0..400).map(|value| slab.insert(value, 0)).collect();
        assert!(old.iter().all(|&key| slab.get(key).is_none()));
        assert!(new.iter().all(|&key| slab.get(key).is_some()));
        slab.assert_invariants();
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_retired() {
        let mut slab = Small::new();
        let key = slab.insert(1, 0);
        let kept = slab.insert(2, 0);
        slab.chunks[0].slots[key.index as usize].generation = LAST_GENERATION - 1;
        slab.release(key.index);
        slab.assert_invariants();
        for value in 0..8 {
            assert_ne!(slab.insert(value, 0).index, key.index);
        }
        assert_eq!(slab.get(kept), Some(&2));
        slab.assert_invariants();
    }

    #[test]
    fn a_successor_never_gives_out_a_key_of_its_predecessor() {
        let mut slab = Small::new();
        let mut old: Vec<Key> = (0..40).map(|value| slab.insert(value, 0)).collect();
        for round in 0..40 {
            slab.release(old[round % 7].index);
            old.push(slab.insert(0, 0));
        }
        let mut next = slab.successor();
        assert!(!next.is_worn());
        let new: Vec<Key> = (0..80).map(|value| next.insert(value, 0)).collect();
        assert!(old.iter().all(|&key| next.get(key).is_none()));
        assert!(new.iter().all(|&key| slab.get(key).is_none()));
        slab.chunks[3].slots[1].generation = WORN_GENERATION;
        assert!(slab.successor().is_worn());
    }

    #[test]
    fn a_worn_chunk_is_never_made_again() {
        let mut slab = Small::new();
        let keys: Vec<Key> = (0..8).map(|value| slab.insert(value, 0)).collect();
        slab.chunks[1].slots[0].generation = LAST_GENERATION - 1;
        keys.iter().for_each(|key| slab.release(key.index));
        slab.assert_invariants();
        let ids: Vec<u32> = (0..12).map(|value| slab.insert(value, 0).index >> 2).collect();
        assert!(!ids.contains(&1), "{ids:?}");
        slab.assert_invariants();
    }

    #[test]
    fn a_worn_chunk_is_filled_again_so_that_the_directory_stays_small() {
        let mut slab = Small::new();
        slab.first_generation = WORN_GENERATION - 2;
        for round in 0..1000 {
            let keys: Vec<Key> = (0..12).map(|value| slab.insert(value, 0)).collect();
            keys.iter().rev().for_each(|key| slab.release(key.index));
            slab.assert_invariants();
            assert!(slab.chunks.len() <= 16, "{} chunks after {round} rounds", slab.chunks.len());
        }
    }
}
