//! The timing wheel: entries, the buckets of level 0 and of the overflow wheels needed so far, and
//! a queue of bucket expirations.
//!
//! Plain data without clocks and locks. [`LocalTimer`](crate::LocalTimer) is a timing wheel and the
//! present; each shard of a [`Timer`](crate::Timer) has one behind its lock.
//!
//! Filing an entry puts a reference to it into a bucket. Each filing has a number, stored in the
//! reference and as the entry's tag in the slab. A reference is live while its entry is present and
//! has this number. Cancelling an entry frees its place at once, and leaves a stale reference
//! behind.
//!
//! A live reference only means: look at this entry at this tick. The entry's deadline decides
//! whether it is due, so no reference expires anything early or twice.
//!
//! # The current tick stays open
//! An entry whose deadline has passed is filed under the present tick, whose bucket may be armed
//! again after its flush: the entry expires with the next turn, even on a clock that stands still.
//! [`flush`] tells why a turn ends all the same (case 1).
//!
//! Invariants, checked by [`TimingWheel::assert_invariants`]:
//! - every entry whose deadline can come has exactly one live reference;
//! - a bucket with references is armed: it is in the queue of expirations, once;
//! - a reference is in the bucket for its tick, inside its wheel's window;
//! - an entry is filed under the tick of its deadline or an earlier one, or under the tick in which
//!   its deadline had passed.

use crate::wheel::bucket::{Blocks, Bucket, Entry, Reference, Sweep};
use crate::wheel::counters::Counters;
use crate::wheel::expirations::{Expirations, First};
use crate::wheel::level::{Expiration, Levels};
use crate::wheel::slab::{Key, Slab};
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use alloc::vec::Vec;
use core::mem;

pub(crate) mod flush;

/// The number of entries that one flush moves. Bounds how long others wait for the lock.
pub(crate) const BATCH: usize = 128;

pub(crate) type Entries<T> = Slab<Entry<T>>;

/// A single-threaded timer; see the [module](self).
///
/// # In steps
/// A wheel of 8 slots is at tick 42. A slot of level 1 spans 4 ticks, one of level 2 spans 16. A
/// bucket's slot is its first tick, divided by the span, modulo 8:
///
/// ```text
/// tick                                                   level  slot  ticks       expires
///   42  A is added for 45: level 0 reaches up to 49        0      5    45            45
///       B is added for 61: level 1 reaches up to 71        1      7    60 ..  63     57
///       C is added for 130: level 2 reaches up to 159      2      0   128 .. 143    116
///       A is extended to 49: only its deadline is written
///   45  A is not due, and is filed again                   0      1    49            49
///   49  A expires
///   57  B cascades, 3 ticks before 60                      0      5    61            61
///   61  B expires
///  116  C cascades, 12 ticks before 128                    1      0   128 .. 131    125
///  125  C cascades, 3 ticks before 128                     0      2   130           130
///  130  C expires
/// ```
///
/// At 116 level 0 reaches up to 123 only; [`level`](crate::wheel::level) tells why level 1 takes
/// all of 128 to 143 by then.
#[derive(Clone, Debug)]
pub(crate) struct TimingWheel<T> {
    length: TickLength,
    levels: Levels,
    /// The last deadline that comes. A later one is filed nowhere, except at the end of time.
    last: Nanos,
    /// The tick that was reached. It moves to the expiration of a flushed bucket, as in Kafka's
    /// wheel, and leaps to the present when nothing is due before: short timers are filed as finely
    /// after an idle hour as at the start.
    current: Tick,
    /// The slots of level 0, then those of the overflow wheels.
    buckets: Vec<Bucket>,
    /// The rest of the bucket of level 0 that is being flushed.
    taken: Bucket,
    /// The tick whose bucket was taken out last, and the turn that did.
    taken_at: TakenAt,
    pub(super) blocks: Blocks,
    pub(super) entries: Entries<T>,
    /// In all buckets.
    references: usize,
    /// The number of the latest filing; wraps around after 2^32. A stale reference may then look
    /// live, even in the same batch: each is looked at as if the other one had expired the entry,
    /// or filed it again.
    pub(super) filings: u32,
    expirations: Expirations,
    /// The references being moved; empty between calls.
    scratch: Vec<Reference>,
    sweep: Sweep,
    counters: Counters,
    /// Whether a bucket was armed since [`take_first`](Self::take_first) was last called.
    has_armed: bool,
}

