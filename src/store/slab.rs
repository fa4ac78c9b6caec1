//! The slab: values at places that never move, identified by keys that never alias.
//!
//! Values are stored in chunks of a fixed size, so growing never copies a value. A nearly empty
//! chunk gives most of its memory back. An empty chunk gives all of it back, unless it is filled
//! next, so a count that oscillates around the edge of a chunk does not allocate each time. An
//! empty slab takes at most a kilobyte. A [`Key`] is a place and the generation of that place. The
//! generation is incremented when the value is removed, so a stale key never finds anything again.
//! A place whose generations are used up is retired instead of starting again, and a chunk that is
//! allocated again starts beyond every generation that was issued before.
//!
//! Invariants, which hold between calls and are checked by [`Slab::assert_invariants`]:
//! - a chunk is in `open` or is `filling` from the moment at which a sixteenth of its places are
//!   vacant until it is full; no retired chunk is;
//! - a chunk is sparse only between two times when it is filled, and stays `filling` until it is
//!   full or empty, so it takes a chunk's worth of calls to make it sparse again;
//! - a chunk is appended only while no other is open, so `open` never names a chunk twice;
//! - no generation of a place is issued twice.

use crate::store::chunk::{Chunk, LAST_GENERATION, Lists, NONE, Slot, WORN_GENERATION};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Whether chunks and blocks are tiny, so that few timers reach their edges: in models and under
/// the fuzzer.
pub(crate) const TINY: bool = cfg!(any(tickwheel_model, fuzzing));

/// The maximum size of a chunk, unless a single value is larger. One chunk of each slab is half
/// empty on average, so a structure with many shards needs small chunks.
const CHUNK_BYTES: usize = 8 << 10;

/// How many chunks are cut off the directory at once. Dropping the record of one takes a
/// nanosecond.
const CUT: usize = 1 << 14;

/// The first chunk is kept when it is empty, if it takes no more bytes than this.
const SMALL: usize = 1 << 10;

/// A slab with chunks of at most `BYTES` bytes; see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Slab<V, const BYTES: usize = CHUNK_BYTES> {
    /// The directory of the chunks.
    chunks: Vec<Chunk<V>>,
    /// The chunk that is being filled, which has a vacant place; `NONE` if no chunk is open.
    filling: u32,
    /// After how many calls a thin chunk is looked at; zero while there is none.
    pace: u32,
    /// The generation at which the next new chunk starts.
    first_generation: u32,
    len: usize,
    /// Made at first use: an empty purgatory has very many slabs.
    lists: Option<Box<Lists>>,
}

impl<V, const BYTES: usize> Slab<V, BYTES> {
    /// Places of a chunk: a power of two, so that an index is split by shifting.
    const BITS: u32 = match BYTES / size_of::<Slot<V>>() {
        0 => 0,
        _ if TINY && BYTES >= CHUNK_BYTES => 5,
        // mutants(false): with more, chunks of the smallest values are larger.
        places if places > 1024 => 10,
        places => places.ilog2(),
    };
    const SIZE: usize = 1 << Self::BITS;
    const MASK: u32 = (1 << Self::BITS) - 1;
    /// A chunk with so few values becomes sparse.
    const FEW: usize = Self::SIZE / 16;
    /// A chunk that was full is open again when so many of its values have been removed. A lower
    /// number would list and fill it for each of them.
    const SLACK: usize = if Self::FEW > 0 { Self::FEW } else { 1 };
    /// A thin chunk becomes sparse once in so many calls.
    const PACE: u32 = if Self::FEW > 3 { Self::FEW as u32 / 2 } else { 1 };

    pub(crate) fn new() -> Self {
        Slab {
            chunks: Vec::new(),
            filling: NONE,
            pace: 0,
            first_generation: 0,
            len: 0,
            lists: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts `value` into a vacant place, with `tag` beside it. Allocates a chunk if there is no
    /// vacant place. Always inlined: the call made up a third of it.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: V, tag: u32) -> Key {
        let chunk = loop {
            match self.chunks.get_mut(self.filling as usize) {
                Some(chunk) => break chunk,
                None => self.open_chunk(),
            }
        };
        let id = self.filling;
        let (offset, generation) = chunk.put(value, tag);
        if chunk.is_full(Self::SIZE) {
            (chunk.is_open, chunk.mark) = (false, (Self::SIZE - Self::SLACK) as u16);
            self.filling = NONE;
        }
        self.len += 1;
        Key { index: (id << Self::BITS) | offset, generation }
    }

    /// Takes out the value of `key`, if the key is not stale.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<V> {
        self.take_if(key.index, |generation, _| generation == key.generation)
    }

