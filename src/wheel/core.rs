//! The core: a complete single-threaded timer, consisting of entries and wheels.
//!
//! Plain data that never reads a clock, locks, queues or fires. Every call that files an entry
//! reports which bucket was newly armed, and the code that drives the core offers that to the delay
//! queue. [`LocalTimer`](crate::LocalTimer) drives one core directly; each shard of a
//! [`Timer`](crate::Timer) has one behind its lock.
//!
//! Cancelling an entry frees its place in the slab at once; its reference in a bucket stays behind,
//! stale. A reference is live as long as its entry is present and this was the entry's latest
//! filing. To decide that, each filing has a number, which is stored in the reference and as the
//! entry's tag in the slab. When there are more stale references than entries, each `cancel` and
//! `reschedule` sweeps a few.
//!
//! A live reference only means: look at this entry at this tick. The entry's deadline decides
//! whether it is due, so no reference, however wrong, could expire anything early or twice.
//!
//! Invariants, checked by [`Core::assert_invariants`]:
//! - every entry has exactly one live reference;
//! - a bucket with references is armed: it is in the delay queue, or is being flushed by a thread;
//! - a reference is in the bucket for its tick, inside its wheel's window, or in the bucket of
//!   elapsed entries if it was due when it was filed;
//! - an entry's deadline is never before the tick under which it is filed. It is later after an
//!   extension: the flush looks at the deadline and files the entry again.
//!
//! # The flush
//! Takes a batch of references out of a polled bucket. The entries that are due leave; the others
//! are filed again, in a finer wheel or under a later deadline.

use crate::store::slab::{Key, Slab};
use crate::wheel::bucket::{BucketId, Reference};
use crate::wheel::bucket_queue::{ELAPSED, Expiration};
use crate::wheel::counters::Counters;
use crate::wheel::ticks::{Deadline, Ticks};
use crate::wheel::wheels::Wheels;
use alloc::vec::Vec;

/// Entries are stored in chunks of up to 1,024. The larger the chunks, the fewer cache misses it
/// takes to find an entry.
const CHUNK_BYTES: usize = 32 << 10;

/// The number of entries that one flush moves while its lock is held. It bounds how long others
/// wait for the lock.
pub(crate) const BATCH: usize = 128;

/// The number of buckets that one call looks at while its lock is held, if it looks at all of them
/// in turn.
pub(crate) const BUCKETS: usize = 1024;

/// Stale references that are not worth a sweep, however few entries there are.
const STALE_ALLOWED: usize = 256;

/// 24 bytes in the slab for a 64-bit item, because the deadline cannot be zero.
#[derive(Clone, Debug)]
pub(crate) struct Entry<T> {
    pub(crate) deadline: Deadline,
    pub(crate) item: T,
}

/// The rest of a bucket, after the stale references were taken from its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trimmed {
    /// Nothing is left: the bucket may be disarmed.
    Empty,
    /// An entry waits in it.
    Live,
    /// There may be more stale references: the bounded time of one call was used up.
    Unknown,
}

/// A single-threaded timer; see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Core<T> {
    pub(crate) ticks: Ticks,
    pub(crate) entries: Slab<Entry<T>, CHUNK_BYTES>,
    pub(crate) wheels: Wheels,
    /// The number of the latest filing. It wraps around after 2^32 filings. A stale reference so
    /// old that it looks live then is a second one to its entry, perhaps in the same batch: each
    /// is looked at as if the other one may have expired the entry, or filed it again.
    filings: u32,
    /// The references that are being moved; empty between calls.
    pub(crate) batch: Vec<Reference>,
    pub(crate) counters: Counters,
}

