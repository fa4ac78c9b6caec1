//! The wheels: all levels of one core, and the core's time.
//!
//! The wheels file references by tick and take them out again; they do not know what the references
//! refer to. `current` is the wheels' own time. It moves to the expiration of a bucket when that
//! bucket is flushed, as in Kafka's wheel. It leaps to the present when nothing is due before that
//! ([`Wheels::leap`]), so that after an idle hour a short timer is filed as finely as at the start.
//!
//! # The sweep
//! Takes stale references out of the buckets, a few per call.
//!
//! It visits all buckets in rounds. In a cheap round it leaves a bucket as soon as looking at it
//! does not pay: timers that are cancelled about in the order in which they were added leave their
//! stale references at the front. If that does not suffice, because the stale references are
//! scattered over large buckets, the next round is thorough and looks at every reference once. So
//! the work of a round is proportional to the number of filed references, and two rounds remove
//! every reference that was stale before.

use crate::wheel::bucket::{Blocks, Bucket, BucketId, Reference};
use crate::wheel::bucket_queue::{BucketQueue, ELAPSED, Expiration};
use crate::wheel::ticks::Span;
use alloc::vec::Vec;

/// An elapsed reference is filed in the second of two buckets. A turn begins by exchanging the two,
/// and flushes the first. So the references that its tasks add are left to the next turn.
const EXPIRING: BucketId = BucketId { level: ELAPSED, slot: 0 };
const COLLECTING: BucketId = BucketId { level: ELAPSED, slot: 1 };

/// Holds the references to what never expires. It is never armed, so nobody waits for it.
const NEVER: BucketId = BucketId { level: ELAPSED, slot: 2 };

/// So many buckets share a word of marks.
const MARKS: usize = u64::BITS as usize;

/// No bucket.
const NOWHERE: BucketId = BucketId { level: ELAPSED, slot: u32::MAX };

/// All levels of one core, and its time; see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Wheels {
    shard: u64,
    size: usize,
    /// That of level 0.
    span: Span,
    current: u64,
    /// The first tick that never comes.
    end: u64,
    blocks: Blocks,
    /// Each armed bucket, once.
    pub(crate) queue: BucketQueue,
    /// The slots of level 0, then those of the overflow wheels that ticks have needed so far.
    buckets: Vec<Bucket>,
    /// A bit for each of them, set if it was armed since the sweep last found it disarmed.
    marks: Vec<u64>,
    /// The buckets of no level: `EXPIRING` and `COLLECTING`, with the references that were already
    /// due when they were filed, and `NEVER`.
    extra: [Bucket; 3],
    /// The number of references in all buckets.
    len: usize,
    /// The ordinal of the bucket that is being swept.
    swept: usize,
    /// How many of its references remain to be looked at in this round; 0 before the first look.
    left: u32,
    /// Whether this round of the sweep is a thorough one.
    is_thorough: bool,
}

impl Wheels {
    /// Creates empty wheels of `size` slots, a power of two of at least 4, whose time starts at
    /// `current`.
    pub(crate) fn new(shard: u64, size: usize, current: u64) -> Self {
        Wheels {
            shard,
            size,
            span: Span::of(size),
            current,
            end: u64::MAX,
            blocks: Blocks::new(),
            queue: BucketQueue::default(),
            buckets: Vec::new(),
            marks: Vec::new(),
            extra: [Bucket::new(), Bucket::new(), Bucket::new()],
            len: 0,
            swept: 0,
            left: 0,
            is_thorough: false,
        }
    }

    /// Sets the first tick that never comes; by default, that is the last one.
    pub(crate) fn ending_at(self, end: u64) -> Self {
        Wheels { end, ..self }
    }

    /// Returns how many slots each wheel has.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns how many references are filed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts a reference into the bucket for `tick`, after making the wheels that this needs. Arms
    /// the bucket.
    #[inline]
    pub(crate) fn file(&mut self, reference: Reference, tick: u64) {
        self.file_out_of(NOWHERE, reference, tick);
    }

