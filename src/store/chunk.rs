//! The chunk: places of a slab that are allocated, and given back, together.
//!
//! A chunk is *dense* while it is being filled: each slot is at its place. When all but a few of
//! its values have been removed, it becomes *sparse*: the remaining values are moved together into
//! a list, and the memory of the slots is given back. So a value that survives a burst keeps little
//! more than its own slot, and a value of a dense chunk is found without asking what the chunk is.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;

/// Marks that the chunk has no further vacant place.
pub(crate) const NONE: u32 = u32::MAX;
/// The last generation of a place: a place that reaches it is retired.
pub(crate) const LAST_GENERATION: u32 = u32::MAX;
/// A chunk that has used up this many generations stays in the directory when it is given back, and
/// is filled again until they run out. So every appended chunk has at least as many left.
pub(crate) const WORN_GENERATION: u32 = u32::MAX / 2;

#[derive(Clone, Debug)]
pub(crate) struct Chunk<V> {
    /// Dense: grows by pushing up to the chunk's size, within a capacity reserved at once. Sparse:
    /// empty.
    pub(crate) slots: Vec<Slot<V>>,
    /// Sparse: the values that are left, in the order of their places. Dense: empty.
    pub(crate) few: Vec<(u16, Slot<V>)>,
    /// The head of the list of vacated slots.
    pub(crate) vacant: u32,
    pub(crate) used: u16,
    /// The slab takes note of each removal that leaves no more values than this. Zero is too few
    /// only until the chunk is filled.
    pub(crate) mark: u16,
    /// Whether the chunk is open or is being filled. A full chunk becomes open again only when
    /// enough of its places are vacant.
    pub(crate) is_open: bool,
    /// Vacant places that have no slot.
    pub(crate) first_generation: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot<V> {
    pub(crate) generation: u32,
    /// Occupied: the owner's tag. Vacant: the next vacant slot of the chunk.
    pub(crate) tag: u32,
    pub(crate) value: Option<V>,
}

/// The chunks of a slab with which something is to be done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    /// The open chunks, which have vacant places, but for the one that is being filled. The first
    /// is filled next, so that the last ones become empty.
    pub(crate) open: BinaryHeap<Reverse<u32>>,
    /// The empty chunk that keeps its memory.
    pub(crate) spare: Option<u32>,
    /// Chunks with few values left, which are to become sparse.
    pub(crate) thin: Vec<u32>,
}