impl<T> Core<T> {
    pub(crate) fn new(ticks: Ticks, wheels: Wheels) -> Self {
        Core {
            ticks,
            entries: Slab::new(),
            wheels,
            filings: 0,
            batch: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Creates a core that takes next to no memory, for a shard without a timer.
    pub(crate) fn idle() -> Self {
        Core::new(Ticks::new(1), Wheels::new(0, 4, 0))
    }

    /// Starts over as `fresh`, which never issues a key that was issued before. Returns the former
    /// core.
    pub(crate) fn restart(&mut self, fresh: Self) -> Self {
        let fresh = Core { entries: self.entries.successor(), ..fresh };
        core::mem::replace(self, fresh)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry. Returns its key, and the reference that has to be filed under `tick` next.
    ///
    /// Always inlined: returning the result through memory, in four pieces, costs 2 of W2's 55 ns.
    #[inline(always)]
    pub(crate) fn insert(&mut self, deadline: u64, tick: u64, item: T) -> (Key, Reference) {
        self.filings = self.filings.wrapping_add(1);
        let entry = Entry { deadline: Deadline::new(deadline), item };
        let filing = self.filings;
        let key = self.entries.insert(entry, filing);
        (key, Reference { tick: tick as u32, index: key.index, filing })
    }

    /// Takes an entry out before it expires, and returns its item.
    #[inline]
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.remove(key)?;
        Some(self.cancelled(entry))
    }

    /// Takes the entry at `index`, if there is one, out before it expires, and returns its item.
    #[inline]
    pub(crate) fn cancel_at(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.remove_if(index, |_| true)?;
        Some(self.cancelled(entry))
    }

    /// Counts an entry that was taken out before it expired, and returns its item.
    #[inline]
    pub(crate) fn cancelled(&mut self, entry: Entry<T>) -> T {
        self.counters.cancelled += 1;
        self.sweep_if_stale();
        entry.item
    }

    /// Counts an entry that was taken out because it has expired before `now`; returns its item.
    pub(crate) fn expired(&mut self, entry: Entry<T>, now: u64) -> T {
        self.counters.record_expired(now.saturating_sub(entry.deadline.get()));
        self.sweep_if_stale();
        entry.item
    }

    /// Returns the item at `index`; there must be one.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &T {
        &self.entries.at(index).item
    }

    /// Returns the item at `index`; there must be one.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        &mut self.entries.at_mut(index).item
    }

    /// Returns the deadline at `index`; there must be one.
    #[inline]
    pub(crate) fn deadline_at(&self, index: u32) -> u64 {
        self.entries.at(index).deadline.get()
    }

    pub(crate) fn item(&self, key: Key) -> Option<&T> {
        self.entries.get(key).map(|entry| &entry.item)
    }

    pub(crate) fn item_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get_mut(key).map(|entry| &mut entry.item)
    }

    pub(crate) fn deadline(&self, key: Key) -> Option<u64> {
        self.entries.get(key).map(|entry| entry.deadline.get())
    }

    /// Moves an entry, which must be present, to a later `deadline`; an earlier one has no effect.
    /// Only writes the deadline: the entry is filed again when its bucket is flushed.
    pub(crate) fn extend(&mut self, index: u32, deadline: u64) {
        let entry = self.entries.at_mut(index);
        if deadline > entry.deadline.get() {
            entry.deadline = Deadline::new(deadline);
            self.counters.rescheduled += 1;
        }
    }

    /// Moves an entry, which must be present, to `deadline`: an earlier one than its own, or any if
    /// it is filed nowhere. Returns the reference that has to be filed under `tick` next; the
    /// former one is stale.
    pub(crate) fn move_up(&mut self, index: u32, deadline: u64, tick: u64) -> Reference {
        let entry = self.entries.at_mut(index);
        self.counters.rescheduled += u64::from(deadline != entry.deadline.get());
        entry.deadline = Deadline::new(deadline);
        let reference = self.file_anew(index, tick);
        self.sweep_if_stale();
        reference
    }

    /// Assigns a number to another filing of an entry, under `tick`.
    pub(crate) fn file_anew(&mut self, index: u32, tick: u64) -> Reference {
        self.filings = self.filings.wrapping_add(1);
        self.entries.set_tag(index, self.filings);
        Reference { tick: tick as u32, index, filing: self.filings }
    }

    #[inline]
    pub(crate) fn is_live(&self, reference: Reference) -> bool {
        is_live(&self.entries, reference)
    }

    /// Takes the first bucket out of the queue if it holds only stale references. Looks at most at
    /// [`BATCH`] of them, and returns what it found.
    pub(crate) fn trim_first(&mut self) -> Trimmed {
        let Some(first) = self.wheels.queue.first() else { return Trimmed::Live };
        for _ in 0..BATCH {
            match self.wheels.front(first.bucket) {
                Some(front) if self.is_live(front) => return Trimmed::Live,
                Some(_) => self.wheels.pop_front(first.bucket),
                None => {
                    self.wheels.queue.take(first);
                    self.wheels.disarm_if_empty(first.bucket);
                    return Trimmed::Empty;
                }
            }
        }
        Trimmed::Unknown
    }

    /// Sweeps a few stale references if there are many. Every method that leaves one behind calls
    /// this, so there are never many more stale references than live ones.
    #[inline]
    fn sweep_if_stale(&mut self) {
        // mutants(>=): from which number on it sweeps.
        if self.wheels.len() > 2 * self.entries.len() + STALE_ALLOWED {
            self.wheels.sweep(&mut self.batch, |reference| is_live(&self.entries, reference));
        }
    }

    /// Takes at most [`BATCH`] entries out of the first bucket at or after the `cursor`-th that has
    /// any, with their deadlines. Returns whether there may be more.
    pub(crate) fn drain(&mut self, cursor: &mut usize, mut out: impl FnMut(u64, T)) -> bool {
        let mut batch = core::mem::take(&mut self.batch);
        for _ in 0..BUCKETS {
            let Some(bucket) = self.wheels.nth_bucket(*cursor) else {
                // Starts again from the beginning if a cascade has moved entries behind the cursor.
                *cursor = 0;
                break;
            };
            self.wheels.take_front(bucket, BATCH, &mut batch);
            if !batch.is_empty() {
                break;
            }
            *cursor += 1;
        }
        for reference in batch.drain(..) {
            let live = self.is_live(reference);
            if let Some(entry) = self.entries.remove_if(reference.index, |_| live) {
                self.counters.returned += 1;
                out(entry.deadline.get(), entry.item);
            }
        }
        self.batch = batch;
        self.entries.len() > 0
    }

    /// Checks the invariants that the module states. Takes time proportional to the core.
    ///
    /// `is_filed` says whether an entry is filed, as opposed to being held by its owner after a
    /// flush.
    pub(crate) fn assert_invariants(&self, is_filed: impl Fn(&T) -> bool) {
        self.entries.assert_invariants();
        let mut live = 0;
        self.wheels.assert_invariants(|reference, first, last| {
            if !self.is_live(reference) {
                return;
            }
            live += 1;
            let deadline = self.ticks.ceil(self.entries.at(reference.index).deadline.get());
            assert!(deadline >= first || first == 0, "filed after its deadline");
            if first > 0 && last - first < 1 << 32 {
                let tick = first + u64::from(reference.tick.wrapping_sub(first as u32));
                assert!(tick <= last, "filed in another tick's bucket");
                assert!(tick <= deadline, "filed after its deadline");
            }
        });
        let filed = self.entries.iter().filter(|(_, entry)| is_filed(&entry.item)).count();
        assert_eq!(live, filed, "every entry that is filed has one live reference");
    }
}

