//! The delay queue: which bucket is to be flushed next, and when.
//!
//! A binary heap of bucket expirations, shared by all shards, each armed bucket in it once. It
//! holds no entries and knows no wheel. Work leaves it in three kinds:
//!
//! - a bucket of level 0, whose entries fall due at its tick;
//! - a bucket of an overflow wheel, which expires early and then waits in the backlog to be
//!   cascaded slice by slice. Buckets of level 0 overtake it, but never one whose tick lies at or
//!   after the backlog's first: so timers leave in the order of their ticks, also after a leap of
//!   the clock over many buckets;
//! - a shard's *elapsed* bucket: entries whose time had passed when they were added. A turn takes
//!   those that were there when it began, so a task that adds another one for now does not keep the
//!   turn from ending.

use crate::bucket::BucketId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The level that stands for a shard's bucket of elapsed entries.
pub(crate) const ELAPSED: u8 = u8::MAX;

/// A bucket, and when it is to be flushed. Ordered by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Expiration {
    /// From which tick on the bucket is to be flushed.
    pub(crate) tick: u64,
    /// The first tick of the bucket's entries: by then an overflow bucket must be cascaded.
    pub(crate) start: u64,
    pub(crate) bucket: BucketId,
    pub(crate) shard: u32,
}

#[derive(Debug, Default)]
pub(crate) struct DelayQueue {
    heap: BinaryHeap<Reverse<Expiration>>,
    /// Overflow buckets that have expired and are not cascaded yet, by their start.
    backlog: BinaryHeap<Reverse<(u64, Expiration)>>,
    /// Elapsed buckets for the next turn.
    elapsed: Vec<Expiration>,
}

impl DelayQueue {
    /// Puts a bucket in that was not armed.
    pub(crate) fn offer(&mut self, expiration: Expiration) {
        if expiration.bucket.level == ELAPSED {
            self.elapsed.push(expiration);
        } else {
            self.heap.push(Reverse(expiration));
        }
    }

    /// Puts a bucket back that was polled and is not empty yet.
    pub(crate) fn resume(&mut self, expiration: Expiration) {
        if expiration.tick < expiration.start {
            self.backlog.push(Reverse((expiration.start, expiration)));
        } else {
            self.heap.push(Reverse(expiration));
        }
    }

    /// Lets this turn have the elapsed buckets that are there now.
    pub(crate) fn begin_turn(&mut self) {
        self.heap.extend(self.elapsed.drain(..).map(Reverse));
    }

    /// The bucket to flush next, if one is due: at `turn_start` if nothing waits in the backlog,
    /// at `now`, which is not before, as long as something does.
    pub(crate) fn poll(&mut self, turn_start: u64, now: u64) -> Option<Expiration> {
        loop {
            let cascade_by = self.backlog.peek().map(|Reverse((start, _))| *start);
            let limit = if cascade_by.is_some() { now } else { turn_start };
            match self.heap.peek() {
                Some(Reverse(top))
                    if top.tick <= limit && cascade_by.is_none_or(|by| top.tick < by) =>
                {
                    let Reverse(top) = self.heap.pop()?;
                    if top.tick == top.start {
                        return Some(top);
                    }
                    self.backlog.push(Reverse((top.start, top)));
                }
                _ => {
                    return self.backlog.pop().map(|Reverse((_, expiration))| expiration);
                }
            }
        }
    }

    /// From which tick on there is something to do; `None` if nothing is queued.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        if self.elapsed.is_empty() && self.backlog.is_empty() {
            self.heap.peek().map(|Reverse(top)| top.tick)
        } else {
            Some(0)
        }
    }

    /// The bucket that comes first, whether it is due or not.
    pub(crate) fn first(&self) -> Option<Expiration> {
        let backlog = || self.backlog.peek().map(|Reverse((_, expiration))| *expiration);
        let heap = || self.heap.peek().map(|Reverse(top)| *top);
        self.elapsed.first().copied().or_else(backlog).or_else(heap)
    }

    /// Takes a bucket out that has become empty. Fast for the one that comes first.
    pub(crate) fn remove(&mut self, expiration: Expiration) {
        if self.heap.peek() == Some(&Reverse(expiration)) {
            self.heap.pop();
        } else {
            self.heap.retain(|Reverse(queued)| *queued != expiration);
            self.backlog.retain(|Reverse((_, queued))| *queued != expiration);
            self.elapsed.retain(|queued| *queued != expiration);
        }
    }

    /// Every bucket that is queued, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Expiration> {
        let heap = self.heap.iter().map(|Reverse(expiration)| expiration);
        let backlog = self.backlog.iter().map(|Reverse((_, expiration))| expiration);
        heap.chain(backlog).chain(&self.elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expiration(tick: u64, start: u64) -> Expiration {
        let bucket = BucketId { level: u8::from(tick != start), slot: 0 };
        Expiration { tick, start, bucket, shard: 0 }
    }

    #[test]
    fn due_buckets_overtake_a_cascade_but_not_past_its_first_tick() {
        let mut queue = DelayQueue::default();
        for (tick, start) in [(10, 20), (11, 11), (19, 19), (20, 20), (30, 30)] {
            queue.offer(expiration(tick, start));
        }
        let mut polled = Vec::new();
        while let Some(next) = queue.poll(25, 25) {
            polled.push(next.start);
            if next.start == 20 && next.tick == 10 && polled.len() < 5 {
                queue.resume(next);
            }
        }
        assert_eq!(polled, [11, 19, 20, 20, 20, 20]);
        assert_eq!(queue.next_tick(), Some(30));
    }

    #[test]
    fn what_elapses_during_a_turn_waits_for_the_next() {
        let elapsed =
            Expiration { bucket: BucketId { level: ELAPSED, slot: 0 }, ..expiration(0, 0) };
        let mut queue = DelayQueue::default();
        queue.offer(elapsed);
        queue.begin_turn();
        assert_eq!(queue.poll(5, 5), Some(elapsed));
        queue.offer(elapsed);
        assert_eq!(queue.poll(5, 5), None);
        assert_eq!(queue.next_tick(), Some(0));
        queue.begin_turn();
        assert_eq!(queue.poll(5, 5), Some(elapsed));
    }
}
