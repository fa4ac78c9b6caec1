//! The flush: takes a batch of references out of the bucket that comes first. Due entries leave the
//! wheel, those of an overflow wheel cascade, and all others are filed again.
//!
//! # What a turn owes
//! Entries leave in the order of their ticks. An entry that was due when the turn began leaves in
//! that turn. A turn ends, whatever its tasks add. Each of these cases breaks simpler code, and the
//! numbers stand at the lines that deal with them. A tick is 1 long, so a deadline of 7.2 has the
//! tick 8. The turn begins in tick 7, its `limit`. `present` is read later, under the lock: 7.5,
//! or 9.1 if the thread has lost its core in between.
//!
//! 1. *A task adds itself for now.* The bucket of tick 7 holds 200 entries. A flush moves 128 of
//!    them, and releases the lock. A task runs, and adds itself without a delay: it is filed under
//!    7 again. If the bucket were flushed in place, the second flush would find the task behind the
//!    72 others, run it, and so on: the turn would not end. So the first flush takes the bucket out
//!    whole, into `taken`. What is filed under 7 from then on lies in the slot's new bucket, which
//!    is armed. Once `taken` is empty, `taken_at` says that this turn is through with tick 7, and
//!    the delay queue leaves the new bucket to the next turn.
//! 2. *An entry is due when it joins a bucket of an overflow wheel.* A wheel of 8 slots is at tick
//!    0, its bucket for 8 to 11 is armed, and nothing drives it until 7.3. At 7.2 an entry for 7.1
//!    is added. Its tick is 8, and no clock is read: it joins that bucket. It was due before the
//!    turn begins at 7.3. So this turn cascades the bucket before it flushes tick 7, and the entry
//!    is filed under 7. In the other order, the bucket of tick 7 would be taken out already, and
//!    the entry would be left to the next turn (1). A cascade that begins with tick 9 may wait: its
//!    deadlines are later than 8, and have not passed in tick 7.
//! 3. *An extended entry lies under a tick that is over.* A is filed under 5, and extended to 7,
//!    which only writes its deadline. B is filed under 6. Nothing drives the wheel until 7.3. By
//!    the present A is due when tick 5 is flushed, and would leave before B. So an entry in a tick
//!    that is over is compared with the start of that tick: A is not due at 5, is filed under 7,
//!    and leaves after B.
//! 4. *The clock goes on after the turn has begun.* A is filed under 7, and extended to 8.5. B has
//!    the deadline 7.9, and is filed under 8, which this turn does not reach. By the present, 9.1,
//!    A would leave in this turn, and before B. So an entry in the turn's own tick is compared with
//!    the end of that tick at the latest.
//! 5. *A deadline has passed, and its tick is not in the turn.* The cascade of case 2 finds the
//!    entry for 7.1 while the clock shows 8.1. Filed under its tick 8, or under the present one, it
//!    would miss this turn. Under 7, its deadline rounded down, it leaves in this turn, and is not
//!    early, because 7.1 has passed. A of case 4 goes to 8 by the same rule: it became due after
//!    the turn began, so the next turn is early enough.
//! 6. *A deadline's tick is over.* The turn begins in tick 9, and finds A under 5, extended to 6.5.
//!    Rounded down, A would be filed under 6, where it is not due by (3), and under 6 again,
//!    without an end. Under the present tick, A would leave after an entry of tick 8. A's own tick,
//!    7, is in the turn anyway, so A is filed there.

use crate::wheel::bucket::{Bucket, Entry, Reference};
use crate::wheel::expirations::First;
use crate::wheel::level::Expiration;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Nanos, Tick};
use crate::wheel::timing_wheel::{BATCH, TakenAt, TimingWheel, is_live};
use core::mem;

