//! The key index: finds the places of values by the hashes of their keys.
//!
//! It holds no keys. Its user stores them beside the values, and decides which candidate is meant.

use crate::store::key_table::{Hashed, KeyTable, ShortHash};

/// The index from hashes to places; see the [module](self).
#[derive(Debug)]
pub(crate) struct KeyIndex(KeyTable<Place>);

#[derive(Debug)]
struct Place {
    hash: ShortHash,
    index: u32,
}

impl Hashed for Place {
    #[inline]
    fn hash(&self) -> ShortHash {
        self.hash
    }
}

impl KeyIndex {
    pub(crate) fn new() -> Self {
        KeyIndex(KeyTable::new())
    }

    /// Returns the index with this hash that `is_meant`.
    #[inline]
    pub(crate) fn find(&self, hash: ShortHash, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        self.0.find(hash, |place| is_meant(place.index)).map(|place| place.index)
    }

    /// Adds the index of a key that is not there.
    #[inline]
    pub(crate) fn insert(&mut self, hash: ShortHash, index: u32) {
        self.0.insert(Place { hash, index });
    }

    /// Takes out the index with this hash that `is_meant`.
    #[inline]
    pub(crate) fn take(&mut self, hash: ShortHash, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        self.0.remove(hash, |place| is_meant(place.index)).map(|place| place.index)
    }

    /// Takes out an index, which must be there.
    #[inline]
    pub(crate) fn remove(&mut self, hash: ShortHash, index: u32) {
        self.take(hash, |other| other == index);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all indices, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|place| place.index)
    }
}
