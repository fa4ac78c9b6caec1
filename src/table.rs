//! The table: finds values by the hashes of their keys, which it does not hold itself.
//!
//! A value moves when the table grows. So a user that has to find it again keeps its hash, and
//! something that distinguishes it from the others; or keeps it elsewhere, and only its index here.
//! The [hash](spread) of a key is computed once. Its upper half decides to which shard the key
//! belongs; the lower half is stored, which is enough to tell nearly all keys apart.

use hashbrown::HashTable;
use std::hash::{BuildHasher, Hash};

/// Spreads the entropy that a simple hasher leaves in the low bits over all of them. (Fibonacci
/// hashing: Knuth, "The Art of Computer Programming", vol. 3, 6.4.)
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes a key for a table.
#[inline]
pub(crate) fn spread<Q: Hash + ?Sized>(hasher: &impl BuildHasher, key: &Q) -> u64 {
    mix(hasher.hash_one(key))
}

#[inline]
fn mix(hash: u64) -> u64 {
    let hash = hash.wrapping_mul(SPREAD);
    hash ^ (hash >> 32)
}

/// Returns which of so many shards, a power of two, a key with this hash belongs to.
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

/// A table of values, each with the hash of its key; see the [module](self).
#[derive(Default)]
pub(crate) struct KeyTable<V>(pub(crate) HashTable<(u32, V)>);

/// Returns a hash in the form that the table needs, which uses the highest and the lowest bits.
#[inline]
fn long(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(SPREAD)
}

impl<V> KeyTable<V> {
    /// Returns the value with this hash that `is_meant`.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_meant: impl Fn(&V) -> bool) -> Option<&V> {
        let found = self.0.find(long(hash), |(other, value)| *other == hash && is_meant(value));
        found.map(|(_, value)| value)
    }

    /// Returns the value with this hash that `is_meant`.
    pub(crate) fn find_mut(&mut self, hash: u32, is_meant: impl Fn(&V) -> bool) -> Option<&mut V> {
        let found = self.0.find_mut(long(hash), |(other, value)| *other == hash && is_meant(value));
        found.map(|(_, value)| value)
    }

    /// Returns the value with this hash that `is_meant`, made by `make` if there is none.
    #[inline]
    pub(crate) fn find_or_insert(
        &mut self,
        hash: u32,
        is_meant: impl Fn(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        let is_it = |(other, value): &(u32, V)| *other == hash && is_meant(value);
        let entry = self.0.entry(long(hash), is_it, |(other, _)| long(*other));
        &mut entry.or_insert_with(|| (hash, make())).into_mut().1
    }

    /// Adds a value whose key is not there.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u32, value: V) {
        self.0.insert_unique(long(hash), (hash, value), |(other, _)| long(*other));
    }

    /// Gives back the memory that the values do not need.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.0.shrink_to_fit(|(hash, _)| long(*hash));
    }

    /// Takes out the value with this hash that `is_meant`.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u32, is_meant: impl Fn(&V) -> bool) -> Option<V> {
        let is_it = |(other, value): &(u32, V)| *other == hash && is_meant(value);
        let ((_, value), _) = self.0.find_entry(long(hash), is_it).ok()?.remove();
        // Rarely, so that the cost per key stays constant.
        // mutants: when it shrinks. What is no smaller afterwards was only looked at.
        if self.0.capacity() > 16 && self.0.len() < self.0.capacity() / 8 {
            // mutants(+): it grows again at the cost of one copy.
            self.0.shrink_to(2 * self.0.len(), |(other, _)| long(*other));
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_that_differ_in_some_bits_only_are_spread_all_the_same() {
        for shift in [0, 8, 16, 24, 32, 40] {
            let hashes: Vec<_> = (0..1_000).map(|number| mix(number << shift)).collect();
            let short: HashSet<_> = hashes.iter().map(|&hash| hash as u32).collect();
            let shards: HashSet<_> = hashes.iter().map(|&hash| shard_of(hash, 64)).collect();
            assert_eq!((short.len(), shards.len()), (hashes.len(), 64), "{shift}");
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
}