/// Returns whether there is an entry with this filing as its latest one.
#[inline]
fn is_live<T>(entries: &Slab<Entry<T>, CHUNK_BYTES>, reference: Reference) -> bool {
    entries.tag(reference.index) == Some(reference.filing)
}

impl<T> Core<T> {
    /// Moves at most `limit` entries out of a polled bucket, or a [`BATCH`] to finer wheels. Those
    /// that are due at `now` go to `expire`, in order; the others are filed where they belong now;
    /// the rest of the bucket goes back to the queue.
    pub(crate) fn flush(
        &mut self,
        expiration: Expiration,
        (now, limit): (u64, usize),
        mut expire: impl FnMut(Key, T),
    ) {
        self.flush_by(expiration, (now, limit), |core, index, due| {
            let Some(key) = core.entries.key_at(index) else { return false };
            let is_due = |entry: &mut Entry<T>| entry.deadline.get() <= due;
            let Some(entry) = core.entries.remove_if(index, is_due) else { return false };
            core.counters.record_expired(now.saturating_sub(entry.deadline.get()));
            expire(key, entry.item);
            true
        })
    }

    /// Flushes as [`flush`](Self::flush) does, but calls `see` with all entries, and with whether
    /// they are due. It leaves those in their places, filed nowhere. Their owner takes
    /// them out.
    pub(crate) fn flush_in_place(
        &mut self,
        expiration: Expiration,
        now: u64,
        mut see: impl FnMut(Key, &mut T, bool),
    ) {
        self.flush_by(expiration, (now, BATCH), |core, index, due| {
            let Some(key) = core.entries.key_at(index) else { return false };
            let entry = core.entries.at_mut(index);
            let is_due = entry.deadline.get() <= due;
            see(key, &mut entry.item, is_due);
            is_due
        })
    }

