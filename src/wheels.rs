//! The wheels: all levels of one shard, and the shard's time.
//!
//! Files references by tick and takes them out again; does not know what they refer to. `current` is
//! the wheels' own time. It moves when a bucket is flushed, to that bucket's expiration, as in
//! Kafka's wheel; and it leaps to the present when nothing is due before that ([`Wheels::leap`]), so
//! that after an idle hour a short timer is filed as finely as at the start.

use crate::bucket::{Blocks, Bucket, BucketId, Reference};
use crate::delay_queue::{ELAPSED, Expiration};
use crate::slab::Key;
use crate::wheel::TimingWheel;

const ELAPSED_BUCKET: BucketId = BucketId { level: ELAPSED, slot: 0 };

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Wheels {
    shard: u32,
    size: usize,
    current: u64,
    blocks: Blocks,
    /// Level 0, and as many overflow wheels as far ticks have needed so far.
    levels: Vec<TimingWheel>,
    /// What was filed under a tick that is not after `current`.
    elapsed: Bucket,
    /// References in all buckets.
    len: usize,
}

impl Wheels {
    /// Empty wheels of `size` slots, a power of two from 4 on, whose time starts at `current`.
    pub(crate) fn new(shard: u32, size: usize, current: u64) -> Self {
        Wheels {
            shard,
            size,
            current,
            blocks: Blocks::new(),
            levels: vec![TimingWheel::new(0, size)],
            elapsed: Bucket::new(),
            len: 0,
        }
    }

    /// How many references are filed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts a reference into the bucket for `tick`, making the wheels that this needs. Returns the
    /// bucket's expiration if that was newly armed.
    pub(crate) fn file(&mut self, reference: Reference, tick: u64) -> Option<Expiration> {
        let (bucket, id, expires, start) = if tick <= self.current {
            (&mut self.elapsed, ELAPSED_BUCKET, 0, 0)
        } else {
            let level = TimingWheel::level_for(self.size, self.current, tick);
            while self.levels.len() <= level {
                self.levels.push(TimingWheel::new(self.levels.len(), self.size));
            }
            let wheel = &mut self.levels[level];
            let (slot, start) = (wheel.slot_of(tick), wheel.start_of(tick));
            let expires = wheel.expiration_of(start);
            let id = BucketId { level: level as u8, slot: slot as u32 };
            (&mut wheel.buckets[slot], id, expires, start)
        };
        bucket.push(&mut self.blocks, reference);
        self.len += 1;
        let newly_armed = !std::mem::replace(&mut bucket.armed, true);
        newly_armed.then_some(Expiration { tick: expires, start, bucket: id, shard: self.shard })
    }

    /// Puts a reference back into the bucket that it was just taken from.
    pub(crate) fn put_back(&mut self, id: BucketId, reference: Reference) {
        let (bucket, blocks) = self.bucket_mut(id);
        bucket.push(blocks, reference);
        self.len += 1;
    }

    /// The bucket into which a reference for `tick` would go, if that is one of an overflow wheel
    /// that is armed already.
    pub(crate) fn joins_far_bucket(&self, tick: u64) -> bool {
        if tick <= self.current {
            return false;
        }
        let level = TimingWheel::level_for(self.size, self.current, tick);
        let wheel = self.levels.get(level);
        level > 0 && wheel.is_some_and(|wheel| wheel.buckets[wheel.slot_of(tick)].armed)
    }

    /// Whether a reference for `tick` would go into an overflow wheel.
    pub(crate) fn is_far(&self, tick: u64) -> bool {
        tick.saturating_sub(self.current) >= self.size as u64
    }

    /// Lets the time leap to `tick`. Only if no armed bucket expires by then.
    pub(crate) fn leap(&mut self, tick: u64) {
        self.current = self.current.max(tick);
    }

    /// Takes at most `limit` references from the front of a bucket; leaves it armed.
    pub(crate) fn take_front(&mut self, id: BucketId, limit: usize, out: &mut Vec<Reference>) {
        let before = out.len();
        let (bucket, blocks) = self.bucket_mut(id);
        bucket.take_front(blocks, limit, out);
        self.len -= out.len() - before;
    }

    pub(crate) fn front(&self, id: BucketId) -> Option<Reference> {
        self.bucket(id).front(&self.blocks)
    }

    /// Drops the first reference of a bucket; leaves it armed.
    pub(crate) fn pop_front(&mut self, id: BucketId) {
        let (bucket, blocks) = self.bucket_mut(id);
        if bucket.len() > 0 {
            bucket.pop_front(blocks);
            self.len -= 1;
        }
    }

