//! The chunk: places of a slab that are allocated, and given back, together.

/// No further vacant place in the chunk.
pub(crate) const NONE: u32 = u32::MAX;
/// The last generation of a place: a place that reaches it is retired.
pub(crate) const LAST_GENERATION: u32 = u32::MAX;
/// A chunk that has used up this many generations stays in the directory when it is given back, and
/// is filled again until they end: so every chunk that is appended has at least as many left.
pub(crate) const WORN_GENERATION: u32 = u32::MAX / 2;

#[derive(Debug)]
pub(crate) struct Chunk<V> {
    /// Grows by pushing up to the chunk's size, within a capacity reserved at once.
    pub(crate) slots: Vec<Slot<V>>,
    /// The head of the list of vacated slots.
    pub(crate) vacant: u32,
    pub(crate) used: u32,
    pub(crate) first_generation: u32,
}

#[derive(Debug)]
pub(crate) struct Slot<V> {
    pub(crate) generation: u32,
    /// Occupied: the owner's tag. Vacant: the next vacant slot of the chunk.
    pub(crate) tag: u32,
    pub(crate) value: Option<V>,
}

impl<V> Chunk<V> {
    pub(crate) fn new(first_generation: u32) -> Self {
        Chunk { slots: Vec::new(), vacant: NONE, used: 0, first_generation }
    }

    #[inline]
    pub(crate) fn is_full(&self, size: usize) -> bool {
        self.vacant == NONE && self.slots.len() == size
    }

    /// Makes a place that was never used the vacant one; there is one.
    #[inline(never)]
    pub(crate) fn push_vacant(&mut self, size: usize) {
        if self.slots.capacity() == 0 {
            self.slots.reserve_exact(size);
        }
        self.vacant = self.slots.len() as u32;
        self.slots.push(Slot { generation: self.first_generation, tag: NONE, value: None });
    }

    /// The first generation that was never given out here.
    pub(crate) fn used_up(&self) -> u32 {
        let next = |slot: &Slot<V>| slot.generation + u32::from(slot.value.is_some());
        self.slots.iter().map(next).max().unwrap_or(0).max(self.first_generation)
    }

    pub(crate) fn is_worn(&self) -> bool {
        self.first_generation >= WORN_GENERATION
    }
}
