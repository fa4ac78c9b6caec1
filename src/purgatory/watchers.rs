//! The watchers: which operations wait for which key. One shard of the map.
//!
//! An operation's entries, one for each of its keys, lie in different shards, and each knows the
//! place of the operation's entry before. So who knows the last one finds them all, and an
//! operation needs no list of its own.
//!
//! Invariants, checked by [`Watchers::assert_invariants`]: every key that is watched has one line
//! of entries and is found by its hash; no other key is.

use crate::purgatory::entries::{Entries, Line, Place, Visit};
use crate::slab::Slab;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Key<K> {
    key: K,
    hash: u64,
    /// Another key with the same hash.
    same_hash: u32,
    line: Line,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Watchers<K, V> {
    shard: u16,
    by_hash: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    keys: Slab<Key<K>, 4>,
    entries: Entries<V>,
    len: usize,
}

impl<K: Eq + Clone, V> Watchers<K, V> {
    pub(crate) fn new(shard: u16) -> Self {
        Watchers {
            shard,
            by_hash: HashMap::default(),
            keys: Slab::new(),
            entries: Entries::new(),
            len: 0,
        }
    }

    /// Entries of all keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries of one key.
    pub(crate) fn len_of(&self, hash: u64, key: &K) -> usize {
        self.find(hash, key).map_or(0, |id| self.keys.at(id).line.len())
    }

    /// Adds an operation to a key's end. `before` is its entry for another key.
    pub(crate) fn push(&mut self, hash: u64, key: &K, operation: V, before: Place) -> Place {
        let id = self.find(hash, key).unwrap_or_else(|| self.add_key(hash, key));
        self.len += 1;
        self.entries.push(&mut self.keys.at_mut(id).line, self.shard, operation, before)
    }

    /// Takes an entry out: its operation, and where the operation's entry before it is. A key
    /// without entries is forgotten.
    pub(crate) fn remove(&mut self, place: Place) -> Option<(V, Place)> {
        let id = self.entries.line_of(place);
        let line = &mut self.keys.at_mut(id).line;
        let removed = self.entries.remove(line, place)?;
        self.len -= 1;
        if line.is_unused() {
            self.forget_key(id);
        }
        Some(removed)
    }

    /// Begins to visit the operations of a key that are watched now: appends some of them to `out`,
    /// without those that are not `wanted`. Whoever gets a visit has to [resume](Self::resume) it.
    pub(crate) fn visit(
        &mut self,
        hash: u64,
        key: &K,
        out: &mut Vec<V>,
        wanted: impl Fn(&V) -> bool,
    ) -> Option<Visit>
    where
        V: Clone,
    {
        let id = self.find(hash, key)?;
        self.entries.visit(&self.keys.at(id).line, out, wanted)
    }

    /// Goes on with a visit: likewise.
    pub(crate) fn resume(
        &mut self,
        visit: Visit,
        out: &mut Vec<V>,
        wanted: impl Fn(&V) -> bool,
    ) -> Option<Visit>
    where
        V: Clone,
    {
        let id = self.entries.line_of_visit(visit);
        let line = &mut self.keys.at_mut(id).line;
        let visit = self.entries.resume(line, visit, out, wanted);
        if line.is_unused() {
            self.forget_key(id);
        }
        visit
    }

    /// The keys that are watched now, with their hashes.
    pub(crate) fn keys(&self) -> Vec<(u64, K)> {
        let keys = self.ids().map(|id| self.keys.at(id));
        keys.map(|key| (key.hash, key.key.clone())).collect()
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        let same_hash = |id: &u32| Some(self.keys.at(*id).same_hash).filter(|id| *id != NONE);
        self.by_hash.values().flat_map(move |id| std::iter::successors(Some(*id), same_hash))
    }

    #[inline]
    fn find(&self, hash: u64, key: &K) -> Option<u32> {
        let mut id = *self.by_hash.get(&hash)?;
        while id != NONE {
            let found = self.keys.at(id);
            if found.key == *key {
                return Some(id);
            }
            id = found.same_hash;
        }
        None
    }

    fn add_key(&mut self, hash: u64, key: &K) -> u32 {
        let same_hash = self.by_hash.get(&hash).copied().unwrap_or(NONE);
        let key = Key { key: key.clone(), hash, same_hash, line: Line::new(NONE) };
        let id = self.keys.insert(key, 0).index;
        self.keys.at_mut(id).line = Line::new(id);
        self.by_hash.insert(hash, id);
        id
    }

    fn forget_key(&mut self, id: u32) {
        let Key { hash, same_hash: next, .. } = *self.keys.at(id);
        let mut before = self.by_hash.get(&hash).copied().unwrap_or(id);
        if before != id {
            while self.keys.at(before).same_hash != id {
                before = self.keys.at(before).same_hash;
            }
            self.keys.at_mut(before).same_hash = next;
        } else if next != NONE {
            self.by_hash.insert(hash, next);
        } else {
            self.by_hash.remove(&hash);
            // Rarely, so that the cost per key stays constant.
            if self.by_hash.capacity() > 16 && self.by_hash.len() < self.by_hash.capacity() / 8 {
                self.by_hash.shrink_to(2 * self.by_hash.len());
            }
        }
        self.keys.release(id);
    }

    /// Checks the invariants of the head of this file. Takes time proportional to the shard.
    pub(crate) fn assert_invariants(&self) {
        let (mut len, mut blocks, mut keys) = (0, 0, 0);
        for id in self.ids() {
            let key = self.keys.at(id);
            assert_eq!(self.find(key.hash, &key.key), Some(id), "a key has one line");
            assert!(!key.line.is_unused(), "a key without entries is forgotten");
            blocks += self.entries.assert_invariants(&key.line);
            len += key.line.len();
            keys += 1;
        }
        let counts = (self.len, self.entries.blocks(), self.keys.len());
        assert_eq!(counts, (len, blocks, keys));
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