    /// Disarms a bucket if it is empty; whether it is.
    pub(crate) fn disarm_if_empty(&mut self, id: BucketId) -> bool {
        let (bucket, _) = self.bucket_mut(id);
        bucket.armed = bucket.len() > 0;
        !bucket.armed
    }

    /// Drops the reference to `key`, which was filed under a tick with these low 32 bits, if it is the
    /// first of its bucket. Looks where it would be filed now: so it does not find one that lies
    /// further ahead than 32 bits reach, or in a coarser wheel than it would now.
    pub(crate) fn pop_if_first(&mut self, tick: u32, key: Key) {
        let ahead = tick.wrapping_sub(self.current as u32);
        let Some(tick) = self.current.checked_add(u64::from(ahead)) else { return };
        let level = TimingWheel::level_for(self.size, self.current, tick);
        let Some(wheel) = self.levels.get_mut(level) else { return };
        let slot = wheel.slot_of(tick);
        let bucket = &mut wheel.buckets[slot];
        if bucket.front(&self.blocks).is_some_and(|front| front.key == key) {
            bucket.pop_front(&mut self.blocks);
            self.len -= 1;
        }
    }

    /// Whether the low 32 bits of a tick, and the bucket that it was filed in, tell the whole tick.
    pub(crate) fn low_bits_suffice(&self, id: BucketId) -> bool {
        self.levels[id.level as usize].slot_ticks() <= 1 << 32
    }

    /// The bucket with this ordinal: the elapsed one, then the slots of level 0, of level 1, ...
    pub(crate) fn nth_bucket(&self, ordinal: usize) -> Option<BucketId> {
        let Some(n) = ordinal.checked_sub(1) else { return Some(ELAPSED_BUCKET) };
        let (level, slot) = (n / self.size, n % self.size);
        (level < self.levels.len()).then_some(BucketId { level: level as u8, slot: slot as u32 })
    }

    pub(crate) fn bucket_len(&self, id: BucketId) -> usize {
        self.bucket(id).len()
    }

    /// The wheels, finest first, each as the ticks that a slot spans and its buckets.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (u64, &[Bucket])> {
        self.levels.iter().map(|wheel| (wheel.slot_ticks(), &*wheel.buckets))
    }

    pub(crate) fn elapsed(&self) -> &Bucket {
        &self.elapsed
    }

    fn bucket(&self, id: BucketId) -> &Bucket {
        match id.level {
            ELAPSED => &self.elapsed,
            level => &self.levels[level as usize].buckets[id.slot as usize],
        }
    }

    fn bucket_mut(&mut self, id: BucketId) -> (&mut Bucket, &mut Blocks) {
        let bucket = match id.level {
            ELAPSED => &mut self.elapsed,
            level => &mut self.levels[level as usize].buckets[id.slot as usize],
        };
        (bucket, &mut self.blocks)
    }

    /// Checks every bucket. Calls `check` with each reference and the first and last tick that its
    /// bucket may hold; `is_queued` says how often a bucket is in the delay queue.
    pub(crate) fn assert_invariants(
        &self,
        mut is_queued: impl FnMut(u32, BucketId) -> usize,
        mut check: impl FnMut(Reference, u64, u64),
    ) {
        self.blocks.assert_invariants();
        let mut len = 0;
        let mut check_bucket = |bucket: &Bucket, id: BucketId, first: u64, last: u64| {
            assert!(bucket.armed || bucket.len() == 0, "{id:?} has entries and is not armed");
            assert_eq!(is_queued(self.shard, id), usize::from(bucket.armed), "{id:?}");
            len += bucket.len();
            bucket.assert_invariants(&self.blocks, |reference| check(reference, first, last));
        };
        check_bucket(&self.elapsed, ELAPSED_BUCKET, 0, self.current);
        for (level, wheel) in self.levels.iter().enumerate() {
            // The window. A bucket in the slot of `current` is one that waits for its flush.
            let span = wheel.slot_ticks();
            let current = wheel.start_of(self.current);
            for ahead in 0..self.size as u64 {
                let first = span.checked_mul(ahead).and_then(|by| current.checked_add(by));
                let Some(first) = first else { break };
                let slot = wheel.slot_of(first);
                let id = BucketId { level: level as u8, slot: slot as u32 };
                check_bucket(&wheel.buckets[slot], id, first, first + (span - 1));
            }
        }
        assert_eq!(len, self.len);
    }
}
