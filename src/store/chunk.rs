//! The chunk: places of a slab that are allocated, and given back, together.
//!
//! A chunk is *dense* while it is being filled: each slot is at its place. When all but a few of
//! its values have been removed, it becomes *sparse*: the remaining values are moved together, and
//! the rest of the memory is given back. So a value that survives a burst keeps little more than
//! its own slot.

use crate::work;
use alloc::vec::Vec;

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
    /// the values that are left, in the order of their places.
    pub(crate) slots: Vec<Slot<V>>,
    /// Sparse: the places of the slots. Dense: empty.
    places: Vec<u16>,
    /// The head of the list of vacated slots.
    pub(crate) vacant: u32,
    pub(crate) used: u32,
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

impl<V> Chunk<V> {
    pub(crate) fn new(first_generation: u32) -> Self {
        Chunk {
            slots: Vec::new(),
            places: Vec::new(),
            vacant: NONE,
            used: 0,
            is_open: true,
            first_generation,
        }
    }

    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        !self.places.is_empty()
    }

    #[inline]
    pub(crate) fn is_full(&self, size: usize) -> bool {
        self.vacant == NONE && self.slots.len() == size
    }

    /// Returns where in `slots` a place's slot is, if there is one.
    #[inline(always)]
    pub(crate) fn find(&self, offset: usize) -> Option<usize> {
        if self.is_sparse() { self.find_sparse(offset) } else { Some(offset) }
    }

    #[cold]
    fn find_sparse(&self, offset: usize) -> Option<usize> {
        self.places.binary_search(&(offset as u16)).ok()
    }

    /// Returns the slot at a place, if there is one.
    #[inline]
    pub(crate) fn slot(&self, offset: usize) -> Option<&Slot<V>> {
        self.slots.get(self.find(offset)?)
    }

    #[inline(always)]
    pub(crate) fn slot_mut(&mut self, offset: usize) -> Option<&mut Slot<V>> {
        let at = self.find(offset)?;
        self.slots.get_mut(at)
    }

    /// Returns all slots, with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Slot<V>)> {
        self.slots.iter().enumerate().map(|(at, slot)| {
            work::count(1);
            (self.places.get(at).map_or(at, |offset| usize::from(*offset)), slot)
        })
    }

    /// Reserves all places at once. Without this, a chunk grows like a vector. That is done for the
    /// first chunk of a slab, because most slabs hold few values and have no other chunk.
    pub(crate) fn reserve(&mut self, size: usize) {
        self.slots.reserve_exact(size - self.slots.len());
    }

    /// Turns a place that was never used into a vacant one; there must be such a place.
    #[inline(never)]
    pub(crate) fn push_vacant(&mut self) {
        self.vacant = self.slots.len() as u32;
        self.slots.push(Slot { generation: self.first_generation, tag: NONE, value: None });
    }

    /// Returns the first generation that was never given out here.
    pub(crate) fn used_up(&self) -> u32 {
        work::count(self.slots.len());
        let next = |slot: &Slot<V>| slot.generation + u32::from(slot.value.is_some());
        self.slots.iter().map(next).max().unwrap_or(0).max(self.first_generation)
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
        work::count(self.slots.len());
        let mut few = Chunk::new(self.first_generation);
        few.places.reserve_exact(self.used as usize);
        few.used = self.used;
        few.reserve(self.used as usize);
        for (offset, &mut Slot { generation, tag, ref mut value }) in
            self.slots.iter_mut().enumerate()
        {
            few.first_generation = few.first_generation.max(generation);
            if value.is_some() {
                few.slots.push(Slot { generation, tag, value: value.take() });
                few.places.push(offset as u16);
            }
        }
        *self = few;
    }

    /// Puts the values of a sparse chunk back to their places.
    pub(crate) fn make_dense(&mut self, size: usize) {
        if !self.is_sparse() {
            return;
        }
        let places = core::mem::take(&mut self.places);
        let slots = core::mem::take(&mut self.slots);
        self.reserve(size);
        work::count(size);
        for (offset, slot) in places.into_iter().zip(slots) {
            while self.slots.len() < usize::from(offset) {
                let next = self.vacant;
                self.push_vacant();
                self.slots[self.vacant as usize].tag = next;
            }
            self.slots.push(slot);
        }
    }

    /// Removes the slot of a sparse chunk whose value was taken out.
    pub(crate) fn forget(&mut self, at: usize) {
        work::count(self.places.len() - at);
        self.places.remove(at);
        let slot = self.slots.remove(at);
        self.first_generation = self.first_generation.max(slot.generation);
        // No place is added to a sparse chunk, so the cost per value stays constant.
        if self.slots.len() <= self.slots.capacity() / 2 {
            self.slots.shrink_to_fit();
            self.places.shrink_to_fit();
        }
    }

    /// Checks that the list of vacant places is right, and that the chunk is open if it has more
    /// than `slack` of them. Returns how many values there are.
    pub(crate) fn assert_invariants(&self, size: usize, slack: usize, is_open: bool) -> usize {
        let used = self.slots.iter().filter(|slot| slot.value.is_some()).count();
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
        assert!(self.is_worn() || used + count == self.slots.len(), "a vacant place is lost");
        assert!(is_open || !fresh && count < slack || is_retired, "a chunk is wrongly closed");
        used
    }
}
