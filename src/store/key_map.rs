//! The key map: values by key, each at a place of its own that never moves.
//!
//! It is one shard of a map. Its user computes the [hash](spread) of a key once, picks the shard
//! with it, and finds the key in the shard with it. A value that was found is then identified by
//! its index, or permanently by its [`Key`].
//!
//! Invariants, checked by `KeyMap::assert_invariants`: every value is found by its key, and each
//! key has one value.

use crate::store::key_index::KeyIndex;
use crate::store::key_table::ShortHash;
use crate::store::slab::Key;
use crate::store::slab::Slab;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

/// Hashes a key for a [`KeyMap`]: the entropy that a simple hasher leaves in the low bits is spread
/// over all of them. (Fibonacci hashing: Knuth, "The Art of Computer Programming", vol. 3, 6.4.)
#[inline]
pub(crate) fn spread<Q: Hash + ?Sized>(hasher: &impl BuildHasher, key: &Q) -> u64 {
    let hash = hasher.hash_one(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ (hash >> 32)
}

/// Returns which of so many shards, a power of two, a key with this hash belongs to. Does not look
/// at the lower half of the bits, which the shard's own index uses.
#[inline]
pub(crate) fn shard_of(hash: u64, shards: usize) -> usize {
    (hash >> 40) as usize & (shards - 1)
}

/// Returns how many shards to use for the keys of so many threads: enough that two threads seldom
/// want the same shard, and not more, because each shard has its own wheels. In models there are
/// few, because each lock is a step of the schedule.
pub(crate) fn shards_for(threads: usize) -> usize {
    let each = if cfg!(tickwheel_model) { 2 } else { 8 };
    (each * threads).next_power_of_two().min(1 << 12)
}

/// A map from keys to values at fixed places; see the [module](self).
#[derive(Debug)]
pub(crate) struct KeyMap<K, V> {
    index: KeyIndex,
    items: Slab<Item<K, V>>,
}

#[derive(Debug)]
struct Item<K, V> {
    key: K,
    hash: ShortHash,
    value: V,
}

impl<K: Eq, V> KeyMap<K, V> {
    pub(crate) fn new() -> Self {
        KeyMap { index: KeyIndex::new(), items: Slab::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the index of a key's value.
    #[inline]
    pub(crate) fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let is_meant = |index| self.items.at(index).key.borrow() == key;
        self.index.find(ShortHash::of(hash), is_meant)
    }

    /// Returns the value at `index`; there must be one.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &V {
        &self.items.at(index).value
    }

    /// Returns the value at `index`; there must be one.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        &mut self.items.at_mut(index).value
    }

    /// Returns the index of the value with this name, if it is still present.
    pub(crate) fn find_named(&self, name: Key) -> Option<u32> {
        self.items.get(name).map(|_| name.index)
    }

    /// Adds a value to a key that has none, and returns its name.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: V) -> Key {
        let hash = ShortHash::of(hash);
        let name = self.items.insert(Item { key, hash, value }, 0);
        self.index.insert(hash, name.index);
        name
    }

    /// Takes a key and its value out; there must be one at `index`.
    pub(crate) fn remove(&mut self, index: u32) -> Option<(K, V)> {
        let item = self.items.remove_if(index, |_| true)?;
        self.index.remove(item.hash, index);
        Some((item.key, item.value))
    }

    /// Takes at most `limit` keys and their values out, and appends them to `out`.
    pub(crate) fn take_some(&mut self, limit: usize, out: &mut Vec<(K, V)>) {
        let indices = self.items.last_indices(None, limit);
        out.extend(indices.into_iter().filter_map(|index| self.remove(index)));
    }

    /// Returns all values.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.index.iter().map(|index| self.at(index))
    }

    /// Checks the invariants that the module states. Takes time proportional to the map.
    #[cfg(test)]
    pub(crate) fn assert_invariants(&self) {
        self.items.assert_invariants();
        for (name, item) in self.items.iter() {
            let is_meant = |index| self.items.at(index).key == item.key;
            assert_eq!(self.index.find(item.hash, is_meant), Some(name.index), "found by its key");
        }
        assert_eq!(self.index.len(), self.items.len(), "each key has one value");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasherDefault, Hasher};

    /// Hashes a number to itself, as hashers for numbers do.
    #[derive(Default)]
    struct Same(u64);

    impl Hasher for Same {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, _: &[u8]) {
            unreachable!("only numbers are hashed");
        }

        fn write_u64(&mut self, number: u64) {
            self.0 = number;
        }
    }

    #[test]
    fn keys_that_differ_in_some_bits_only_are_spread_all_the_same() {
        let hasher = BuildHasherDefault::<Same>::default();
        for shift in [0, 8, 16, 24, 32, 40] {
            let hashes = (0..1_000_u64).map(|number| spread(&hasher, &(number << shift)));
            let hashes: Vec<_> = hashes.collect();
            let short: HashSet<_> = hashes.iter().map(|&hash| hash as u32).collect();
            assert_eq!(short.len(), hashes.len(), "a shard tells them apart; {shift}");
            let shards: HashSet<_> = hashes.iter().map(|&hash| shard_of(hash, 64)).collect();
            assert_eq!(shards.len(), 64, "all shards have some; {shift}");
        }
    }

    #[test]
    fn each_bit_of_a_hash_is_set_in_about_half_of_the_keys() {
        let hasher = BuildHasherDefault::<Same>::default();
        let hashes: Vec<_> = (0..1 << 16).map(|number: u64| spread(&hasher, &number)).collect();
        for bit in 0..64 {
            let set = hashes.iter().filter(|&&hash| hash >> bit & 1 == 1).count();
            assert!((27_000..38_500).contains(&set), "bit {bit}: {set} of 65,536");
        }
    }

    #[test]
    #[cfg(not(tickwheel_model))]
    fn there_are_eight_shards_for_each_thread_at_least_as_far_as_there_may_be() {
        for threads in [1, 2, 3, 4, 16, 511, 512, 513, 100_000] {
            let shards = shards_for(threads);
            assert!(shards.is_power_of_two() && shards <= 4096, "{shards} for {threads}");
            assert!(shards >= (8 * threads).min(4096), "{shards} for {threads}");
        }
    }

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
                assert_eq!((map.find(7, &key), map.values().count()), (None, 2 - gone));
            }
            map.assert_invariants();
        }
    }
}
