//! The key map: values by key, each at a place of its own that never moves.
//!
//! One shard of a map: whoever uses it computes a key's [hash](spread) once, picks the shard with
//! it, and finds the key there with it. A value that was found once is named by its index, or for
//! good by its [`Key`].
//!
//! Invariants, checked by [`KeyMap::assert_invariants`]: every value is found by its key, and each
//! key has one value.

use crate::store::key::Key;
use crate::store::slab::Slab;
use crate::work;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

const NONE: u32 = u32::MAX;

/// A key's hash, as a [`KeyMap`] wants it: what a simple hasher leaves in the low bits is spread
/// over all of them. (Fibonacci hashing: Knuth, "The Art of Computer Programming", vol. 3, 6.4.)
#[inline]
pub(crate) fn spread<Q: Hash + ?Sized>(hasher: &impl BuildHasher, key: &Q) -> u64 {
    let hash = hasher.hash_one(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ (hash >> 32)
}

/// Which of so many shards, a power of two, a key with this hash belongs to. Does not look at the
/// bits that the shard's own table uses, the lowest and the highest.
#[inline]
pub(crate) fn shard_of(hash: u64, shards: usize) -> usize {
    (hash >> 40) as usize & (shards - 1)
}

/// How many shards a map for so many threads should have: so many that two of them seldom want the
/// same one. Few in models, where each lock is a step of the schedule.
pub(crate) fn shards_for(threads: usize) -> usize {
    let each = if cfg!(tickwheel_model) { 2 } else { 32 };
    (each * threads).next_power_of_two().min(1 << 12)
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct KeyMap<K, V> {
    by_hash: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    items: Slab<Item<K, V>>,
}

#[derive(Debug)]
struct Item<K, V> {
    key: K,
    hash: u64,
    /// Another item whose key has the same hash.
    same_hash: u32,
    value: V,
}

impl<K: Eq, V> KeyMap<K, V> {
    pub(crate) fn new() -> Self {
        KeyMap { by_hash: HashMap::default(), items: Slab::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The index of a key's value.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut index = *self.by_hash.get(&hash)?;
        while index != NONE {
            work::count(1);
            let item = self.items.at(index);
            if item.key.borrow() == key {
                return Some(index);
            }
            index = item.same_hash;
        }
        None
    }

    /// The value at `index`; there must be one.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &V {
        &self.items.at(index).value
    }

    /// The value at `index`; there must be one.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        &mut self.items.at_mut(index).value
    }

    /// The index of the value with this name, if it is there still.
    pub(crate) fn find_named(&self, name: Key) -> Option<u32> {
        self.items.get(name).map(|_| name.index)
    }

    /// Adds a value to a key, and returns its name. If the key has one already, that is found again
    /// when this one is removed.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: V) -> Key {
        // One probe of the table: what stands there is read and replaced at its place.
        let first = self.by_hash.entry(hash).or_insert(NONE);
        let key = self.items.insert(Item { key, hash, same_hash: *first, value }, 0);
        *first = key.index;
        key
    }

    /// Takes a key and its value out; there must be one at `index`.
    pub(crate) fn remove(&mut self, index: u32) -> Option<(K, V)> {
        let Item { hash, same_hash: next, .. } = *self.items.at(index);
        // One probe of the table: the first item's index is changed or taken out at its place.
        let Entry::Occupied(mut first) = self.by_hash.entry(hash) else { return None };
        if *first.get() != index {
            let mut before = *first.get();
            while self.items.at(before).same_hash != index {
                work::count(1);
                before = self.items.at(before).same_hash;
            }
            self.items.at_mut(before).same_hash = next;
        } else if next != NONE {
            *first.get_mut() = next;
        } else {
            first.remove();
            // Rarely, so that the cost per key stays constant.
            if self.by_hash.capacity() > 16 && self.by_hash.len() < self.by_hash.capacity() / 8 {
                self.by_hash.shrink_to(2 * self.by_hash.len());
            }
        }
        self.items.remove_if(index, |_| true).map(|item| (item.key, item.value))
    }

    /// Takes at most `limit` keys and their values out, and appends them to `out`.
    pub(crate) fn take_some(&mut self, limit: usize, out: &mut Vec<(K, V)>) {
        let indices = self.items.last_indices(limit);
        out.extend(indices.into_iter().filter_map(|index| self.remove(index)));
    }

    /// All keys with their hashes and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &K, &V)> {
        self.indices().map(|index| {
            let item = self.items.at(index);
            (item.hash, &item.key, &item.value)
        })
    }

    fn indices(&self) -> impl Iterator<Item = u32> {
        let same_hash =
            |index: &u32| Some(self.items.at(*index).same_hash).filter(|it| *it != NONE);
        self.by_hash.values().flat_map(move |index| std::iter::successors(Some(*index), same_hash))
    }

    /// Checks the invariants of the head of this file. Takes time proportional to the map.
    pub(crate) fn assert_invariants(&self) {
        self.items.assert_invariants();
        let mut len = 0;
        for index in self.indices() {
            let item = self.items.at(index);
            assert_eq!(self.find(item.hash, &item.key), Some(index), "a key has one value");
            len += 1;
        }
        assert_eq!(self.items.len(), len, "every value is found by its key");
    }
}

/// Takes hashes for what they are.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        // Only `u64` is hashed with it.
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_the_same_hash_are_told_apart_in_whatever_order_they_go() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut map = KeyMap::new();
            for key in 0..3 {
                map.insert(7, key, 10 * key);
            }
            for (gone, key) in order.into_iter().enumerate() {
                map.assert_invariants();
                let index = map.find(7, &key).expect("it is there");
                assert_eq!(*map.at(index), 10 * key);
                assert_eq!(map.remove(index), Some((key, 10 * key)));
                assert_eq!((map.find(7, &key), map.len()), (None, 2 - gone));
            }
            map.assert_invariants();
            assert_eq!(map.iter().count(), 0);
        }
    }
}