    /// Takes out the value at `index`, if there is one and it is `wanted`.
    #[inline]
    pub(crate) fn remove_if(
        &mut self,
        index: u32,
        wanted: impl FnOnce(&mut V) -> bool,
    ) -> Option<V> {
        self.take_if(index, |_, value| wanted(value))
    }

    /// Drops the value at `index`.
    pub(crate) fn release(&mut self, index: u32) {
        drop(self.take_if(index, |_, _| true));
    }

    #[inline]
    fn take_if(&mut self, index: u32, wanted: impl FnOnce(u32, &mut V) -> bool) -> Option<V> {
        let (id, offset) = (index >> Self::BITS, index & Self::MASK);
        let chunk = self.chunks.get_mut(id as usize)?;
        let vacant = chunk.vacant;
        let Some(slot) = chunk.slots.get_mut(offset as usize) else {
            return self.take_of_few(index, wanted);
        };
        let generation = slot.generation;
        let value = slot.value.take_if(|value| wanted(generation, value))?;
        slot.generation += 1;
        slot.tag = vacant;
        let next = slot.generation;
        chunk.used -= 1;
        let is_vacant = next < WORN_GENERATION || chunk.wear(next);
        if is_vacant {
            chunk.vacant = offset;
        }
        if chunk.used <= chunk.mark {
            self.note_removed(id, is_vacant);
        }
        self.removed();
        Some(value)
    }

    #[cold]
    #[inline(never)]
    fn take_of_few(&mut self, index: u32, wanted: impl FnOnce(u32, &mut V) -> bool) -> Option<V> {
        let (id, offset) = (index >> Self::BITS, index & Self::MASK);
        let chunk = &mut self.chunks[id as usize];
        let value = chunk.take_of_few(offset as usize, wanted)?;
        if chunk.used == 0 {
            self.keep_or_give_back(id);
        }
        self.removed();
        Some(value)
    }

    #[inline]
    fn removed(&mut self) {
        self.len -= 1;
        if self.pace > 0 {
            self.thin_out();
        }
    }

    /// Takes note of a removal that leaves no more than a mark in a dense chunk; `is_vacant` tells
    /// whether the place can be filled again.
    #[cold]
    #[inline(never)]
    fn note_removed(&mut self, id: u32, is_vacant: bool) {
        let chunk = &mut self.chunks[id as usize];
        let used = chunk.used as usize;
        if is_vacant && !chunk.is_open {
            (chunk.is_open, chunk.mark) = (true, Self::FEW as u16);
            if self.filling == NONE && self.lists().open.is_empty() {
                self.filling = id;
            } else {
                self.lists().open.push(Reverse(id));
            }
        }
        if used == 0 {
            self.keep_or_give_back(id);
        } else if used == Self::FEW && id != self.filling {
            self.lists().thin.push(id);
            self.pace = if self.pace > 0 { self.pace } else { Self::PACE };
        }
    }

    /// Returns the value of `key`, if the key is not stale.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&V> {
        let slot = self.slot(key.index)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// Returns the value of `key`, if the key is not stale.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        let slot = self.slot_mut(key.index)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Returns the indices of at most `limit` values, from the last chunk to the first: of those
    /// that come after a value which an earlier call returned as its last. So values that are added
    /// meanwhile keep nobody from coming to the end. Removing these shortens the directory, so that
    /// the next call does not take longer.
    pub(crate) fn last_indices(&self, after: Option<u32>, limit: usize) -> Vec<u32> {
        let chunk = |index: u32| index >> Self::BITS;
        let chunks = after.map_or(self.chunks(), |after| chunk(after) as usize + 1);
        let indices = (0..chunks).rev().flat_map(|id| self.of_chunk(id)).map(|(key, _)| key.index);
        let has_come =
            |index: u32| after.is_some_and(|after| chunk(index) == chunk(after) && index <= after);
        indices.filter(|index| !has_come(*index)).take(limit).collect()
    }