/// For which turn, and how far, a wheel is flushed.
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
        // A cascade goes before the bucket of `tick` also if it begins with the tick after that one
        // (2). A cascade that begins later goes on when nothing else is due.
        let is_cascade = tick > flush.limit || cascade.is_by(tick.next());
        let expiration = if is_cascade {
            self.expirations.cascading()
        } else {
            self.expirations.waiting()
        };
        let Some(expiration) = expiration else {
            return false;
        };
        // Nothing is armed before `expiration`. From a cascade's tick on, all of its ticks belong
        // in lower levels. So nothing joins its bucket between two batches, and the cascade ends.
        self.leap(expiration.tick);
        if is_cascade {
            self.cascade(expiration, flush);
            return true;
        }
        if expiration.is_overflow() {
            self.expirations.begin_cascade();
            return true;
        }
        let bucket = &mut self.buckets[expiration.bucket as usize];
        if self.taken.len() == 0 {
            // Whole, and armed again at once (1). If nothing is filed here until `taken` is empty,
            // the bucket is disarmed below.
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
        let due = if tick < flush.limit {
            self.length.start_of(tick) // (3)
        } else {
            let end = Nanos(self.length.start_of(flush.limit.next()).0 - 1);
            flush.present.min(end) // (4)
        };
        for reference in references.drain(..) {
            if !expire(self, reference.index, due) {
                self.file_by_deadline(reference, flush);
            }
        }
        self.scratch = references;
        let bucket = &mut self.buckets[expiration.bucket as usize];
        if self.taken.len() == 0 && bucket.len() == 0 {
            bucket.armed = false;
            self.expirations.remove(expiration);
        }
        // A program that cancels nothing any more would keep what earlier cancels left: entries
        // that expire make the stale references the majority.
        self.sweep_if_stale();
        true
    }

    /// Moves a batch of an overflow bucket's references to lower levels.
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
        // A reference holds the low 32 bits of its tick. In a bucket that begins with the tick S
        // and spans 2^32 ticks or fewer, each value of these bits occurs once: the tick is known,
        // and no entry is touched, which would cost a cache miss each. With 512 slots, levels 0 to
        // 4 are such. A bucket of level 5 spans 2^40: S + 5 and S + 2^32 + 5 look the same in it,
        // so the deadlines decide.
        // mutants: only the pace. A flush corrects what is filed too low.
        let level = self.levels.level_of(from.bucket as usize);
        let low_bits_suffice = self.levels.span_of(level) <= 1 << 32;
        // Up to this tick a deadline may have passed; a later tick's deadlines have not.
        let next = self.length.floor(flush.present).next();
        for reference in references.drain(..) {
            let ahead = reference.tick.wrapping_sub(from.start.0 as u32);
            let tick = Tick(from.start.0 + u64::from(ahead));
            // A tick up to the limit is in this turn. One behind it, up to `next`, may hold an
            // entry that was due when it joined (2): only the deadline tells.
            if low_bits_suffice && (tick <= flush.limit || tick > next) {
                self.push(reference, tick);
            } else {
                self.file_by_deadline(reference, flush);
            }
        }
        self.scratch = references;
    }

    /// Files an entry by its deadline: one that was not due when its bucket was flushed, or whose
    /// reference does not tell enough.
    fn file_by_deadline(&mut self, reference: Reference, flush: Flush) {
        if !is_live(&self.entries, &reference) {
            return;
        }
        let deadline = self.entries.at(reference.index).deadline();
        // It never comes, and nobody wakes up for it.
        if deadline > self.last.max(flush.present) {
            return;
        }
        let tick = self.length.ceil(deadline);
        let has_passed = deadline <= flush.present && tick > flush.limit;
        let tick = if has_passed {
            self.length.floor(deadline) // (5)
        } else {
            tick // (6)
        };
        // A new number, because numbers wrap around: another old reference may look live as well,
        // and must not file the entry a second time.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::tick::{Due, TickLength};

    /// The level, the slot, the first tick and the expiration of the bucket of an entry.
    type Place = (usize, usize, u64, u64);

    fn place_of(wheel: &TimingWheel<char>, name: char) -> Option<Place> {
        wheel.armed().find_map(|(expiration, [bucket, _])| {
            let mut entries = wheel.entries_of(bucket);
            entries.find(|(_, entry)| entry.item == name)?;
            let number = expiration.bucket as usize;
            let level = wheel.levels.level_of(number);
            let slot = number % wheel.size();
            Some((level, slot, expiration.start.0, expiration.tick.0))
        })
    }

    #[test]
    fn the_wheel_goes_through_time_in_the_steps_on_its_page() {
        let mut wheel = TimingWheel::new(TickLength::new(1), 8, Tick(42), Nanos::NEVER);
        for (name, deadline) in [('A', 45), ('B', 61), ('C', 130)] {
            let due = Due {
                deadline: Nanos(deadline),
                tick: Tick(deadline),
                present: None,
            };
            let (key, reference) = wheel.insert(due, name);
            wheel.file(reference, due, || Nanos(42));
            if name == 'A' {
                wheel.extend(key.index, Nanos(49));
            }
        }
        let steps = [
            (42, 'A', Some((0, 5, 45, 45))),
            (42, 'B', Some((1, 7, 60, 57))),
            (42, 'C', Some((2, 0, 128, 116))),
            (45, 'A', Some((0, 1, 49, 49))),
            (49, 'A', None),
            (57, 'B', Some((0, 5, 61, 61))),
            (61, 'B', None),
            (116, 'C', Some((1, 0, 128, 125))),
            (125, 'C', Some((0, 2, 130, 130))),
            (130, 'C', None),
        ];
        for (at, name, place) in steps {
            assert!(at == 42 || wheel.first().tick == Tick(at), "{at} is next");
            let flush = Flush {
                limit: Tick(at),
                turn: 0,
                present: Nanos(at),
                batch: BATCH,
            };
            while wheel.flush(flush, |_, entry| assert_eq!(entry.item, name)) {}
            assert_eq!(place_of(&wheel, name), place, "{name} at {at}");
            wheel.assert_invariants(|_| true);
        }
        assert_eq!(wheel.len(), 0);
    }
}
