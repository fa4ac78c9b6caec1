//! The key index: finds the places of values by the hashes of their keys.
//!
//! It holds no keys. Its user stores them beside the values, and decides which candidate is meant.

use crate::work;
use hashbrown::HashTable;

/// The part of a key's [spread](crate::store::key_map::spread) hash that is stored. It is enough to
/// tell nearly all keys apart without looking at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortHash(u32);

impl ShortHash {
    #[inline]
    pub(crate) fn of(hash: u64) -> Self {
        ShortHash(hash as u32)
    }

    /// Returns the hash in the form that the table needs, which uses the highest and the lowest
    /// bits.
    #[inline]
    pub(crate) fn long(self) -> u64 {
        u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// The index from hashes to places; see the [module](self).
#[derive(Debug)]
pub(crate) struct KeyIndex(HashTable<(ShortHash, u32)>);

impl KeyIndex {
    pub(crate) fn new() -> Self {
        KeyIndex(HashTable::new())
    }

    /// Returns the index with this hash that `is_meant`.
    #[inline]
    pub(crate) fn find(&self, hash: ShortHash, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.0.find(hash.long(), |(other, index)| {
            work::count(1);
            *other == hash && is_meant(*index)
        });
        found.map(|(_, index)| *index)
    }

    /// Adds the index of a key that is not there.
    #[inline]
    pub(crate) fn insert(&mut self, hash: ShortHash, index: u32) {
        self.0.insert_unique(hash.long(), (hash, index), |(hash, _)| hash.long());
    }

    /// Takes out an index, which must be there.
    #[inline]
    pub(crate) fn remove(&mut self, hash: ShortHash, index: u32) {
        self.take(hash, |other| other == index);
    }

    /// Removes the index with this hash that `is_meant`.
    #[inline]
    pub(crate) fn take(&mut self, hash: ShortHash, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.0.find_entry(hash.long(), |(other, index)| {
            work::count(1);
            *other == hash && is_meant(*index)
        });
        let ((_, index), _) = found.ok()?.remove();
        // Rarely, so that the cost per key stays constant.
        if self.0.capacity() > 16 && self.0.len() < self.0.capacity() / 8 {
            self.shrink();
        }
        Some(index)
    }

    #[cold]
    fn shrink(&mut self) {
        self.0.shrink_to(2 * self.0.len(), |(hash, _)| hash.long());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all indices, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(_, index)| *index)
    }
}