    /// Returns all values with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        (0..self.chunks()).flat_map(|id| self.of_chunk(id))
    }

    /// Returns how many chunks there are.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the values in one chunk with their keys; none if there is no such chunk.
    pub(crate) fn of_chunk(&self, id: usize) -> impl Iterator<Item = (Key, &V)> {
        let slots = self.chunks.get(id).into_iter().flat_map(Chunk::iter);
        slots.filter_map(move |(offset, slot)| {
            let index = (id << Self::BITS | offset) as u32;
            let key = Key { index, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    /// Returns the key of the value at `index`. If there is none it is `None`, or a key that names
    /// nothing yet.
    #[inline]
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        self.slot(index).map(|slot| Key { index, generation: slot.generation })
    }

    /// Returns the tag of the value at `index`, if there is one.
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

    /// Returns the value at `index`; there must be one.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &V {
        let value = self.slot(index).and_then(|slot| slot.value.as_ref());
        value.expect("the index names a value")
    }

    /// Returns the value at `index`; there must be one.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        self.at_mut_with_tag(index).1
    }

    /// Returns the value at `index`, which must be there, and its tag.
    #[inline(always)]
    pub(crate) fn at_mut_with_tag(&mut self, index: u32) -> (u32, &mut V) {
        let slot = self.slot_mut(index).expect("the index names a value");
        (slot.tag, slot.value.as_mut().expect("the index names a value"))
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<V>> {
        self.chunks.get((index >> Self::BITS) as usize)?.slot((index & Self::MASK) as usize)
    }

    #[inline(always)]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<V>> {
        let chunk = self.chunks.get_mut((index >> Self::BITS) as usize)?;
        chunk.slot_mut((index & Self::MASK) as usize)
    }

    /// Checks the invariants that the module states. Takes time proportional to the slab.
    pub(crate) fn assert_invariants(&self) {
        let filling = core::iter::once(self.filling);
        let others = self.lists.iter().flat_map(|lists| lists.open.iter());
        let mut open: Vec<u32> = others.map(|id| id.0).chain(filling).collect();
        open.retain(|&id| (id as usize) < self.chunks.len());
        open.sort_unstable();
        let listed = open.len();
        open.dedup();
        assert_eq!(open.len(), listed, "a chunk is open twice");
        let mut len = 0;
        for (id, chunk) in self.chunks.iter().enumerate() {
            let is_open = open.binary_search(&(id as u32)).is_ok();
            len += chunk.assert_invariants(Self::SIZE, Self::SLACK, is_open);
            let may_be_sparse = chunk.used as usize <= Self::FEW && id != self.filling as usize;
            assert!(may_be_sparse || !chunk.is_sparse(), "chunk {id} is sparse");
        }
        assert_eq!(len, self.len);
    }
}

/// The directory: which chunk is filled next, which are given back, and which become sparse.
impl<V, const BYTES: usize> Slab<V, BYTES> {
    /// Returns a chunk to fill; appends one if all are full.
    #[cold]
    #[inline(never)]
    fn open_chunk(&mut self) {
        let first = self.lists().open.pop().map_or(NONE, |id| id.0);
        self.filling = if (first as usize) < self.chunks.len() { first } else { self.append() };
        let chunk = &mut self.chunks[self.filling as usize];
        chunk.make_dense(Self::SIZE);
        // The first chunk grows like a vector.
        if self.filling != 0 {
            chunk.reserve(Self::SIZE);
        }
    }

    /// Appends a chunk, and returns its number.
    fn append(&mut self) -> u32 {
        // The remaining numbers refer to chunks that were given back, and the directory cut behind
        // them.
        self.lists().open.clear();
        let id = self.chunks.len() as u32;
        assert!(id <= u32::MAX >> Self::BITS, "a slab holds at most 2^32 values");
        self.chunks.push(Chunk::new(self.first_generation));
        id
    }

    fn lists(&mut self) -> &mut Lists {
        self.lists.get_or_insert_default()
    }

    /// Gives the memory of an empty chunk back, unless the chunk is filled next: a count that
    /// oscillates around the edge of a chunk would allocate it each time. The first chunk is given
    /// back in any case if it has grown, so an empty slab takes next to no memory.
    fn keep_or_give_back(&mut self, id: u32) {
        let next = self.lists().open.peek().map_or(NONE, |open| open.0).min(self.filling);
        let chunk = &self.chunks[id as usize];
        let may_stay = id > 0 || chunk.slots.capacity() * size_of::<Slot<V>>() <= SMALL;
        // A sparse chunk has no slots left.
        let former = if id == next && may_stay && !chunk.slots.is_empty() {
            self.lists().spare.replace(id)
        } else {
            self.give_back(id);
            // mutants(<=): it is another chunk, or was given back just now.
            self.lists().spare.take_if(|spare| id < *spare)
        };
        // The former spare one may have been filled since.
        let is_spare = |chunk: &Chunk<V>| chunk.used == 0 && chunk.slots.capacity() > 0;
        let is_left =
            |former: &u32| *former != id && self.chunks.get(*former as usize).is_some_and(is_spare);
        if let Some(former) = former.filter(is_left) {
            self.give_back(former);
        }
        self.cut_directory();
    }

