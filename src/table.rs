//! The table: finds values by the hashes of their keys, which the table does not hold.
//!
//! A value moves when the table grows, so its user keeps the hash to find it again. A key is
//! [hashed](spread) once. The hash's upper half selects the shard. The lower half is stored, which
//! tells nearly all keys apart.

use hashbrown::HashTable;
use std::hash::{BuildHasher, Hash};

/// Spreads the entropy of a simple hasher's low bits over all bits. (Fibonacci hashing: Knuth, "The
/// Art of Computer Programming", vol. 3, 6.4.)
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

/// Returns the shard of a hash; `shards` is a power of two.
#[inline]
pub(crate) fn shard_of(hash: u64, shards: usize) -> usize {
    (hash >> 40) as usize & (shards - 1)
}

/// Returns how many shards to use, at least `each` for a thread: enough that two threads seldom
/// want the same shard. Few otherwise: each shard has its own wheels, and in models each lock is a
/// step of the schedule.
pub(crate) fn shards_for(threads: usize, each: usize) -> usize {
    let each = if cfg!(tickwheel_model) { 2 } else { each };
    (each * threads).next_power_of_two().min(1 << 12)
}

/// A table of values, each with the hash of its key; see the [module](self).
#[derive(Default)]
pub(crate) struct KeyTable<V>(pub(crate) HashTable<(u32, V)>);

/// Returns a hash in the table's form, which uses the highest and the lowest bits.
#[inline]
fn long(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(SPREAD)
}

impl<V> KeyTable<V> {
    /// Returns the value with this hash for which `is_meant` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_meant: impl Fn(&V) -> bool) -> Option<&V> {
        let found = self.0.find(long(hash), |(other, value)| {
            *other == hash && is_meant(value)
        });
        found.map(|(_, value)| value)
    }

    pub(crate) fn find_mut(&mut self, hash: u32, is_meant: impl Fn(&V) -> bool) -> Option<&mut V> {
        let found = self.0.find_mut(long(hash), |(other, value)| {
            *other == hash && is_meant(value)
        });
        found.map(|(_, value)| value)
    }

    /// Returns the value with this hash for which `is_meant` holds; `make` makes a missing value.
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
        self.0
            .insert_unique(long(hash), (hash, value), |(other, _)| long(*other));
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.0.shrink_to_fit(|(hash, _)| long(*hash));
    }

    /// Removes the value with this hash for which `is_meant` holds.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u32, is_meant: impl Fn(&V) -> bool) -> Option<V> {
        let is_it = |(other, value): &(u32, V)| *other == hash && is_meant(value);
        let ((_, value), _) = self.0.find_entry(long(hash), is_it).ok()?.remove();
        // Rarely, so that the cost per key stays constant.
        // mutants: when it shrinks. What is no smaller afterwards was only looked at.
        if self.0.capacity() > 16 && self.0.len() < self.0.capacity() / 8 {
            // mutants(+ /): it grows again at the cost of one copy.
            self.0
                .shrink_to(2 * self.0.len(), |(other, _)| long(*other));
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
    fn there_are_as_many_shards_for_each_thread_at_least_as_far_as_there_may_be() {
        for threads in [1, 2, 3, 4, 16, 511, 512, 513, 100_000] {
            let shards = shards_for(threads, 8);
            assert!(
                shards.is_power_of_two() && shards <= 4096,
                "{shards} for {threads}"
            );
            assert!(shards >= (8 * threads).min(4096), "{shards} for {threads}");
        }
    }
}
