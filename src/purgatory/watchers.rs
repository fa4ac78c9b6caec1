//! The watchers: which operations wait for which key, in one shard.
//!
//! The entries of an operation, one for each of its keys, are in different shards. Its record
//! contains all their spots.
//!
//! Invariants, checked by [`Watchers::assert_invariants`]: every watched key has one queue of
//! entries and is found by its hash; no other key is present.

use crate::purgatory::wait_queue::{Entries, Id, QueueName, Spot, Visit, WaitQueue};
use crate::store::table::{KeyTable, ShortHash};
use std::borrow::Borrow;

/// One shard of the map from keys to the operations that wait for them; see the [module](self).
#[derive(Debug)]
pub(crate) struct Watchers<K> {
    pub(crate) shard: u16,
    keys: KeyTable<WaitQueue<K>>,
    /// The number of the last queue. It wraps around after 2^32: a queue could only be mistaken for
    /// another one with the same hash that is still present by then.
    number: u32,
    entries: Entries,
    /// The number of entries of all keys.
    pub(crate) len: usize,
}

impl<K> Default for Watchers<K> {
    fn default() -> Self {
        let (keys, entries) = (KeyTable::default(), Entries::new());
        Watchers { shard: 0, keys, number: 0, entries, len: 0 }
    }
}

impl<K: Eq + Clone> Watchers<K> {
    /// Adds an operation at the end of a key's queue.
    #[inline]
    pub(crate) fn push(&mut self, hash: u64, key: &K, operation: Id) -> Spot {
        let hash = ShortHash::of(hash);
        let number = &mut self.number;
        let queue = self.keys.find_or_insert(
            hash,
            |queue| queue.key == *key,
            || {
                *number = number.wrapping_add(1);
                WaitQueue::new(*number, key.clone())
            },
        );
        self.len += 1;
        self.entries.push((hash, queue), self.shard, operation)
    }

    /// Takes an entry out. Removes a key that has no entries left.
    #[inline]
    pub(crate) fn remove(&mut self, spot: Spot) {
        self.len -= 1;
        if let Some(name) = self.entries.remove(spot) {
            self.forget_block(name, spot.block);
        }
    }

    #[inline(never)]
    fn forget_block(&mut self, name: QueueName, block: u32) {
        let queue = self.keys.find_mut(name.hash, |queue| queue.number == name.number);
        debug_assert!(queue.is_some(), "an entry without its key");
        let Some(queue) = queue else { return };
        self.entries.forget_block(queue, block);
        if queue.is_empty() {
            drop(self.keys.remove(name.hash, |queue| queue.number == name.number));
        }
    }

    /// Returns the name of a key's queue, if it has one.
    pub(crate) fn name_of<Q>(&self, hash: u64, key: &Q) -> Option<QueueName>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let hash = ShortHash::of(hash);
        let queue = self.keys.find(hash, |queue| queue.key.borrow() == key)?;
        Some(QueueName { hash, number: queue.number })
    }

    /// Begins to visit the operations of a queue that are watched now; see [`Entries::visit`].
    pub(crate) fn visit(
        &self,
        hash: ShortHash,
        is_meant: impl Fn(&WaitQueue<K>) -> bool,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit> {
        let queue = self.keys.find(hash, is_meant)?;
        self.entries.visit((hash, queue), room, out)
    }

    /// Continues a visit, unless all operations of the queue have ended.
    pub(crate) fn resume(&self, visit: Visit, room: usize, out: &mut Vec<Id>) -> Option<Visit> {
        let name = visit.queue;
        let queue = self.keys.find(name.hash, |queue| queue.number == name.number)?;
        self.entries.resume(queue, visit, room, out)
    }

    /// Checks the invariants that the module states. Takes time proportional to the shard.
    pub(crate) fn assert_invariants(&self) {
        let (mut len, mut blocks) = (0, 0);
        for watched @ (hash, queue) in self.keys.iter() {
            assert!(!queue.is_empty(), "a key without entries is forgotten");
            let found = self.keys.find(*hash, |other| other.key == queue.key);
            assert!(found.is_some_and(|found| std::ptr::eq(found, queue)), "found by its key");
            let (blocks_here, len_here) = self.entries.assert_invariants(watched);
            blocks += blocks_here;
            len += len_here;
        }
        assert_eq!((self.len, self.entries.blocks()), (len, blocks));
    }
}

/// The spots of an operation's entries, in the order of its keys.
#[derive(Debug)]
pub(crate) enum Spots {
    Few([Spot; FEW]),
    Many(Box<[Spot]>),
}

/// The number of spots that need no memory of their own.
const FEW: usize = 3;

impl Spots {
    pub(crate) const NONE: Spots = Spots::Few([Spot::NONE; FEW]);

    /// Makes room for the spots of one entry for each of so many keys.
    pub(crate) fn of(keys: usize) -> Self {
        if keys <= FEW { Spots::NONE } else { Spots::Many(vec![Spot::NONE; keys].into()) }
    }

    /// Sets the spot of the entry for a key.
    pub(crate) fn set(&mut self, number: usize, spot: Spot) {
        match self {
            Spots::Few(spots) => spots[number] = spot,
            Spots::Many(spots) => spots[number] = spot,
        }
    }

    /// Returns the spot of the first key's entry, if it has been made.
    #[inline]
    pub(crate) fn first(&self) -> Option<Spot> {
        self.as_slice().first().copied().filter(|spot| spot.is_made())
    }

    /// Returns the spots of the other keys' entries, as far as they have been made.
    #[inline]
    pub(crate) fn others(&self) -> impl Iterator<Item = Spot> {
        self.as_slice().iter().skip(1).copied().take_while(|spot| spot.is_made())
    }

    #[inline]
    fn as_slice(&self) -> &[Spot] {
        match self {
            Spots::Few(spots) => spots,
            Spots::Many(spots) => spots,
        }
    }
}

impl Default for Spots {
    fn default() -> Self {
        Spots::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spots_of_three_entries_take_24_bytes() {
        assert_eq!(size_of::<Spots>(), 24);
    }
}
