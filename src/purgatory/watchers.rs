//! The watchers: which operations wait for which key. One shard of the map.
//!
//! An operation's entries, one for each of its keys, lie in different shards, and each knows the
//! place of the operation's entry before. So who knows the last one finds them all, and an
//! operation needs no list of its own.
//!
//! Invariants, checked by [`Watchers::assert_invariants`]: every key that is watched has one line
//! of entries and is found by its hash; no other key is.

use crate::key_map::KeyMap;
use crate::purgatory::entries::{Entries, Line, Place, Visit};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Watchers<K, V> {
    shard: u16,
    lines: KeyMap<K, Line>,
    entries: Entries<V>,
    len: usize,
}

impl<K: Eq + Clone, V: Clone> Watchers<K, V> {
    pub(crate) fn new(shard: u16) -> Self {
        Watchers { shard, lines: KeyMap::new(), entries: Entries::new(), len: 0 }
    }

    /// Entries of all keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries of one key.
    pub(crate) fn len_of(&self, hash: u64, key: &K) -> usize {
        self.lines.find(hash, key).map_or(0, |id| self.lines.at(id).len())
    }

    /// Adds an operation to a key's end. `before` is its entry for another key.
    pub(crate) fn push(&mut self, hash: u64, key: &K, operation: V, before: Place) -> Place {
        let id = self.lines.find(hash, key).unwrap_or_else(|| {
            let id = self.lines.insert(hash, key.clone(), Line::new()).index;
            self.lines.at_mut(id).set_id(id);
            id
        });
        self.len += 1;
        self.entries.push(self.lines.at_mut(id), self.shard, operation, before)
    }

    /// Takes an entry out: its operation, and where the operation's entry before it is. A key
    /// without entries is forgotten.
    pub(crate) fn remove(&mut self, place: Place) -> Option<(V, Place)> {
        let id = self.entries.line_of(place);
        let removed = self.entries.remove(self.lines.at_mut(id), place)?;
        self.len -= 1;
        self.forget_line_if_unused(id);
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
    ) -> Option<Visit> {
        let id = self.lines.find(hash, key)?;
        self.entries.visit(self.lines.at(id), out, wanted)
    }

    /// Goes on with a visit: likewise.
    pub(crate) fn resume(
        &mut self,
        visit: Visit,
        out: &mut Vec<V>,
        wanted: impl Fn(&V) -> bool,
    ) -> Option<Visit> {
        let id = self.entries.line_of_visit(visit);
        let visit = self.entries.resume(self.lines.at_mut(id), visit, out, wanted);
        self.forget_line_if_unused(id);
        visit
    }

    /// The keys that are watched now, with their hashes.
    pub(crate) fn keys(&self) -> Vec<(u64, K)> {
        self.lines.iter().map(|(hash, key, _)| (hash, key.clone())).collect()
    }

    fn forget_line_if_unused(&mut self, id: u32) {
        if self.lines.at(id).is_unused() {
            drop(self.lines.remove(id));
        }
    }

    /// Checks the invariants of the head of this file. Takes time proportional to the shard.
    pub(crate) fn assert_invariants(&self) {
        self.lines.assert_invariants();
        let (mut len, mut blocks) = (0, 0);
        for (_, _, line) in self.lines.iter() {
            assert!(!line.is_unused(), "a key without entries is forgotten");
            blocks += self.entries.assert_invariants(line);
            len += line.len();
        }
        assert_eq!((self.len, self.entries.blocks()), (len, blocks));
    }
}