    fn give_back(&mut self, id: u32) {
        let chunk = &mut self.chunks[id as usize];
        let next = chunk.used_up();
        *chunk = Chunk::new(next);
        let is_retired = next == LAST_GENERATION;
        if !is_retired && !chunk.is_worn() {
            self.first_generation = self.first_generation.max(next);
        }
        if self.filling == id {
            self.filling = NONE;
            self.lists().open.push(Reverse(id));
        }
        if is_retired {
            // The chunk stays in the directory as a mark, so that its keys stay stale.
            self.lists().open.retain(|open| open.0 != id);
        }
    }

    /// Removes the chunks at the end that were given back.
    fn cut_directory(&mut self) {
        let given_back =
            |chunk: &Chunk<V>| chunk.used == 0 && chunk.slots.capacity() == 0 && !chunk.is_worn();
        for _ in 0..CUT {
            if !self.chunks.last().is_some_and(given_back) {
                break;
            }
            self.chunks.pop();
        }
        // Rarely, so that the cost per chunk stays constant.
        // mutants(>=): from which size on it shrinks.
        if self.chunks.capacity() > 64 && self.chunks.len() < self.chunks.capacity() / 4 {
            let len = self.chunks.len();
            // mutants(/): it grows again at the cost of one copy.
            self.chunks.shrink_to(len * 2);
            // mutants(<=): the number of a chunk that is gone is skipped when it is taken.
            self.lists().open.retain(|id| (id.0 as usize) < len);
            // mutants(+): it grows again at the cost of one copy.
            self.lists().open.shrink_to(len * 2);
        }
    }

    /// Makes a chunk with few values sparse, once in `PACE` calls: whole batches of values are
    /// taken out under one lock. As that is a 32nd of a chunk, a call looks at 32 places on
    /// average. A chunk becomes a candidate only after many more removals, so none is kept waiting
    /// for long.
    #[cold]
    fn thin_out(&mut self) {
        self.pace -= 1;
        if self.pace > 0 {
            return;
        }
        while let Some(id) = self.lists().thin.pop() {
            self.pace = Self::PACE;
            // The chunk may have been given back since, or filled again.
            let chunk = self.chunks.get_mut(id as usize).filter(|_| id != self.filling);
            let is_few = |chunk: &&mut Chunk<V>| (1..=Self::FEW).contains(&(chunk.used as usize));
            if let Some(chunk) = chunk.filter(is_few).filter(|chunk| !chunk.is_sparse()) {
                return chunk.make_sparse();
            }
        }
    }
}

