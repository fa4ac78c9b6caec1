//! The watchers: which operations wait for which key. One shard of the map.
//!
//! An operation's entries, one for each of its keys, lie in different shards. Its record knows all
//! their places.
//!
//! Invariants, checked by [`Watchers::assert_invariants`]: every key that is watched has one line
//! of entries and is found by its hash; no other key is.

use crate::purgatory::entries::{Begin, Entries, Visit, WaitQueue};
use crate::purgatory::place::{Id, Place};
use crate::store::key_map::KeyMap;
use std::borrow::Borrow;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Watchers<K> {
    shard: u16,
    lines: KeyMap<K, WaitQueue>,
    entries: Entries,
    len: usize,
}

impl<K: Eq + Clone> Watchers<K> {
    pub(crate) fn new(shard: u16) -> Self {
        Watchers { shard, lines: KeyMap::new(), entries: Entries::new(), len: 0 }
    }

    /// Entries of all keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries of one key.
    pub(crate) fn len_of<Q>(&self, hash: u64, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.lines.find(hash, key).map_or(0, |id| self.lines.at(id).len())
    }

    /// Adds an operation to a key's end.
    #[inline]
    pub(crate) fn push(&mut self, hash: u64, key: &K, operation: Id) -> Place {
        let id = self.lines.find(hash, key).unwrap_or_else(|| self.begin_line(hash, key));
        self.len += 1;
        self.entries.push(self.lines.at_mut(id), id, self.shard, operation)
    }

    #[inline(never)]
    fn begin_line(&mut self, hash: u64, key: &K) -> u32 {
        self.lines.insert(hash, key.clone(), WaitQueue::new()).index
    }

    /// Takes an entry out. A key without entries is forgotten.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        let (id, is_last) = self.entries.clear(place);
        let line = self.lines.at_mut(id);
        line.leave();
        self.len -= 1;
        if is_last {
            self.entries.forget_block(line, place.block);
            self.forget_line_if_unused(id);
        }
    }

    /// Begins to visit the operations of a key that are watched now: see [`Entries::visit`].
    /// Whoever gets a visit has to [resume](Self::resume) it.
    pub(crate) fn visit<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        begin: Begin,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let id = self.lines.find(hash, key)?;
        self.entries.visit(self.lines.at_mut(id), begin, room, out)
    }

    /// Goes on with a visit, or ends it: see [`Entries::resume`].
    pub(crate) fn resume(&mut self, visit: Visit, room: usize, out: &mut Vec<Id>) -> Option<Visit> {
        let id = self.entries.line_of_visit(visit);
        let visit = self.entries.resume(self.lines.at_mut(id), visit, room, out);
        self.forget_line_if_unused(id);
        visit
    }

    #[inline(never)]
    fn forget_line_if_unused(&mut self, id: u32) {
        if self.lines.at(id).is_unused() {
            drop(self.lines.remove(id));
        }
    }

    /// Checks the invariants of the head of this file. Takes time proportional to the shard.
    pub(crate) fn assert_invariants(&self) {
        self.lines.assert_invariants();
        let (mut len, mut blocks) = (0, 0);
        for line in self.lines.values() {
            assert!(!line.is_unused(), "a key without entries is forgotten");
            blocks += self.entries.assert_invariants(line);
            len += line.len();
        }
        assert_eq!((self.len, self.entries.blocks()), (len, blocks));
    }
}