    /// Flushes a batch. `expire` says whether it took an entry that is due at a given time, or
    /// whether the entry has to wait.
    #[inline]
    fn flush_by(
        &mut self,
        expiration: Expiration,
        (now, limit): (u64, usize),
        mut expire: impl FnMut(&mut Self, u32, u64) -> bool,
    ) {
        let mut batch = core::mem::take(&mut self.batch);
        let expiration = self.wheels.begin_flush(expiration);
        let Expiration { bucket, tick: expires, start, .. } = expiration;
        let is_early = expires < start;
        self.wheels.take_front(bucket, if is_early { BATCH } else { limit }, &mut batch);
        if is_early {
            self.cascade(bucket, start, &mut batch);
        } else {
            // This is a separate loop, so that the cache misses of the whole batch overlap.
            batch.retain(|reference| self.is_live(*reference));
            // An extended entry has to wait for its new tick, even if that tick has come by now, so
            // that entries leave in the order of their ticks.
            let due = if bucket.level == ELAPSED {
                self.file_extended(bucket, &mut batch, &mut expire);
                now
            } else {
                self.ticks.start_of(start)
            };
            for reference in &batch {
                if !expire(self, reference.index, due) {
                    self.file_by_deadline(bucket, *reference);
                }
            }
        }
        batch.clear();
        self.batch = batch;
        if !self.wheels.disarm_if_empty(bucket) {
            self.wheels.queue.resume(expiration);
        }
    }

    /// Files references again that were taken from the overflow bucket that starts at `start`.
    fn cascade(&mut self, bucket: BucketId, start: u64, batch: &mut Vec<Reference>) {
        // Stale references are moved with the others unless there are many: finding one costs a
        // cache miss, whereas moving it touches no entry.
        // mutants(< == >= - * %): only the pace.
        if self.wheels.len() + batch.len() > self.entries.len() + self.entries.len() / 8 {
            batch.retain(|reference| self.is_live(*reference));
        }
        self.counters.cascaded += batch.len() as u64;
        // Whether the low 32 bits of a tick, and the bucket where it is filed, tell all of it.
        // mutants: only the pace. A flush corrects what is filed too low.
        let low_bits_suffice = self.wheels.span(bucket.level).ticks() <= 1 << 32;
        for &reference in &*batch {
            if low_bits_suffice {
                let tick = start + u64::from(reference.tick.wrapping_sub(start as u32));
                self.wheels.file_out_of(bucket, reference, tick);
            } else {
                self.file_by_deadline(bucket, reference);
            }
        }
    }

    /// Takes out of a batch of live elapsed references those whose entries were extended, and files
    /// these where they belong now.
    #[inline(never)]
    fn file_extended(
        &mut self,
        from: BucketId,
        batch: &mut Vec<Reference>,
        expire: &mut impl FnMut(&mut Self, u32, u64) -> bool,
    ) {
        batch.retain(|reference| {
            let tick = self.ticks.ceil(self.entries.at(reference.index).deadline.get());
            let stays = self.wheels.has_elapsed(*reference, tick);
            if !stays {
                expire(self, reference.index, 0); // Nothing is due then, but it is seen.
                self.file_by_deadline(from, *reference);
            }
            stays
        });
    }

    /// Files an entry of the bucket `from` again, under the tick of its deadline, if the reference
    /// is live.
    fn file_by_deadline(&mut self, from: BucketId, reference: Reference) {
        if self.is_live(reference) {
            let tick = self.ticks.ceil(self.entries.at(reference.index).deadline.get());
            let reference = self.file_anew(reference.index, tick);
            self.wheels.file_out_of(from, reference, tick);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::wheel::LocalTimer;
    use alloc::vec::Vec;

    /// Has numbers of filings come again all the time, as they do after 2^32 of them. Seen to fail:
    /// a stale reference that looked live expired an entry, and the next one of the same batch
    /// panicked, which lost the bucket.
    #[test]
    fn a_number_of_a_filing_that_comes_again_costs_no_timer() {
        fastrand::seed(7);
        for _ in 0..2_000 {
            let mut timer = LocalTimer::starting_at(0, 4);
            let (mut pending, mut now) = (Vec::new(), 0);
            for task in 0..60 {
                timer.core.filings = fastrand::u32(..3);
                let deadline = now + fastrand::u64(..40);
                match fastrand::usize(..2 + pending.len()) {
                    0 => pending.push((timer.add(deadline, task), task, deadline)),
                    1 => now += fastrand::u64(..20),
                    nth => {
                        assert!(timer.reschedule(pending[nth - 2].0, deadline));
                        pending[nth - 2].2 = deadline;
                    }
                }
                let mut expired = Vec::new();
                timer.advance(now, |task| expired.push(task));
                expired.sort_unstable();
                let (due, left): (Vec<_>, Vec<_>) =
                    pending.into_iter().partition(|(_, _, deadline)| *deadline <= now);
                pending = left;
                assert!(expired.into_iter().eq(due.into_iter().map(|(_, task, _)| task)));
                assert_eq!(timer.len(), pending.len());
            }
        }
    }
}