/// An armed bucket, as a snapshot shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArmedBucket {
    pub(crate) level: usize,
    /// Counted from the slot of the present.
    pub(crate) slots_ahead: usize,
    /// Until the bucket has to be flushed.
    pub(crate) wait: Nanos,
    /// The references in the bucket, stale ones included.
    pub(crate) entries: usize,
}

#[derive(Clone, Copy, Debug)]
struct TakenAt {
    tick: Tick,
    turn: u64,
}

impl<T> TimingWheel<T> {
    /// Creates an empty wheel with `size` slots in each level, a power of two of at least 4. Its
    /// time starts at `current`, and ends with the deadline `last`.
    pub(crate) fn new(length: TickLength, size: usize, current: Tick, last: Nanos) -> Self {
        TimingWheel {
            length,
            levels: Levels::new(size),
            last,
            current,
            buckets: Vec::new(),
            taken: Bucket::EMPTY,
            taken_at: TakenAt {
                tick: Tick::NEVER,
                turn: 0,
            },
            blocks: Slab::new(),
            entries: Slab::new(),
            references: 0,
            filings: 0,
            expirations: Expirations::default(),
            scratch: Vec::new(),
            sweep: Sweep::CHEAP,
            counters: Counters::default(),
            has_armed: false,
        }
    }

    /// Leaves the present tick to the turns after this one, as if this one had flushed it.
    pub(crate) fn after(mut self, turn: u64) -> Self {
        self.taken_at = TakenAt {
            tick: self.current,
            turn,
        };
        self
    }

    /// Starts over as another empty wheel. Keeps the slab, so that no key is issued again.
    pub(crate) fn restart(&mut self, fresh: Self) {
        let mut entries = mem::replace(&mut self.entries, Slab::new());
        entries.give_all_back();
        *self = TimingWheel {
            entries,
            filings: self.filings,
            ..fresh
        };
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn deadline(&self, key: Key) -> Option<Nanos> {
        self.entries.get(key).map(Entry::deadline)
    }

    /// Adds an entry, and returns the reference to be filed. Always inlined: returning the key
    /// through memory costs 2 of W2's 55 ns.
    #[inline(always)]
    pub(crate) fn insert(&mut self, due: Due, item: T) -> (Key, Reference) {
        self.filings = self.filings.wrapping_add(1);
        let filing = self.filings;
        let key = self.entries.insert(Entry::new(due.deadline, item), filing);
        (
            key,
            Reference {
                tick: due.tick.0 as u32,
                index: key.index,
                filing,
            },
        )
    }

    /// Files a reference to an entry. Reads the present only if it is not in `due`, and the entry's
    /// tick has no armed bucket in an overflow wheel.
    #[inline(always)]
    pub(crate) fn file(&mut self, reference: Reference, due: Due, now: impl FnOnce() -> Nanos) {
        if !self.join_overflow(reference, due.tick) {
            self.file_at(reference, due, due.present.unwrap_or_else(now));
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.entries.get(key).map(|entry| &entry.item)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get_mut(key).map(|entry| &mut entry.item)
    }

    /// Returns the item of a present entry.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &T {
        &self.entries.at(index).item
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        &mut self.entries.at_mut(index).item
    }

    /// Returns the deadline of a present entry.
    #[inline]
    pub(crate) fn deadline_at(&self, index: u32) -> Nanos {
        self.entries.at(index).deadline()
    }

    /// Returns how many chunks the entries lie in: whoever visits all of them does so by chunks, so
    /// that no lock is held for long.
    pub(crate) fn chunks(&self) -> usize {
        self.entries.chunks()
    }

    pub(crate) fn keys_of(&self, chunk: usize) -> impl Iterator<Item = Key> {
        self.entries.of_chunk(chunk).map(|(key, _)| key)
    }

    pub(crate) fn count(&self, counters: &mut Counters) {
        counters.absorb(&self.counters);
    }

    #[inline]
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.remove(key)?;
        self.counters.cancelled += 1;
        self.sweep_if_stale();
        Some(entry.item)
    }

    /// Takes an entry out in another way than by a flush. `ends` returns the present if the entry
    /// has expired, and `None` if it is cancelled.
    #[inline]
    pub(crate) fn end_at(
        &mut self,
        index: u32,
        ends: impl FnOnce(&mut T) -> Option<Nanos>,
    ) -> Option<T> {
        let mut expired = None;
        let entry = self.entries.remove_if(index, |entry| {
            expired = ends(&mut entry.item);
            true
        })?;
        match expired {
            Some(now) => self.counters.record_expired(now.since(entry.deadline())),
            None => self.counters.cancelled += 1,
        }
        self.sweep_if_stale();
        Some(entry.item)
    }

