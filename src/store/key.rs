//! The key: a place in a slab and the generation of that place.

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