/// Identifies one value of a slab, and never another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// Packs the key into 64 bits. No key has all bits set, because the last generation is never
    /// given out.
    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Key { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four places a chunk.
    type Small = Slab<u64, 100>;
    /// 128 of them, of which eight are few.
    type Large = Slab<u64, 4000>;

    /// Two are added for each that is removed, and the directory grows.
    #[test]
    fn a_walk_over_the_values_ends_though_others_are_added() {
        let mut slab = Large::new();
        let present: Vec<Key> = (0..1000).map(|value| slab.insert(value, 0)).collect();
        present.iter().step_by(3).for_each(|key| _ = slab.remove(*key));
        let (mut after, mut seen) = (None, 0);
        loop {
            let some = slab.last_indices(after, 7);
            let Some(last) = some.last() else { break };
            after = Some(*last);
            for index in some {
                seen += u64::from(slab.remove_if(index, |value| *value < 1000).is_some());
                (0..2).for_each(|_| _ = slab.insert(1000, 0));
            }
            assert!(slab.len() < 10_000, "it goes on and on");
        }
        assert_eq!(seen, 666, "all that were there");
        slab.assert_invariants();
    }

    /// Phases of random calls: many values come, and most of them go, in three kinds of orders.
    #[test]
    fn keys_find_their_values_and_nothing_else_through_all_bursts() {
        let mut state = 1_u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut slab, mut gone, mut was_sparse) = (Large::new(), Vec::new(), false);
        let mut present: Vec<(Key, u64)> = Vec::new();
        for round in 0..60 {
            let added = random(1500) as u64;
            for _ in 0..random(20) {
                gone.push(slab.insert(0, 0)); // Its place has had more generations than others.
                slab.release(gone[gone.len() - 1].index);
            }
            present.extend((0..added).map(|value| (slab.insert(value, value as u32), value)));
            slab.assert_invariants();
            match random(3) {
                0 => present.reverse(),
                1 => (1..present.len()).for_each(|n| present.swap(n, random(n))),
                _ => {}
            }
            for (key, value) in present.split_off(random(30).min(present.len())) {
                let found = (slab.get(key), slab.tag(key.index));
                assert_eq!(found, (Some(&value), Some(value as u32)));
                assert_eq!(slab.remove(key), Some(value), "{round}");
                gone.push(key);
            }
            slab.assert_invariants();
            was_sparse |= slab.chunks.iter().any(Chunk::is_sparse);
            assert!(gone.iter().all(|key| slab.get(*key).is_none()), "{round}");
            assert!(present.iter().all(|(key, value)| slab.get(*key) == Some(value)), "{round}");
            assert_eq!((slab.len(), slab.iter().count()), (present.len(), present.len()));
            for chunk in slab.chunks.iter().skip(1) {
                let (room, is_sparse) = (chunk.slots.capacity(), chunk.is_sparse());
                assert!([0, Large::SIZE].contains(&room) || is_sparse, "allocated at once");
            }
        }
        assert!(was_sparse, "no chunk was sparse");
    }

    #[test]
    fn what_a_burst_took_is_given_back_in_whatever_order_it_goes() {
        let orders = [|n: usize| n, |n: usize| 19_999 - n, |n: usize| n * 7_919 % 20_000];
        let live_on: [fn(usize) -> bool; 3] = [|_| false, |n| n < 100, |n| n % Large::SIZE < 3];
        let may_keep = [32, 2 * Large::SIZE, 2 * 471 + Large::SIZE];
        for (order, nth) in orders.into_iter().flat_map(|order| [0, 1, 2].map(|nth| (order, nth))) {
            let mut slab = Large::new();
            let mut burst = vec![slab.insert(0, 0)];
            assert!(slab.chunks[0].slots.capacity() < 32, "the first grows");
            burst.extend((1..20_000).map(|value| slab.insert(value, 0)));
            let gone = (0..20_000).map(order).filter(|n| !live_on[nth](*n));
            gone.for_each(|n| slab.release(burst[n].index));
            slab.assert_invariants();
            let (chunks, open) = (&slab.chunks, &slab.lists.as_ref().expect("it was used").open);
            let places = |chunk: &Chunk<u64>| chunk.slots.capacity() + chunk.few.capacity();
            let places: usize = chunks.iter().map(places).sum();
            assert!(places <= may_keep[nth], "{places} places for {} values", slab.len());
            let room = chunks.capacity().max(open.capacity());
            assert!(room <= 64.max(4 * slab.len()), "{room} for {} values", slab.len());
        }
    }

    #[test]
    fn a_full_chunk_is_filled_again_when_enough_of_it_is_vacant() {
        let mut slab = Large::new();
        let full: Vec<Key> = (0..256).map(|value| slab.insert(value, 0)).collect();
        let mut next_chunk = |release: &[Key], insert: u64| {
            release.iter().for_each(|key| slab.release(key.index));
            let chunks: Vec<_> =
                (0..insert).map(|value| slab.insert(value, 0).index / 128).collect();
            slab.assert_invariants();
            chunks
        };
        assert_eq!(next_chunk(&full[..7], 1), [2], "seven vacant places are too few");
        assert_eq!(next_chunk(&full[7..8], 127), [2; 127], "a chunk is filled to its end");
        assert_eq!(next_chunk(&[], 8), [0; 8]);
        assert_eq!(next_chunk(&[], 1), [3]);
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_retired_and_so_is_its_chunk() {
        let mut slab = Small::new();
        let keys: Vec<Key> = (0..8).map(|value| slab.insert(value, 0)).collect();
        slab.chunks[1].slots[0].generation = LAST_GENERATION - 1;
        slab.release(keys[4].index);
        slab.assert_invariants();
        slab.release(keys[5].index);
        let added: Vec<Key> = (0..4).map(|value| slab.insert(value, 0)).collect();
        assert_eq!(added[0].index, 5, "the chunk is open, the place is retired");
        assert!(added.iter().all(|key| key.index != 4), "{added:?}");
        added.iter().chain(&keys).for_each(|key| _ = slab.remove(*key));
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