impl<V> Chunk<V> {
    pub(crate) fn new(first_generation: u32) -> Self {
        Chunk {
            slots: Vec::new(),
            few: Vec::new(),
            vacant: NONE,
            used: 0,
            mark: 0,
            is_open: true,
            first_generation,
        }
    }

    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        !self.few.is_empty()
    }

    #[inline]
    pub(crate) fn is_full(&self, size: usize) -> bool {
        self.vacant == NONE && self.slots.len() == size
    }

    /// Returns the slot at a place, if there is one.
    #[inline]
    pub(crate) fn slot(&self, offset: usize) -> Option<&Slot<V>> {
        match self.slots.get(offset) {
            None => self.slot_of_few(offset),
            slot => slot,
        }
    }

    #[cold]
    fn slot_of_few(&self, offset: usize) -> Option<&Slot<V>> {
        Some(&self.few[self.find(offset)?].1)
    }

    #[inline(always)]
    pub(crate) fn slot_mut(&mut self, offset: usize) -> Option<&mut Slot<V>> {
        if offset < self.slots.len() { self.slots.get_mut(offset) } else { self.few_mut(offset) }
    }

    #[cold]
    fn few_mut(&mut self, offset: usize) -> Option<&mut Slot<V>> {
        let at = self.find(offset)?;
        Some(&mut self.few[at].1)
    }

    /// Returns where a place's value is among the few of a sparse chunk.
    fn find(&self, offset: usize) -> Option<usize> {
        self.few.binary_search_by_key(&offset, |(own, _)| usize::from(*own)).ok()
    }

    /// Returns all slots, with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Slot<V>)> {
        let few = self.few.iter().map(|(offset, slot)| (usize::from(*offset), slot));
        self.slots.iter().enumerate().chain(few)
    }

    /// Reserves all places at once. Without this, a chunk grows like a vector. That is done for the
    /// first chunk of a slab, because most slabs hold few values and have no other chunk.
    pub(crate) fn reserve(&mut self, size: usize) {
        self.slots.reserve_exact(size - self.slots.len());
    }

    /// Puts a value into a vacant place, or into one that was never used; there must be such a
    /// place. Returns it, and its generation.
    #[inline(always)]
    pub(crate) fn put(&mut self, value: V, tag: u32) -> (u32, u32) {
        let value = Some(value);
        self.used += 1;
        if let Some(slot) = self.slots.get_mut(self.vacant as usize) {
            let place = mem::replace(&mut self.vacant, slot.tag);
            (slot.tag, slot.value) = (tag, value);
            return (place, slot.generation);
        }
        let (place, generation) = (self.slots.len() as u32, self.first_generation);
        self.slots.push(Slot { generation, tag, value });
        (place, generation)
    }

    /// Returns the first generation that was never given out here.
    pub(crate) fn used_up(&self) -> u32 {
        let next = |(_, slot): (usize, &Slot<V>)| slot.generation + u32::from(slot.value.is_some());
        self.iter().map(next).max().unwrap_or(0).max(self.first_generation)
    }

    pub(crate) fn is_worn(&self) -> bool {
        self.first_generation >= WORN_GENERATION
    }

    /// Notes that a place of the chunk has reached a generation of at least [`WORN_GENERATION`].
    /// Returns whether the place has any generation left.
    #[cold]
    pub(crate) fn wear(&mut self, generation: u32) -> bool {
        self.first_generation = self.first_generation.max(WORN_GENERATION);
        generation != LAST_GENERATION
    }

    /// Moves the few remaining values together. A worn chunk stays as it is, because all places of
    /// a sparse chunk continue from the generation of its most used place.
    pub(crate) fn make_sparse(&mut self) {
        if self.is_worn() {
            return;
        }
        self.few.reserve_exact(self.used as usize);
        self.vacant = NONE;
        for (offset, slot) in (0..).zip(mem::take(&mut self.slots)) {
            self.first_generation = self.first_generation.max(slot.generation);
            if slot.value.is_some() {
                self.few.push((offset, slot));
            }
        }
    }

    /// Puts the values of a sparse chunk back to their places.
    pub(crate) fn make_dense(&mut self, size: usize) {
        if !self.is_sparse() {
            return;
        }
        self.reserve(size);
        for (offset, slot) in mem::take(&mut self.few) {
            while self.slots.len() < usize::from(offset) {
                let place = self.slots.len() as u32;
                let tag = mem::replace(&mut self.vacant, place);
                let generation = self.first_generation;
                self.slots.push(Slot { generation, tag, value: None });
            }
            self.slots.push(slot);
        }
    }

    /// Takes a value out of a sparse chunk, if it is there and is `wanted`.
    pub(crate) fn take_of_few(
        &mut self,
        offset: usize,
        wanted: impl FnOnce(u32, &mut V) -> bool,
    ) -> Option<V> {
        let at = self.find(offset)?;
        let Slot { generation, ref mut value, .. } = self.few[at].1;
        let value = value.take_if(|value| wanted(generation, value))?;
        self.few.remove(at);
        self.used -= 1;
        self.first_generation = self.first_generation.max(generation + 1);
        // No place is added to a sparse chunk, so the cost per value stays constant.
        if self.few.len() <= self.few.capacity() / 2 {
            self.few.shrink_to_fit();
        }
        Some(value)
    }

    /// Checks that the list of vacant places is right, and that the chunk is open if it has more
    /// than `slack` of them. Returns how many values there are.
    pub(crate) fn assert_invariants(&self, size: usize, slack: usize, is_open: bool) -> usize {
        let used = self.iter().filter(|(_, slot)| slot.value.is_some()).count();
        assert_eq!(used, self.used as usize);
        let is_retired = self.first_generation == LAST_GENERATION;
        let fresh = self.slots.len() < size && !is_retired;
        assert_eq!(is_open, self.is_open && !is_retired, "a chunk is wrongly listed or not");
        assert!(!is_open || self.vacant != NONE || fresh, "a full chunk is open");
        let (mut vacant, mut count) = (self.vacant, 0);
        while vacant != NONE {
            count += 1;
            let slot = &self.slots[vacant as usize];
            assert!(slot.value.is_none() && slot.generation < LAST_GENERATION);
            vacant = slot.tag;
        }
        let places = self.slots.len() + self.few.len();
        assert!(self.slots.is_empty() || self.few.is_empty(), "dense and sparse");
        assert!(self.is_worn() || used + count == places, "a vacant place is lost");
        assert!(is_open || !fresh && count < slack || is_retired, "a chunk is wrongly closed");
        used
    }
}
