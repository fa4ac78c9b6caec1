//! The chunk: places of a slab that are allocated, and given back, together.
//!
//! A chunk is *dense* while it is being filled: each slot is at its place. When all but a few of
//! its values have been removed, it becomes *sparse*: the remaining values are moved together, and
//! the rest of the memory is given back. So a value that survives a burst keeps little more than
//! its own slot.
//!
//! # The directory
//! The directory of a slab's chunks: which of them is filled next, which are given back, and which
//! become sparse.

use crate::work;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

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

/// How many chunks are cut off the directory at once. Dropping the record of one takes a
/// nanosecond.
const CUT: usize = 1 << 14;

/// The first chunk is kept when it is empty, if it takes no more bytes than this.
const SMALL: usize = 1 << 10;

/// The directory of a slab's chunks: see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Directory<V> {
    pub(crate) chunks: Vec<Chunk<V>>,
    /// The chunk that is being filled, which has a vacant place; `NONE` if no chunk is open.
    pub(crate) filling: u32,
    /// The other open chunks, which have vacant places. The first is filled next, so that the last
    /// ones become empty.
    pub(crate) open: BinaryHeap<Reverse<u32>>,
    /// The empty chunk that keeps its memory.
    pub(crate) spare: Option<u32>,
    /// Chunks with few values left, which are to become sparse, and the number of calls since one
    /// last did.
    pub(crate) thin: Vec<u32>,
    paced: usize,
    /// The generation at which the next new chunk starts.
    pub(crate) first_generation: u32,
}

impl<V> Directory<V> {
    pub(crate) fn new() -> Self {
        Directory {
            chunks: Vec::new(),
            filling: NONE,
            open: BinaryHeap::new(),
            spare: None,
            thin: Vec::new(),
            paced: 0,
            first_generation: 0,
        }
    }

    /// Creates an empty directory whose generations begin after all that were given out here.
    pub(crate) fn successor(&self) -> Self {
        work::count(self.chunks.len());
        let used_up = self.chunks.iter().map(Chunk::used_up).max().unwrap_or(0);
        Directory { first_generation: used_up.max(self.first_generation), ..Directory::new() }
    }

    /// Returns a chunk to fill; appends one if all are full.
    #[cold]
    #[inline(never)]
    pub(crate) fn open_chunk(&mut self, bits: u32) {
        let first = self.open.pop().map_or(NONE, |id| id.0);
        self.filling = if (first as usize) < self.chunks.len() { first } else { self.append(bits) };
        let (size, chunk) = (1 << bits, &mut self.chunks[self.filling as usize]);
        chunk.make_dense(size);
        // The first chunk grows like a vector.
        if self.filling != 0 {
            chunk.reserve(size);
        }
    }

    /// Appends a chunk, and returns its number.
    fn append(&mut self, bits: u32) -> u32 {
        // The remaining numbers refer to chunks that were given back, and the directory cut behind
        // them.
        self.open.clear();
        let id = self.chunks.len() as u32;
        assert!(id <= u32::MAX >> bits, "a slab holds at most 2^32 values");
        work::count_growth(self.chunks.len(), self.chunks.capacity());
        self.chunks.push(Chunk::new(self.first_generation));
        id
    }

    /// Adds a chunk that has vacant places again.
    #[cold]
    pub(crate) fn open(&mut self, id: u32) {
        if self.filling == NONE && self.open.is_empty() {
            self.filling = id;
        } else {
            self.open.push(Reverse(id));
        }
    }

    /// Gives the memory of an empty chunk back, unless the chunk is filled next: a count that
    /// oscillates around the edge of a chunk would allocate it each time. The first chunk is given
    /// back in any case if it has grown, so an empty slab takes next to no memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn keep_or_give_back(&mut self, id: u32) {
        let next = self.open.peek().map_or(NONE, |open| open.0).min(self.filling);
        let chunk = &self.chunks[id as usize];
        let may_stay = id > 0 || chunk.slots.capacity() * size_of::<Slot<V>>() <= SMALL;
        // A sparse chunk has no slots left.
        let former = if id == next && may_stay && !chunk.slots.is_empty() {
            self.spare.replace(id)
        } else {
            self.give_back(id);
            // mutants(<=): a spare that gets a value is none any more, so it is another chunk.
            self.spare.take_if(|spare| id < *spare)
        };
        if let Some(former) = former {
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
            self.open.push(Reverse(id));
        }
        if is_retired {
            // The chunk stays in the directory as a mark, so that its keys stay stale.
            work::count(self.open.len());
            self.open.retain(|open| open.0 != id);
        }
    }

    /// Removes the chunks at the end that were given back.
    fn cut_directory(&mut self) {
        let given_back = |chunk: &Chunk<V>| chunk.slots.capacity() == 0 && !chunk.is_worn();
        for _ in 0..CUT {
            if !self.chunks.last().is_some_and(given_back) {
                break;
            }
            work::count(1);
            self.chunks.pop();
        }
        // Rarely, so that the cost per chunk stays constant.
        // mutants(>=): from which size on it shrinks.
        if self.chunks.capacity() > 64 && self.chunks.len() < self.chunks.capacity() / 4 {
            let len = self.chunks.len();
            work::count(len + self.open.len());
            // mutants(/): it grows again at the cost of one copy.
            self.chunks.shrink_to(len * 2);
            // mutants(<=): the number of a chunk that is gone is skipped when it is taken.
            self.open.retain(|id| (id.0 as usize) < len);
            // mutants(+): it grows again at the cost of one copy.
            self.open.shrink_to(len * 2);
        }
    }

    /// Makes a chunk with few values sparse, once in `few / 2` calls: whole batches of values are
    /// taken out under one lock. As few is a sixteenth of a chunk, a call looks at 32 places on
    /// average. A chunk becomes a candidate only after many more removals, so none is kept waiting
    /// for long.
    #[cold]
    pub(crate) fn thin_out(&mut self, few: usize) {
        self.paced += 1;
        if self.paced < few / 2 {
            return;
        }
        self.paced = 0;
        while let Some(id) = self.thin.pop() {
            work::count(1);
            // The chunk may have been given back since, or filled again.
            let chunk = self.chunks.get_mut(id as usize).filter(|_| id != self.filling);
            let is_few = |chunk: &&mut Chunk<V>| (1..=few).contains(&(chunk.used as usize));
            if let Some(chunk) = chunk.filter(is_few).filter(|chunk| !chunk.is_sparse()) {
                return chunk.make_sparse();
            }
        }
    }

    /// Checks what the fields' comments say, for chunks of `size` places. Returns how many values
    /// there are. Takes time proportional to them.
    pub(crate) fn assert_invariants(&self, size: usize, few: usize, slack: usize) -> usize {
        let filling = core::iter::once(self.filling);
        let mut open: Vec<u32> = self.open.iter().map(|id| id.0).chain(filling).collect();
        open.retain(|&id| (id as usize) < self.chunks.len());
        open.sort_unstable();
        let listed = open.len();
        open.dedup();
        assert_eq!(open.len(), listed, "a chunk is open twice");
        let mut len = 0;
        for (id, chunk) in self.chunks.iter().enumerate() {
            let is_open = open.binary_search(&(id as u32)).is_ok();
            len += chunk.assert_invariants(size, slack, is_open);
            let may_be_sparse = chunk.used as usize <= few && id != self.filling as usize;
            assert!(may_be_sparse || !chunk.is_sparse(), "chunk {id} is sparse");
        }
        len
    }
}