    /// Moves a present entry to a later deadline; an earlier one has no effect. Only writes the
    /// deadline: the entry is filed again when its bucket is flushed. Returns whether the new
    /// deadline never comes, unless it has passed.
    #[inline]
    pub(crate) fn extend(&mut self, index: u32, deadline: Nanos) -> bool {
        let entry = self.entries.at_mut(index);
        if deadline <= entry.deadline() {
            return false;
        }
        entry.set_deadline(deadline);
        self.counters.rescheduled += 1;
        deadline > self.last
    }

    /// Unfiles a present entry, so that no thread wakes up for it. Its reference is stale now, and
    /// no sweep follows: the call that cancels the entry or files it again makes one.
    pub(crate) fn unfile(&mut self, index: u32) {
        self.next_filing(index);
    }

    /// Moves a present entry to another deadline. Files it again only if it is filed later than
    /// that. Ticks are compared: a later deadline that has passed by now can mean an earlier tick.
    #[inline]
    pub(crate) fn move_to(&mut self, index: u32, due: Due, now: impl FnOnce() -> Nanos) {
        let entry = self.entries.at_mut(index);
        let before = entry.deadline();
        entry.set_deadline(due.deadline);
        self.counters.rescheduled += u64::from(due.deadline != before);
        let is_later = due.deadline.0 >= before.0.saturating_add(self.length.nanos());
        if is_later && due.deadline <= self.last {
            return;
        }
        let present = due.present.unwrap_or_else(now);
        // An entry that never comes loses its reference, so that nobody wakes up for it.
        let never_comes = due.deadline > self.last.max(present);
        if never_comes || before > self.length.start_of(self.tick_of(due, present)) {
            self.file_again(index, due, present);
        }
    }

    /// Files an entry anew. Its former reference is stale from now on.
    #[inline(never)]
    pub(crate) fn file_again(&mut self, index: u32, due: Due, present: Nanos) {
        let filing = self.next_filing(index);
        self.file_at(
            Reference {
                tick: 0,
                index,
                filing,
            },
            due,
            present,
        );
        self.sweep_if_stale();
    }

    fn next_filing(&mut self, index: u32) -> u32 {
        self.filings = self.filings.wrapping_add(1);
        self.entries.set_tag(index, self.filings);
        self.filings
    }

    #[inline]
    pub(crate) fn first(&self) -> First {
        let first = self.expirations.waiting();
        let tick = first.map_or(Tick::NEVER, |first| first.tick);
        let is_overflow = first.is_some_and(|first| first.is_overflow());
        // If `taken` is empty, the tick's bucket was armed again after it was taken out: this turn
        // is through with it. An overflow wheel's bucket with the same tick still belongs to it.
        let was_flushed = self.taken_at.tick == tick && self.taken.len() == 0 && !is_overflow;
        let turn = if was_flushed { self.taken_at.turn } else { 0 };
        let cascade = self
            .expirations
            .cascading()
            .map_or(Tick::NEVER, |first| first.start);
        First {
            tick,
            turn,
            cascade,
        }
    }

    #[inline]
    fn tick_of(&self, due: Due, present: Nanos) -> Tick {
        if due.deadline <= present {
            self.length.floor(present)
        } else {
            due.tick
        }
    }

    /// Puts a reference into the bucket of its tick, if that is armed and in an overflow wheel: no
    /// clock is read. The entry may be due already. It is not late: that bucket is cascaded before
    /// the present tick is flushed (case 2 of [`flush`]).
    #[inline(always)]
    fn join_overflow(&mut self, reference: Reference, tick: Tick) -> bool {
        // mutants(<=): only the pace. `file_at` files it as well.
        if tick.0.saturating_sub(self.current.0) < self.levels.size() as u64 {
            return false;
        }
        // A bucket that is not armed could be nearer once the time has leapt: `file_at` does that.
        let index = self.levels.bucket_of(tick, self.current);
        match self.buckets.get_mut(index) {
            Some(bucket) if bucket.armed => {
                bucket.push(&mut self.blocks, reference);
                self.references += 1;
                true
            }
            _ => false,
        }
    }

