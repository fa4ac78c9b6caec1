//! The bucket queue: which bucket of a shard has to be flushed next, and when.
//!
//! A binary heap of bucket expirations. It contains each armed bucket once, holds no entries and
//! knows no wheel. The delay queue that all shards share is of the same kind: there, an expiration
//! stands for its whole shard, whose first it is. Work leaves it in three kinds:
//!
//! - a bucket of level 0, whose entries fall due at its tick;
//! - a bucket of an overflow wheel, which expires early and then waits in the backlog to be
//!   cascaded in slices. Buckets of level 0 overtake it, but never one whose tick lies at or after
//!   the backlog's first tick. So timers leave in the order of their ticks, even after the clock
//!   has leapt over many buckets;
//! - a shard's *elapsed* bucket: entries whose time had passed when they were added or last moved.
//!   A turn takes the entries that were there when it began, so a task that adds another one for
//!   now does not keep the turn from ending.

use crate::wheel::bucket::BucketId;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// The level that means a shard's bucket of elapsed entries.
pub(crate) const ELAPSED: u8 = u8::MAX;

/// A bucket, and when it has to be flushed. Ordered by that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Expiration {
    /// The first tick at which the bucket may be flushed.
    pub(crate) tick: u64,
    /// The first tick of the bucket's entries: by then an overflow bucket must be cascaded.
    pub(crate) start: u64,
    pub(crate) bucket: BucketId,
    pub(crate) shard: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct BucketQueue {
    heap: BinaryHeap<Reverse<Expiration>>,
    /// Overflow buckets that have expired and are not cascaded yet, by their start.
    backlog: BinaryHeap<Reverse<(u64, Expiration)>>,
    /// Elapsed buckets for the next turn.
    elapsed: Vec<Expiration>,
}

/// How few buckets a heap has when it gives its memory back: they are moved under one hold of the
/// queue's lock.
const FEW: usize = 128;

/// Takes the first one off a heap.
fn pop<T: Ord>(heap: &mut BinaryHeap<T>) -> Option<T> {
    let first = heap.pop();
    if heap.len() <= FEW && heap.capacity() > 16 * FEW {
        heap.shrink_to(2 * FEW);
    }
    first
}

impl BucketQueue {
    /// Adds a bucket that was not armed.
    pub(crate) fn offer(&mut self, expiration: Expiration) {
        if expiration.bucket.level == ELAPSED {
            self.elapsed.push(expiration);
        } else {
            self.heap.push(Reverse(expiration));
        }
    }

    /// Puts back a bucket that was polled and is not empty yet.
    pub(crate) fn resume(&mut self, expiration: Expiration) {
        // mutants(>): it reaches the backlog through the heap as well, as soon as anybody looks.
        if expiration.tick < expiration.start {
            self.backlog.push(Reverse((expiration.start, expiration)));
        } else {
            self.heap.push(Reverse(expiration));
        }
    }

    /// Lets this turn have the elapsed buckets that are present now.
    pub(crate) fn begin_turn(&mut self) {
        self.heap.extend(self.elapsed.drain(..).map(Reverse));
    }

    /// Takes out the bucket to flush next: due at `turn_start` if nothing waits in the backlog,
    /// otherwise at `now`, which is not before `turn_start`.
    pub(crate) fn poll(&mut self, turn_start: u64, now: u64) -> Option<Expiration> {
        let due = self.peek_due(turn_start, now)?;
        self.take(due);
        Some(due)
    }

    /// Returns the bucket to flush next, and moves it to the front of the heap or the backlog.
    pub(crate) fn peek_due(&mut self, turn_start: u64, now: u64) -> Option<Expiration> {
        loop {
            let first = self.backlog.peek().map(|Reverse((_, expiration))| *expiration);
            let cascade_by = first.map(|first| first.start);
            // What has expired since the turn began is left to the next one, which begins at once.
            let first = first.filter(|first| first.tick <= turn_start);
            let limit = if first.is_some() { now } else { turn_start };
            match self.heap.peek() {
                Some(&Reverse(top))
                    if top.tick <= limit && cascade_by.is_none_or(|by| top.tick < by) =>
                {
                    if top.tick == top.start {
                        return Some(top);
                    }
                    pop(&mut self.heap);
                    self.backlog.push(Reverse((top.start, top)));
                }
                _ => return first,
            }
        }
    }

    /// Returns what stands for all buckets that wait or are due, in the queue of the shards: its
    /// tick is when there is something to do, and none of its timers is due before its start.
    pub(crate) fn next(&self) -> Option<Expiration> {
        let top = self.heap.peek().map(|Reverse(top)| *top);
        let next = match self.backlog.peek() {
            // A bucket behind it may start before it does.
            None => top.map(|top| Expiration { start: top.start.min(top.tick + 1), ..top })?,
            Some(&Reverse((start, first))) => {
                let start = top.map_or(start, |top| start.min(top.tick.max(first.tick + 1)));
                Expiration { start, ..first }
            }
        };
        Some(Expiration { bucket: BucketId { level: 0, slot: 0 }, ..next })
    }

    /// Returns whether elapsed buckets wait for the next turn.
    pub(crate) fn has_elapsed(&self) -> bool {
        !self.elapsed.is_empty()
    }

    /// Returns the first tick at which there is something to do; `None` if nothing is queued.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        if self.elapsed.is_empty() && self.backlog.is_empty() {
            self.heap.peek().map(|Reverse(top)| top.tick)
        } else {
            Some(0)
        }
    }

    /// Returns whether there is something to do at `now`.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.next_tick().is_some_and(|tick| tick <= now)
    }

    /// Returns the bucket that comes first, whether it is due or not.
    pub(crate) fn first(&self) -> Option<Expiration> {
        let backlog = || self.backlog.peek().map(|Reverse((_, expiration))| *expiration);
        let heap = || self.heap.peek().map(|Reverse(top)| *top);
        self.elapsed.first().copied().or_else(backlog).or_else(heap)
    }

    /// Takes a bucket out, if it is the first in the heap or the backlog, or an elapsed bucket.
    /// Returns whether it did. Never looks at all buckets.
    pub(crate) fn take(&mut self, expiration: Expiration) -> bool {
        if self.heap.peek() == Some(&Reverse(expiration)) {
            return pop(&mut self.heap).is_some();
        }
        if self.backlog.peek() == Some(&Reverse((expiration.start, expiration))) {
            return pop(&mut self.backlog).is_some();
        }
        let elapsed = self.elapsed.iter().position(|elapsed| *elapsed == expiration);
        elapsed.map(|at| self.elapsed.swap_remove(at)).is_some()
    }

    /// Takes out all buckets for which `is_gone` returns true. Looks at every one.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(&Expiration) -> bool) {
        self.heap.retain(|Reverse(expiration)| !is_gone(expiration));
        self.heap.shrink_to(2 * self.heap.len());
        self.backlog.retain(|Reverse((_, expiration))| !is_gone(expiration));
        self.elapsed.retain(|expiration| !is_gone(expiration));
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len() + self.backlog.len() + self.elapsed.len()
    }

    /// Returns every bucket that is queued, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Expiration> {
        let heap = self.heap.iter().map(|Reverse(expiration)| expiration);
        let backlog = self.backlog.iter().map(|Reverse((_, expiration))| expiration);
        heap.chain(backlog).chain(&self.elapsed)
    }
}