    /// Files a reference again that was taken out of the bucket `from`, which is being flushed.
    ///
    /// The reference is never filed in `from` again: otherwise the flush would not end. It cannot
    /// belong there, because the wheels' time has moved to the expiration of that bucket. If it did
    /// belong there nevertheless, the next turn would look at it again.
    ///
    /// Always inlined: a call would take a fifth of the time of a cascade.
    #[inline(always)]
    pub(crate) fn file_out_of(&mut self, from: BucketId, reference: Reference, tick: u64) {
        if tick <= self.current {
            return self.file_elapsed(reference, tick);
        }
        if tick >= self.end {
            self.len += 1;
            return self.extra[NEVER.slot as usize].push(&mut self.blocks, reference);
        }
        let (level, span) = self.span.reaching(tick, self.current, self.size);
        let slot = span.slot_of(tick, self.size);
        let id = BucketId { level: level as u8, slot: slot as u32 };
        if id == from {
            debug_assert!(false, "an entry would be filed where it came from");
            return self.file_elapsed(reference, tick);
        }
        let index = level * self.size + slot;
        if self.buckets.len() <= index {
            self.make_levels(level);
        }
        let bucket = &mut self.buckets[index];
        bucket.push(&mut self.blocks, reference);
        self.len += 1;
        if !bucket.armed {
            bucket.armed = true;
            self.marks[index / MARKS] |= 1 << (index % MARKS);
            self.queue.offer(Self::expiration(self.shard, id, span, tick));
        }
    }

    /// Puts a reference for `tick` into the bucket for references that are due at once.
    #[inline(never)]
    pub(crate) fn file_elapsed(&mut self, reference: Reference, tick: u64) {
        let (bucket, blocks) = self.bucket_mut(COLLECTING);
        bucket.push(blocks, Reference { tick: mark(tick), ..reference });
        if !core::mem::replace(&mut bucket.armed, true) {
            let shard = self.shard;
            self.queue.offer(Expiration { tick: 0, start: 0, bucket: COLLECTING, shard });
        }
        self.len += 1;
    }

    /// Returns whether an elapsed reference, whose entry now has its deadline in `tick`, still
    /// belongs among the elapsed ones: it was filed under `tick`, or the time has passed `tick`.
    pub(crate) fn has_elapsed(&self, reference: Reference, tick: u64) -> bool {
        tick <= self.current || reference.tick == mark(tick)
    }

    /// Moves the time to the expiration of a bucket that has to be flushed. Returns that
    /// expiration, or the expiration of the bucket that has to be flushed instead.
    pub(crate) fn begin_flush(&mut self, mut expiration: Expiration) -> Expiration {
        self.leap(expiration.tick);
        if expiration.bucket == COLLECTING {
            // The other one is empty: a turn polls `EXPIRING` first.
            self.extra.swap(0, 1);
            expiration.bucket = EXPIRING;
        }
        expiration
    }

    /// Puts a reference into the bucket for `tick` if that bucket belongs to an overflow wheel and
    /// is armed already. Returns whether it did.
    #[inline(always)]
    pub(crate) fn join_far(&mut self, reference: Reference, tick: u64) -> bool {
        if !self.is_far(tick) {
            return false;
        }
        let (level, span) = self.span.reaching(tick, self.current, self.size);
        let index = level * self.size + span.slot_of(tick, self.size);
        let Some(bucket) = self.buckets.get_mut(index).filter(|bucket| bucket.armed) else {
            return false;
        };
        bucket.push(&mut self.blocks, reference);
        self.len += 1;
        true
    }

    #[cold]
    fn make_levels(&mut self, highest: usize) {
        let wanted = (highest + 1) * self.size;
        self.buckets.reserve_exact(wanted - self.buckets.len());
        self.buckets.resize(wanted, Bucket::new());
        self.marks.resize(wanted.div_ceil(MARKS), 0);
    }

    #[inline(never)]
    fn expiration(shard: u64, bucket: BucketId, span: Span, tick: u64) -> Expiration {
        let start = span.start_of(tick);
        Expiration { tick: span.expiration_of(start), start, bucket, shard }
    }

