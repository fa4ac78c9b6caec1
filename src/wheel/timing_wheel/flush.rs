//! The flush: takes a batch of references out of the bucket that comes first. Due entries leave the
//! wheel, those of an overflow wheel cascade, and all others are filed again.

use crate::wheel::bucket::{Bucket, Entry, Reference};
use crate::wheel::expirations::First;
use crate::wheel::level::Expiration;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Nanos, Tick};
use crate::wheel::timing_wheel::{BATCH, TakenAt, TimingWheel, is_live};
use core::mem;

/// The turn for which a wheel is flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    /// The tick in which the turn began: nothing later is flushed.
    pub(crate) limit: Tick,
    pub(crate) turn: u64,
    /// The present, read after the shard was locked, so that what was due when filed is due now.
    pub(crate) present: Nanos,
    /// The number of references of a due bucket to be looked at.
    pub(crate) batch: usize,
}

impl<T> TimingWheel<T> {
    /// Flushes a batch of the first bucket. Due entries go to `expire`, in order; the others are
    /// filed again. Returns whether any bucket was due.
    pub(crate) fn flush(&mut self, flush: Flush, mut expire: impl FnMut(Key, Entry<T>)) -> bool {
        self.flush_by(flush, |wheel, index, due| {
            let Some(key) = wheel.entries.key_at(index) else {
                return false;
            };
            let is_due = |entry: &mut Entry<T>| entry.deadline() <= due;
            let Some(entry) = wheel.entries.remove_if(index, is_due) else {
                return false;
            };
            wheel
                .counters
                .record_expired(flush.present.since(entry.deadline()));
            expire(key, entry);
            true
        })
    }

    /// Flushes a batch as [`flush`](Self::flush) does, but leaves the due entries in their places,
    /// filed no longer. `see` gets each entry, and whether it is due.
    pub(crate) fn flush_in_place(
        &mut self,
        flush: Flush,
        mut see: impl FnMut(Key, &mut T, bool),
    ) -> bool {
        self.flush_by(flush, |wheel, index, due| {
            let Some(key) = wheel.entries.key_at(index) else {
                return false;
            };
            let Some(entry) = wheel.entries.get_mut(key) else {
                return false;
            };
            let is_due = entry.deadline() <= due;
            see(key, &mut entry.item, is_due);
            is_due
        })
    }

    /// Flushes a batch as [`flush`](Self::flush) does. `expire` gets the index of each entry and
    /// the time at which it had to be due, and returns whether it took the entry.
    #[inline]
    fn flush_by(
        &mut self,
        flush: Flush,
        mut expire: impl FnMut(&mut Self, u32, Nanos) -> bool,
    ) -> bool {
        let First { tick, cascade, .. } = self.first();
        // A cascade that begins with the next tick goes first: it may hold what was due when it
        // joined.
        let is_cascade = tick > flush.limit || cascade.is_by(tick.next());
        let first = if is_cascade {
            self.expirations.cascading()
        } else {
            self.expirations.waiting()
        };
        let Some(first) = first else { return false };
        // Nothing is armed before `first`. Set as soon as a cascade begins, so that nothing joins
        // its bucket.
        self.leap(first.tick);
        if is_cascade {
            self.cascade(first, flush);
            return true;
        }
        if first.is_overflow() {
            self.expirations.begin_cascade();
            return true;
        }
        let bucket = &mut self.buckets[first.bucket as usize];
        if self.taken.len() == 0 {
            // References filed here from now on belong to the next turn.
            self.taken = mem::replace(bucket, Bucket::EMPTY);
            bucket.armed = true;
            self.taken_at = TakenAt {
                tick,
                turn: flush.turn,
            };
        }
        let mut references = mem::take(&mut self.scratch);
        self.taken
            .take_front(&mut self.blocks, flush.batch, &mut references);
        self.references -= references.len();
        // A separate loop, so that the cache misses of the batch overlap.
        references.retain(|reference| is_live(&self.entries, reference));
        // An extended entry waits for its new tick, even if that has come, so that entries leave in
        // the order of their ticks. What becomes due later is left to the next turn.
        let end = Nanos(self.length.start_of(flush.limit.next()).0 - 1);
        let is_over = tick < flush.limit;
        let due = if is_over {
            self.length.start_of(tick)
        } else {
            flush.present.min(end)
        };
        for reference in references.drain(..) {
            if !expire(self, reference.index, due) {
                self.file_by_deadline(reference, flush);
            }
        }
        self.scratch = references;
        let bucket = &mut self.buckets[first.bucket as usize];
        if self.taken.len() == 0 && bucket.len() == 0 {
            bucket.armed = false;
            self.expirations.remove(first);
        }
        // A program that cancels nothing any more would keep what earlier cancels left.
        self.sweep_if_stale();
        true
    }

    /// Inserts a batch of an overflow bucket's entries again, in lower levels.
    fn cascade(&mut self, from: Expiration, flush: Flush) {
        let mut references = mem::take(&mut self.scratch);
        let bucket = &mut self.buckets[from.bucket as usize];
        bucket.take_front(&mut self.blocks, BATCH, &mut references);
        if bucket.len() == 0 {
            bucket.armed = false;
            self.expirations.remove(from);
        }
        // Finding a stale reference costs a cache miss, moving it touches no entry: removed only if
        // there are many.
        // mutants(< == >= - * %): only the pace.
        if self.references > self.len() + self.len() / 8 {
            let before = references.len();
            references.retain(|reference| is_live(&self.entries, reference));
            self.references -= before - references.len();
        }
        self.references -= references.len();
        self.counters.cascaded += references.len() as u64;
        // Whether the low 32 bits of a tick, and the bucket, tell all of it.
        // mutants: only the pace. A flush corrects what is filed too low.
        let level = self.levels.level_of(from.bucket as usize);
        let low_bits_suffice = self.levels.span_of(level) <= 1 << 32;
        // An entry that joined a bucket which begins after the turn may be due by now.
        let next = self.length.floor(flush.present).next();
        for reference in references.drain(..) {
            let ahead = reference.tick.wrapping_sub(from.start.0 as u32);
            let tick = Tick(from.start.0 + u64::from(ahead));
            if low_bits_suffice && (tick <= flush.limit || tick > next) {
                self.push(reference, tick);
            } else {
                self.file_by_deadline(reference, flush);
            }
        }
        self.scratch = references;
    }

    fn file_by_deadline(&mut self, reference: Reference, flush: Flush) {
        if !is_live(&self.entries, &reference) {
            return;
        }
        let deadline = self.entries.at(reference.index).deadline();
        if deadline > self.last.max(flush.present) {
            return;
        }
        let tick = self.length.ceil(deadline);
        // A deadline that had passed when the turn began is due in this turn, although the clock
        // has gone on. A tick that is over is not skipped: entries leave in the order of their
        // ticks.
        let has_passed = deadline <= flush.present && tick > flush.limit;
        let tick = if has_passed {
            self.length.floor(deadline)
        } else {
            tick
        };
        let filing = self.next_filing(reference.index);
        self.push(
            Reference {
                filing,
                ..reference
            },
            tick,
        );
    }
}
