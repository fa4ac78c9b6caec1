//! The directory of a slab's chunks: which of them is filled next, which are given back, and which
//! become sparse.

use crate::store::chunk::{Chunk, LAST_GENERATION, NONE, Slot};
use crate::work;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How many chunks are cut off the directory at once. Dropping the record of one takes a
/// nanosecond.
const CUT: usize = 1 << 14;

/// The first chunk is kept when it is empty, if it takes no more bytes than this.
const SMALL: usize = 1 << 10;

/// The directory of a slab's chunks: see the [module](self).
#[derive(Debug)]
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
        let former = if id == next && !chunk.is_sparse() && may_stay {
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
        let filling = std::iter::once(self.filling);
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