    /// Files a reference at a known present. Lets the time leap to the present before, if the entry
    /// is far away and nothing is due. A wheel of 8 slots that was last flushed at tick 0 would
    /// file tick 1003 in level 4, and cascade it four times, even if the present is 1000.
    #[inline]
    fn file_at(&mut self, reference: Reference, due: Due, present: Nanos) {
        if due.deadline > self.last.max(present) {
            return;
        }
        let tick = self.tick_of(due, present);
        if tick.0.saturating_sub(self.current.0) >= self.levels.size() as u64 {
            let First { tick, cascade, .. } = self.first();
            let present = self.length.floor(present);
            // Not over an armed bucket: that of tick 6 lies in slot 6, which the tick 1006 would
            // share with it.
            if cascade == Tick::NEVER && tick > present {
                self.leap(present);
            }
        }
        self.push(reference, tick);
    }

    /// Lets the time leap to `tick`, by which no armed bucket may expire.
    pub(crate) fn leap(&mut self, tick: Tick) {
        self.current = self.current.max(tick);
    }

    /// Puts a reference into the bucket for `tick`, and arms the bucket. Adds missing overflow
    /// wheels.
    #[inline(always)]
    pub(super) fn push(&mut self, reference: Reference, tick: Tick) {
        let tick = tick.max(self.current);
        let reference = Reference {
            tick: tick.0 as u32,
            ..reference
        };
        let index = self.levels.bucket_of(tick, self.current);
        if index >= self.buckets.len() {
            self.add_overflow_wheels(index);
        }
        let bucket = &mut self.buckets[index];
        bucket.push(&mut self.blocks, reference);
        self.references += 1;
        if !bucket.armed {
            bucket.armed = true;
            self.has_armed = true;
            self.expirations.push(self.levels.expiration(index, tick));
        }
    }

    /// Returns whether a bucket was armed since the last call of [`take_first`](Self::take_first).
    /// If none was, the first bucket has become no earlier.
    #[inline]
    pub(crate) fn has_armed(&self) -> bool {
        self.has_armed
    }

    /// Returns the first bucket, and takes all arming so far for known.
    pub(crate) fn take_first(&mut self) -> First {
        self.has_armed = false;
        self.first()
    }

    #[cold]
    fn add_overflow_wheels(&mut self, bucket: usize) {
        let wanted = (self.levels.level_of(bucket) + 1) * self.levels.size();
        self.buckets.reserve_exact(wanted - self.buckets.len());
        self.buckets.resize(wanted, Bucket::EMPTY);
    }

    /// Takes stale references off the front of the first bucket, and an empty bucket out of the
    /// queue, so that nobody wakes up for it. Does bounded work, and returns whether there may be
    /// more.
    pub(crate) fn trim(&mut self) -> bool {
        let TimingWheel {
            buckets,
            taken,
            blocks,
            entries,
            expirations,
            ..
        } = self;
        let Some(first) = expirations.cascading().or(expirations.waiting()) else {
            return false;
        };
        // `taken` belongs to the first bucket of level 0.
        let is_taken = !first.is_overflow() && taken.len() > 0;
        let bucket = if is_taken {
            taken
        } else {
            &mut buckets[first.bucket as usize]
        };
        self.references -=
            bucket.drop_front_while(blocks, BATCH, |reference| !is_live(entries, reference));
        if !is_taken && bucket.len() == 0 {
            bucket.armed = false;
            expirations.remove(first);
            return true;
        }
        bucket
            .front(blocks)
            .is_none_or(|front| !is_live(entries, &front))
    }

    /// Sweeps a few stale references if there are many, or if their blocks are spread over much
    /// memory. Called wherever one is left behind, so stale references never far outnumber live
    /// ones; and by each flush, because entries that expire leave the stale ones behind.
    #[inline]
    fn sweep_if_stale(&mut self) {
        // mutants(>=): from which number on it sweeps.
        if self.references as isize > 2 * self.len() as isize + self.sweep.allowed {
            self.sweep();
        }
    }

    #[inline(never)]
    fn sweep(&mut self) {
        let TimingWheel {
            buckets,
            blocks,
            entries,
            expirations,
            scratch,
            ..
        } = self;
        let is_live = |reference: &Reference| is_live(entries, reference);
        self.references -= self
            .sweep
            .step(buckets, blocks, expirations, scratch, is_live);
    }

    pub(crate) fn drain_chunk(&mut self, chunk: usize, mut out: impl FnMut(Nanos, T)) {
        let keys: Vec<Key> = self.keys_of(chunk).collect();
        for key in keys {
            if let Some(entry) = self.entries.remove(key) {
                self.counters.returned += 1;
                out(entry.deadline(), entry.item);
            }
        }
        if self.len() == 0 {
            self.buckets = Vec::new();
            self.taken = Bucket::EMPTY;
            self.blocks = Slab::new();
            self.references = 0;
            self.expirations = Expirations::default();
        }
    }

