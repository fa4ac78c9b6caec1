//! The flush: takes a batch of entries out of a polled bucket, because they are due or have to be
//! filed in a finer wheel.

use crate::store::key::Key;
use crate::wheel::bucket::{BucketId, Reference};
use crate::wheel::bucket_queue::{ELAPSED, Expiration};
use crate::wheel::core::{BATCH, Core, Entry};
use crate::work;

impl<T> Core<T> {
    /// Moves at most [`BATCH`] entries out of a polled bucket. Entries that are due at `now` go to
    /// `expire`, in order; the others are filed where they belong now; newly armed buckets go to
    /// `arm`. Returns what is left to flush, or disarms the bucket if it is empty.
    pub(crate) fn flush(
        &mut self,
        expiration: Expiration,
        now: u64,
        arm: impl FnMut(Expiration),
        mut expire: impl FnMut(T),
    ) -> Option<Expiration> {
        self.flush_by(expiration, now, arm, |core, index, due| {
            let is_due = |entry: &Entry<T>| entry.deadline.get() <= due;
            let Some(entry) = core.entries.remove_if(index, is_due) else { return false };
            core.counters.record_expired(now.saturating_sub(entry.deadline.get()));
            expire(entry.task);
            true
        })
    }

    /// Flushes as [`flush`](Self::flush) does, but calls `see` with the due entries and leaves them
    /// in their places, filed nowhere. Their owner has to [expire](Self::expire) them or file them
    /// again.
    pub(crate) fn flush_in_place(
        &mut self,
        expiration: Expiration,
        now: u64,
        arm: impl FnMut(Expiration),
        mut see: impl FnMut(Key, &mut T),
    ) -> Option<Expiration> {
        self.flush_by(expiration, now, arm, |core, index, due| {
            let key = core.entries.key_at(index);
            let entry = core.entries.at_mut(index);
            let is_due = entry.deadline.get() <= due;
            if is_due {
                see(key, &mut entry.task);
            }
            is_due
        })
    }

    /// Flushes a batch. `expire` says whether it took an entry that is due at a given time, or
    /// whether the entry has to wait.
    #[inline]
    fn flush_by(
        &mut self,
        expiration: Expiration,
        now: u64,
        mut arm: impl FnMut(Expiration),
        mut expire: impl FnMut(&mut Self, u32, u64) -> bool,
    ) -> Option<Expiration> {
        let mut batch = std::mem::take(&mut self.batch);
        let expiration = self.wheels.begin_flush(expiration);
        let Expiration { bucket, tick: expires, start, .. } = expiration;
        self.wheels.take_front(bucket, BATCH, &mut batch);
        if expires < start {
            self.cascade(bucket, start, &mut batch, &mut arm);
        } else {
            // This is a separate loop, so that the cache misses of the whole batch overlap.
            batch.retain(|reference| self.is_live(*reference));
            // An extended entry has to wait for its new tick, even if that tick has come by now, so
            // that entries leave in the order of their ticks.
            let due = if bucket.level == ELAPSED {
                self.file_extended(bucket, &mut batch, &mut arm);
                now
            } else {
                self.ticks.start_of(start)
            };
            for reference in &batch {
                work::count(1);
                if !expire(self, reference.index, due) {
                    self.file_by_deadline(bucket, reference.index, &mut arm);
                }
            }
        }
        batch.clear();
        self.batch = batch;
        (!self.wheels.disarm_if_empty(bucket)).then_some(expiration)
    }

    /// Files references again that were taken from the overflow bucket that starts at `start`.
    fn cascade(
        &mut self,
        bucket: BucketId,
        start: u64,
        batch: &mut Vec<Reference>,
        arm: &mut impl FnMut(Expiration),
    ) {
        // Stale references are moved with the others unless there are many: finding one costs a
        // cache miss, whereas moving it touches no entry.
        // mutants(< == >= - * %): only the pace.
        if self.wheels.len() + batch.len() > self.entries.len() + self.entries.len() / 8 {
            batch.retain(|reference| self.is_live(*reference));
        }
        self.counters.cascaded += batch.len() as u64;
        let low_bits_suffice = self.wheels.low_bits_suffice(bucket);
        for &reference in &*batch {
            work::count(1);
            if low_bits_suffice {
                let tick = start + u64::from(reference.tick.wrapping_sub(start as u32));
                self.wheels.file_out_of(bucket, reference, tick, &mut *arm);
            } else if self.is_live(reference) {
                self.file_by_deadline(bucket, reference.index, arm);
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
        arm: &mut impl FnMut(Expiration),
    ) {
        batch.retain(|reference| {
            work::count(1);
            let tick = self.ticks.ceil(self.entries.at(reference.index).deadline.get());
            let stays = self.wheels.has_elapsed(*reference, tick);
            if !stays {
                self.file_by_deadline(from, reference.index, arm);
            }
            stays
        });
    }

    /// Files an entry of the bucket `from` again, under the tick of its deadline.
    fn file_by_deadline(&mut self, from: BucketId, index: u32, arm: &mut impl FnMut(Expiration)) {
        let tick = self.ticks.ceil(self.entries.at(index).deadline.get());
        let reference = self.file_anew(index, tick);
        self.wheels.file_out_of(from, reference, tick, arm);
    }
}
