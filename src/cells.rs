//! The cells of a timer: which of them a thread adds to, and what they hold together.

use crate::cell::Cell;
use crate::common::Common;
use crate::delay_queue::Expiration;
use crate::gate::Gate;
use crate::pool;
use crate::stats::{LevelSnapshot, Stats};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::thread_number;
use crossbeam_utils::CachePadded;
use std::collections::HashMap;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Cells<T: Send + 'static> {
    /// Their number is a power of two.
    cells: Box<[&'static Cell<T>]>,
    /// Which cell of its pair a thread adds to, 0 or 1: see [`Cells::home`].
    active: Box<[CachePadded<AtomicUsize>]>,
}

impl<T: Send + 'static> Cells<T> {
    /// Of these, whose number is a power of two.
    pub(crate) fn new(cells: Box<[&'static Cell<T>]>) -> Self {
        let pairs = cells.len().div_ceil(2);
        let active = (0..pairs).map(|_| CachePadded::new(AtomicUsize::new(0))).collect();
        Cells { cells, active }
    }

    /// The cell that the calling thread adds to.
    ///
    /// Each thread has a pair of cells to itself, as far as there are enough, and adds to one of
    /// them. When other threads come there often, because they cancel what this one adds, it goes
    /// to the other one of the pair, and leaves them the first with the timers that they know. So
    /// neither meets the other's lock, nor the cache lines behind it.
    #[inline]
    pub(crate) fn home(&self) -> &'static Cell<T> {
        let pair = self.pair();
        // Relaxed: either cell is right.
        let cell = 2 * pair + self.active[pair].load(Ordering::Relaxed);
        self.cells[cell & (self.cells.len() - 1)]
    }

    /// Lets the calling thread's pair change over to its other cell.
    pub(crate) fn leave_crowd(&self) {
        self.active[self.pair()].fetch_xor(1, Ordering::Relaxed);
    }

    #[inline]
    fn pair(&self) -> usize {
        thread_number() as usize & (self.active.len() - 1)
    }

    /// The cell of a shard.
    #[inline]
    pub(crate) fn of(&self, shard: u32) -> &'static Cell<T> {
        self.cells[shard as usize]
    }

    pub(crate) fn count(&self) -> usize {
        self.cells.len()
    }

    /// How many timers are pending.
    pub(crate) fn len(&self) -> usize {
        self.cells.iter().map(|cell| cell.lock().shard.len()).sum()
    }

    pub(crate) fn add_to(&self, stats: &mut Stats) {
        for cell in &self.cells {
            let state = cell.lock();
            stats.absorb(&state.shard.counters, state.shard.len());
        }
    }

    /// How the levels of all shards stand at `now`. Lets go of each lock after some buckets.
    pub(crate) fn levels(&self, now: u64) -> Vec<LevelSnapshot> {
        let mut levels = Vec::new();
        for cell in &self.cells {
            let mut cursor = 0;
            while cell.lock().shard.snapshot(&mut cursor, now, &mut levels) {}
        }
        levels
    }

    /// Closes all cells, and hands what was pending to `out`, with its deadline.
    pub(crate) fn drain(&self, common: &Common, mut out: impl FnMut(u64, T)) {
        self.cells.iter().for_each(|cell| cell.drain(common, &mut out));
    }

    /// Checks every cell, and that the delay queue has each armed bucket once.
    pub(crate) fn assert_invariants(&self, gate: &Gate) {
        let mut queued = HashMap::new();
        gate.for_each(|it: &Expiration| *queued.entry((it.shard, it.bucket)).or_insert(0) += 1);
        for cell in &self.cells {
            cell.assert_invariants(|shard, id| queued.get(&(shard, id)).copied().unwrap_or(0));
        }
    }
}

impl<T: Send + 'static> Drop for Cells<T> {
    /// Nothing is pending: whoever drops the timer has drained it.
    fn drop(&mut self) {
        self.cells.iter().for_each(|cell| pool::put(cell));
    }
}