    /// Returns what is to be known of each armed bucket at `now`.
    pub(crate) fn armed_at(&self, now: Nanos) -> impl Iterator<Item = ArmedBucket> {
        let present = self.length.floor(now);
        self.armed().map(move |(expiration, buckets)| {
            let level = self.levels.level_of(expiration.bucket as usize);
            let span = self.levels.span_of(level);
            // The wheel's time may have passed `now`.
            let ahead = (expiration.start.0 / span).saturating_sub(present.0 / span) as usize;
            ArmedBucket {
                level,
                slots_ahead: ahead.min(self.levels.size() - 1),
                wait: self.length.start_of(expiration.tick).since(now),
                entries: buckets.iter().map(|bucket| bucket.len()).sum(),
            }
        })
    }

    /// Returns each armed bucket with its expiration and its part in `taken`.
    pub(super) fn armed(&self) -> impl Iterator<Item = (Expiration, [&Bucket; 2])> {
        self.expirations.iter().map(|expiration| {
            let is_taken = !expiration.is_overflow() && expiration.tick == self.taken_at.tick;
            let taken = if is_taken {
                &self.taken
            } else {
                &Bucket::EMPTY
            };
            (
                expiration,
                [&self.buckets[expiration.bucket as usize], taken],
            )
        })
    }

    pub(super) fn entries_of(&self, bucket: &Bucket) -> impl Iterator<Item = (u32, &Entry<T>)> {
        let live = bucket
            .iter(&self.blocks)
            .filter(|it| is_live(&self.entries, it));
        live.map(|reference| (reference.index, self.entries.at(reference.index)))
    }

    pub(crate) fn depth(&self) -> usize {
        self.buckets.len() / self.levels.size()
    }

    /// Returns the number of slots of each level.
    pub(crate) fn size(&self) -> usize {
        self.levels.size()
    }

    /// Returns the time that a slot of a level spans.
    pub(crate) fn span_of(&self, level: usize) -> Nanos {
        self.length.start_of(Tick(self.levels.span_of(level)))
    }

    /// Checks the module's invariants. `is_filed` says whether an entry is filed, or left in its
    /// place by a flush.
    pub(crate) fn assert_invariants(&self, is_filed: impl Fn(&T) -> bool) {
        self.entries.assert_invariants();
        self.blocks.assert_invariants();
        let mut references = 0;
        let mut live = 0;
        let mut check = |bucket: &Bucket, first: Tick, span: u64| {
            references += bucket.len();
            bucket.assert_invariants(&self.blocks);
            for reference in bucket.iter(&self.blocks) {
                if !is_live(&self.entries, &reference) {
                    continue;
                }
                live += usize::from(self.entries.at(reference.index).deadline() <= self.last);
                let ahead = reference.tick.wrapping_sub(first.0 as u32);
                assert!(
                    u64::from(ahead) < span || span > 1 << 32,
                    "in another tick's bucket"
                );
            }
        };
        check(&self.taken, self.taken_at.tick, 1);
        let mut armed = 0;
        for Expiration {
            tick,
            start,
            bucket,
        } in self.expirations.iter()
        {
            let number = bucket as usize;
            let bucket = &self.buckets[number];
            let level = self.levels.level_of(number);
            assert!(bucket.armed, "bucket {number} is queued, and not armed");
            assert!(
                level > 0 || tick >= self.current,
                "bucket {number} was left behind"
            );
            check(bucket, start, self.levels.span_of(level));
            armed += 1;
        }
        assert_eq!(
            armed,
            self.buckets.iter().filter(|bucket| bucket.armed).count()
        );
        let is_left = |bucket: &Bucket| !bucket.armed && bucket.len() > 0;
        assert!(
            !self.buckets.iter().any(is_left),
            "references in a bucket that is not armed"
        );
        assert_eq!(references, self.references);
        let comes = |entry: &Entry<T>| entry.deadline() <= self.last && is_filed(&entry.item);
        let filed = self
            .entries
            .iter()
            .filter(|(_, entry)| comes(entry))
            .count();
        assert_eq!(
            live, filed,
            "every entry that is filed has one live reference"
        );
    }
}

#[inline]
fn is_live<T>(entries: &Entries<T>, reference: &Reference) -> bool {
    entries.tag(reference.index) == Some(reference.filing)
}
