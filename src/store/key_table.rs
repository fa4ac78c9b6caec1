//! The key table: finds values, which contain their keys, by the hashes of these keys.
//!
//! A value has no fixed place: it moves when the table grows. So a user that has to find it again
//! keeps its hash, and something that distinguishes it from the others.

use crate::store::key_index::ShortHash;
use crate::work;
use hashbrown::HashTable;

/// A value of a table.
pub(crate) trait Hashed {
    /// Returns the hash of its key, which does not change.
    fn hash(&self) -> ShortHash;
}

/// A table of values that contain their own keys; see the [module](self).
#[derive(Debug)]
pub(crate) struct KeyTable<V>(HashTable<V>);

impl<V: Hashed> KeyTable<V> {
    pub(crate) fn new() -> Self {
        KeyTable(HashTable::new())
    }

    /// Returns the value with this hash that `is_meant`.
    pub(crate) fn find(&self, hash: ShortHash, is_meant: impl Fn(&V) -> bool) -> Option<&V> {
        self.0.find(hash.long(), |other| other.hash() == hash && is_meant(other))
    }

    /// Returns the value with this hash that `is_meant`.
    #[inline]
    pub(crate) fn find_mut(
        &mut self,
        hash: ShortHash,
        is_meant: impl Fn(&V) -> bool,
    ) -> Option<&mut V> {
        self.0.find_mut(hash.long(), |other| {
            work::count(1);
            other.hash() == hash && is_meant(other)
        })
    }

    /// Returns the value with this hash that `is_meant`, made by `make` if there is none.
    #[inline]
    pub(crate) fn find_or_insert(
        &mut self,
        hash: ShortHash,
        is_meant: impl Fn(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        let is_it = |other: &V| {
            work::count(1);
            other.hash() == hash && is_meant(other)
        };
        let entry = self.0.entry(hash.long(), is_it, |other| other.hash().long());
        entry.or_insert_with(make).into_mut()
    }

    /// Takes out the value with this hash that `is_meant`.
    pub(crate) fn remove(&mut self, hash: ShortHash, is_meant: impl Fn(&V) -> bool) -> Option<V> {
        let is_it = |other: &V| {
            work::count(1);
            other.hash() == hash && is_meant(other)
        };
        let (value, _) = self.0.find_entry(hash.long(), is_it).ok()?.remove();
        // Rarely, so that the cost per key stays constant.
        if self.0.capacity() > 16 && self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(2 * self.0.len(), |other| other.hash().long());
        }
        Some(value)
    }

    /// Returns all values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        self.0.iter()
    }
}