    /// Returns whether a reference for `tick` would go into an overflow wheel.
    #[inline]
    pub(crate) fn is_far(&self, tick: u64) -> bool {
        tick > self.current && tick - self.current >= self.size as u64
    }

    /// Lets the time leap to `tick`. Call it only if no armed bucket expires by then.
    pub(crate) fn leap(&mut self, tick: u64) {
        self.current = self.current.max(tick);
    }

    /// Takes at most `limit` references from the front of a bucket into an empty vector; leaves the
    /// bucket armed.
    pub(crate) fn take_front(&mut self, id: BucketId, limit: usize, out: &mut Vec<Reference>) {
        debug_assert!(out.is_empty(), "what is in it would be counted as taken");
        let (bucket, blocks) = self.bucket_mut(id);
        bucket.take_front(blocks, limit, out);
        self.len -= out.len();
    }

    /// Returns how many references a bucket holds.
    pub(crate) fn len_of(&self, id: BucketId) -> usize {
        self.bucket(id).len()
    }

    pub(crate) fn front(&self, id: BucketId) -> Option<Reference> {
        self.bucket(id).front(&self.blocks)
    }

    /// Drops the first reference of a bucket, which must not be empty; leaves it armed.
    pub(crate) fn pop_front(&mut self, id: BucketId) {
        let (bucket, blocks) = self.bucket_mut(id);
        bucket.drop_front(blocks, 1);
        self.len -= 1;
    }

    /// Disarms a bucket if it is empty. Returns whether it is.
    pub(crate) fn disarm_if_empty(&mut self, id: BucketId) -> bool {
        let (bucket, _) = self.bucket_mut(id);
        bucket.armed = bucket.len() > 0;
        !bucket.armed
    }

    /// Returns the bucket with this ordinal: those of no level come first, then the slots of level
    /// 0, of level 1, and so on.
    pub(crate) fn nth_bucket(&self, ordinal: usize) -> Option<BucketId> {
        let Some(n) = ordinal.checked_sub(self.extra.len()) else {
            return Some(BucketId { level: ELAPSED, slot: ordinal as u32 });
        };
        // Shifted, not divided: the size is a power of two.
        let (level, slot) = (n >> self.size.trailing_zeros(), n & (self.size - 1));
        (n < self.buckets.len()).then_some(BucketId { level: level as u8, slot: slot as u32 })
    }

    /// Returns when a bucket has to be flushed, if it is armed.
    pub(crate) fn armed(&self, id: BucketId) -> Option<Expiration> {
        if !self.bucket(id).armed {
            return None;
        }
        if id.level == ELAPSED {
            return Some(Expiration { tick: 0, start: 0, bucket: id, shard: self.shard });
        }
        let span = self.span(id.level);
        let slot_of_current = span.slot_of(self.current, self.size) as u64;
        let ahead = u64::from(id.slot).wrapping_sub(slot_of_current) & (self.size as u64 - 1);
        let tick = self.current.saturating_add(ahead.saturating_mul(span.ticks()));
        Some(Self::expiration(self.shard, id, span, tick))
    }

    /// Returns how many ticks each slot of a level spans.
    pub(crate) fn span(&self, level: u8) -> Span {
        self.span.at(level.into())
    }

    #[inline]
    fn bucket(&self, id: BucketId) -> &Bucket {
        match id.level {
            ELAPSED => &self.extra[id.slot as usize],
            level => &self.buckets[usize::from(level) * self.size + id.slot as usize],
        }
    }

    #[inline]
    fn bucket_mut(&mut self, id: BucketId) -> (&mut Bucket, &mut Blocks) {
        let bucket = match id.level {
            ELAPSED => &mut self.extra[id.slot as usize],
            level => &mut self.buckets[usize::from(level) * self.size + id.slot as usize],
        };
        (bucket, &mut self.blocks)
    }

