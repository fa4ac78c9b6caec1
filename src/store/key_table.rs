//! The key table: finds values, which contain their keys, by the hashes of these keys.
//!
//! A value has no fixed place: it moves when the table grows. So a user that has to find it again
//! keeps its hash, and something that distinguishes it from the others.

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
    fn long(self) -> u64 {
        u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

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
    #[inline]
    pub(crate) fn find(&self, hash: ShortHash, is_meant: impl Fn(&V) -> bool) -> Option<&V> {
        self.0.find(hash.long(), |other| {
            work::count(1);
            other.hash() == hash && is_meant(other)
        })
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

    /// Adds a value whose key is not there.
    #[inline]
    pub(crate) fn insert(&mut self, value: V) {
        self.0.insert_unique(value.hash().long(), value, |other| other.hash().long());
    }

    /// Takes out the value with this hash that `is_meant`.
    #[inline]
    pub(crate) fn remove(&mut self, hash: ShortHash, is_meant: impl Fn(&V) -> bool) -> Option<V> {
        let found = self.0.find_entry(hash.long(), |other| {
            work::count(1);
            other.hash() == hash && is_meant(other)
        });
        let (value, _) = found.ok()?.remove();
        // Rarely, so that the cost per key stays constant.
        // mutants: when it shrinks. What is no smaller afterwards was only looked at.
        if self.0.capacity() > 16 && self.0.len() < self.0.capacity() / 8 {
            self.shrink();
        }
        Some(value)
    }

    #[cold]
    fn shrink(&mut self) {
        // mutants(+): it grows again at the cost of one copy.
        self.0.shrink_to(2 * self.0.len(), |other| other.hash().long());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        self.0.iter()
    }
}