    /// Checks every bucket. Calls `check` with each reference and the first and last tick that its
    /// bucket may hold.
    pub(crate) fn assert_invariants(&self, mut check: impl FnMut(Reference, u64, u64)) {
        self.blocks.assert_invariants();
        let mut len = 0;
        let mut check_bucket = |bucket: &Bucket, id: BucketId, first: u64, last: u64| {
            let waits = bucket.len() > 0 && id != NEVER;
            assert!(bucket.armed || !waits, "{id:?} has entries and is not armed");
            let queued = self.queue.iter().filter(|expiration| expiration.bucket == id).count();
            assert_eq!(queued, usize::from(bucket.armed), "{id:?}");
            len += bucket.len();
            bucket.assert_invariants(&self.blocks, |reference| check(reference, first, last));
        };
        check_bucket(&self.extra[0], EXPIRING, 0, self.current);
        check_bucket(&self.extra[1], COLLECTING, 0, self.current);
        check_bucket(&self.extra[2], NEVER, 0, u64::MAX);
        for (level, buckets) in self.buckets.chunks(self.size).enumerate() {
            // The window. A bucket in the slot of `current` waits for its flush.
            let span = self.span(level as u8);
            let (ticks, current) = (span.ticks(), span.start_of(self.current));
            for ahead in 0..self.size as u64 {
                let first = ticks.checked_mul(ahead).and_then(|by| current.checked_add(by));
                let Some(first) = first else { break };
                let slot = span.slot_of(first, self.size);
                let id = BucketId { level: level as u8, slot: slot as u32 };
                check_bucket(&buckets[slot], id, first, first + (ticks - 1));
                let index = level * self.size + slot;
                let is_marked = self.marks[index / MARKS] >> (index % MARKS) & 1 == 1;
                assert!(is_marked || buckets[slot].len() == 0, "{id:?} is not marked");
            }
        }
        assert_eq!(len, self.len);
    }
}

/// Returns what stands for `tick` in an elapsed reference. It depends on all 64 bits, so an entry
/// that was extended by 2^32 ticks is noticed too.
fn mark(tick: u64) -> u32 {
    (tick.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

/// The number of references after which one call ends, and the most buckets or [`MARKS`] that it
/// looks at.
const STEP: usize = 32;

impl Wheels {
    /// Continues the sweep, a block of references at a time, until enough references were looked
    /// at.
    #[inline(never)]
    pub(crate) fn sweep(
        &mut self,
        batch: &mut Vec<Reference>,
        is_live: impl Fn(Reference) -> bool,
    ) {
        let (mut looked_at, mut steps) = (0, STEP);
        while looked_at < STEP && steps > 0 {
            // mutants: `looked_at` ends the call as well, since there are references.
            steps -= 1;
            let bucket = match self.swept.checked_sub(self.extra.len()) {
                None => &mut self.extra[self.swept],
                Some(n) => {
                    let Some(mark) = self.marks.get_mut(n / MARKS) else {
                        // Called again at the end of a round: that round was not enough.
                        (self.swept, self.left, self.is_thorough) = (0, 0, !self.is_thorough);
                        continue;
                    };
                    let ahead = (*mark >> (n % MARKS)).trailing_zeros() as usize;
                    if ahead > 0 {
                        self.swept += ahead.min(MARKS - n % MARKS);
                        self.left = 0;
                        continue;
                    }
                    let bucket = &mut self.buckets[n];
                    if !bucket.armed {
                        *mark &= !(1 << (n % MARKS));
                    }
                    bucket
                }
            };
            let len = bucket.len();
            if len == 0 {
                (self.swept, self.left) = (self.swept + 1, 0);
                continue;
            }
            let (taken, live) = bucket.sweep_front(&mut self.blocks, batch, &is_live);
            self.len -= taken - live;
            looked_at += taken;
            // The bucket may have been flushed since the last look: then fewer references are left.
            let left = if self.left == 0 { len } else { len.min(self.left as usize) };
            // mutants(/): whether the rest is looked at in this round or the next.
            let pays = self.is_thorough || live * 4 <= taken * 3;
            self.left = if pays { left.saturating_sub(taken) as u32 } else { 0 };
            self.swept += usize::from(self.left == 0);
        }
    }
}
