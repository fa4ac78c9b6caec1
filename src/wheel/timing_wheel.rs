//! The timing wheel: entries, the buckets of level 0 and of the overflow wheels that ticks have
//! needed so far, and a queue of bucket expirations.
//!
//! Plain data that knows neither clocks nor locks. [`LocalTimer`](crate::LocalTimer) is a timing
//! wheel and the present; each shard of a [`Timer`](crate::Timer) has one behind its lock.
//!
//! An entry is filed: its bucket holds a reference to it. Cancelling an entry frees its place in
//! the slab at once; its reference stays behind, stale. Each filing has a number, which is stored
//! in the reference and as the entry's tag in the slab. A reference is live as long as its entry is
//! present and has this number.
//!
//! A live reference only means: look at this entry at this tick. The entry's deadline decides
//! whether it is due, so no reference, however wrong, expires anything early or twice.
//!
//! # The current tick stays open
//! The bucket of the current tick can be armed again after it was flushed. An entry whose deadline
//! has passed is filed under the present tick, so it expires with the next turn, also on a clock
//! that stands still. A turn ends whatever its tasks add: a flush takes the references of a bucket
//! of level 0 out whole, and notes its own turn. What is filed there afterwards belongs to the
//! next turn.
//!
//! Invariants, checked by [`TimingWheel::assert_invariants`]:
//! - every entry whose deadline can come has exactly one live reference;
//! - a bucket with references is armed: it is in the queue of expirations, once;
//! - a reference is in the bucket for its tick, inside its wheel's window;
//! - an entry is filed under the tick of its deadline or an earlier one, or under the tick in which
//!   its deadline had passed.

use crate::wheel::bucket::{Blocks, Bucket, Entry, Reference, Sweep};
use crate::wheel::counters::Counters;
use crate::wheel::expirations::{Expirations, First, Flush};
use crate::wheel::level::{Expiration, Levels};
use crate::wheel::slab::{Key, Slab};
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use alloc::vec::Vec;
use core::mem;

/// The number of entries that one flush moves while its lock is held. It bounds how long others
/// wait for the lock.
pub(crate) const BATCH: usize = 128;

/// Stale references that are not worth a sweep, however few entries there are.
const STALE_ALLOWED: usize = 256;

pub(crate) type Entries<T> = Slab<Entry<T>>;

/// A single-threaded timer; see the [module](self).
///
/// ```text
/// 4 slots in each wheel, and the current tick is 5. A slot of level 1 spans two ticks, one of
/// level 2 four. An entry for tick 11 lies in level 1, slot 1:
///
///             slot 0    slot 1    slot 2    slot 3
///   level 0        8         5         6         7      11 - 5 >= 4: it does not reach 11
///   level 1      8-9     10-11       4-5       6-7      11 / 2 - 5 / 2 < 4: it does
///
/// The bucket of 10-11 expires at tick 9, one tick before its first. Its entries are inserted
/// again, into level 0, slots 2 and 3, and the one for 11 is due when that bucket expires.
/// ```
#[derive(Clone, Debug)]
pub(crate) struct TimingWheel<T> {
    pub(crate) length: TickLength,
    pub(crate) levels: Levels,
    /// The last deadline that comes: an entry with a later one is filed nowhere, unless the present
    /// is the end of time.
    last: Nanos,
    /// The tick that was reached. It moves to the expiration of a bucket that is flushed, as in
    /// Kafka's wheel, and leaps to the present when nothing is due before that. So a short timer is
    /// filed as finely after an idle hour as at the start.
    current: Tick,
    /// The slots of level 0, then those of the overflow wheels.
    buckets: Vec<Bucket>,
    /// What is left of the bucket of level 0 that is being flushed.
    taken: Bucket,
    /// When that was taken out.
    flushed: Flushed,
    blocks: Blocks,
    pub(crate) entries: Entries<T>,
    /// The number of references in all buckets.
    references: usize,
    /// The number of the latest filing. It wraps around after 2^32 filings. A stale reference so
    /// old that it looks live then is a second one to its entry, perhaps in the same batch: each
    /// is looked at as if the other one may have expired the entry, or filed it again.
    pub(super) filings: u32,
    expirations: Expirations,
    /// The references that are being moved; empty between calls.
    scratch: Vec<Reference>,
    sweep: Sweep,
    pub(crate) counters: Counters,
}

#[derive(Clone, Copy, Debug)]
struct Flushed {
    tick: Tick,
    turn: u64,
}

impl<T> TimingWheel<T> {
    /// Creates an empty wheel with `size` slots in each level, a power of two of at least 4, whose
    /// time starts at `current`, and ends with the deadline `last`.
    pub(crate) fn new(length: TickLength, size: usize, current: Tick, last: Nanos) -> Self {
        TimingWheel {
            length,
            levels: Levels::of(size),
            last,
            current,
            buckets: Vec::new(),
            taken: Bucket::EMPTY,
            flushed: Flushed { tick: Tick::NEVER, turn: 0 },
            blocks: Slab::new(),
            entries: Slab::new(),
            references: 0,
            filings: 0,
            expirations: Expirations::default(),
            scratch: Vec::new(),
            sweep: Sweep::default(),
            counters: Counters::default(),
        }
    }

    /// Starts over as another empty wheel, but keeps the slab, so that no key is issued again.
    pub(crate) fn restart(&mut self, fresh: Self) {
        let mut entries = mem::replace(&mut self.entries, Slab::new());
        entries.give_all_back();
        *self = TimingWheel { entries, filings: self.filings, ..fresh };
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn deadline(&self, key: Key) -> Option<Nanos> {
        self.entries.get(key).map(Entry::deadline)
    }

    /// Adds an entry that is not filed yet. Returns the reference to be filed.
    ///
    /// Always inlined: returning the key through memory costs 2 of W2's 55 ns.
    #[inline(always)]
    pub(crate) fn insert(&mut self, due: Due, item: T) -> (Key, Reference) {
        self.filings = self.filings.wrapping_add(1);
        let filing = self.filings;
        let key = self.entries.insert(Entry::new(due.deadline, item), filing);
        (key, Reference { tick: due.tick.0 as u32, index: key.index, filing })
    }

    /// Files an entry that was inserted. Reads the present only if the entry's tick has no armed
    /// bucket in an overflow wheel.
    #[inline(always)]
    pub(crate) fn file_new(&mut self, reference: Reference, due: Due, now: impl FnOnce() -> Nanos) {
        if !self.join_overflow(reference, due.tick) {
            self.file_at(reference, due, due.present.unwrap_or_else(now));
        }
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
    pub(crate) fn expired(&mut self, entry: Entry<T>, now: Nanos) -> T {
        self.counters.record_expired(now.since(entry.deadline()));
        self.sweep_if_stale();
        entry.item
    }

    /// Moves an entry, which must be present, to a later deadline; an earlier one has no effect.
    /// Only writes the deadline: the entry is filed again when its bucket is flushed.
    #[inline]
    pub(crate) fn extend(&mut self, index: u32, deadline: Nanos) {
        let entry = self.entries.at_mut(index);
        if deadline > entry.deadline() {
            entry.set_deadline(deadline);
            self.counters.rescheduled += 1;
            if deadline > self.last {
                self.next_filing(index); // Nobody wakes up for it.
            }
        }
    }

    /// Moves an entry, which must be present, to another deadline. Files it again only if it is
    /// filed later than that. Ticks are compared: a later deadline that has passed by now can mean
    /// an earlier tick.
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
        // One that never comes any more loses its reference, so that nobody wakes up for it.
        let is_last = due.deadline > self.last.max(present);
        if is_last || before > self.length.start_of(self.tick_of(due, present)) {
            self.file_again(index, due, present);
        }
    }

    /// Files an entry anew; its former reference is stale from now on.
    #[inline(never)]
    pub(crate) fn file_again(&mut self, index: u32, due: Due, present: Nanos) {
        let filing = self.next_filing(index);
        self.file_at(Reference { tick: 0, index, filing }, due, present);
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
        let was_flushed = self.flushed.tick == tick && self.taken.len() == 0 && !is_overflow;
        let turn = if was_flushed { self.flushed.turn } else { 0 };
        let cascade = self.expirations.cascading().map_or(Tick::NEVER, |first| first.start);
        First { tick, turn, cascade }
    }

    /// Returns the tick under which an entry is filed.
    #[inline]
    fn tick_of(&self, due: Due, present: Nanos) -> Tick {
        if due.deadline <= present { self.length.floor(present) } else { due.tick }
    }

    /// Puts a reference into the bucket of its tick, if that belongs to an overflow wheel and is
    /// armed already. So the caller need not read the clock. If the deadline has passed by now, the
    /// entry is not late: that bucket is cascaded before the present tick is flushed.
    #[inline(always)]
    fn join_overflow(&mut self, reference: Reference, tick: Tick) -> bool {
        if tick.0.saturating_sub(self.current.0) < self.levels.size() as u64 {
            return false;
        }
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

    /// Files a reference, after a leap of the time to the present if the entry is far away and
    /// nothing is due.
    #[inline]
    fn file_at(&mut self, reference: Reference, due: Due, present: Nanos) {
        if due.deadline > self.last.max(present) {
            return;
        }
        let tick = self.tick_of(due, present);
        if tick.0.saturating_sub(self.current.0) >= self.levels.size() as u64 {
            let First { tick, cascade, .. } = self.first();
            let present = self.length.floor(present);
            if cascade == Tick::NEVER && tick > present {
                self.leap(present);
            }
        }
        self.file(reference, tick);
    }

    /// Lets the time leap to `tick`. Call it only if no armed bucket expires by then.
    pub(crate) fn leap(&mut self, tick: Tick) {
        self.current = self.current.max(tick);
    }

    /// Puts a reference into the bucket for `tick`, after adding the overflow wheels that this
    /// needs. Arms the bucket.
    #[inline(always)]
    pub(crate) fn file(&mut self, reference: Reference, tick: Tick) {
        let tick = tick.max(self.current);
        let reference = Reference { tick: tick.0 as u32, ..reference };
        let index = self.levels.bucket_of(tick, self.current);
        if index >= self.buckets.len() {
            self.add_overflow_wheels(index);
        }
        let bucket = &mut self.buckets[index];
        bucket.push(&mut self.blocks, reference);
        self.references += 1;
        if !bucket.armed {
            bucket.armed = true;
            self.expirations.push(self.levels.expiration(index, tick));
        }
    }

    /// Adds the wheels up to that of a bucket: level 0, and overflow wheels.
    #[cold]
    fn add_overflow_wheels(&mut self, bucket: usize) {
        let wanted = (self.levels.level_of(bucket) + 1) * self.levels.size();
        self.buckets.reserve_exact(wanted - self.buckets.len());
        self.buckets.resize(wanted, Bucket::EMPTY);
    }

    /// Flushes a batch of the bucket that comes first. Entries that are due go to `expire`, in
    /// order; the others are filed where they belong now. Returns whether any bucket was due.
    pub(crate) fn flush(&mut self, flush: Flush, mut expire: impl FnMut(Key, Entry<T>)) -> bool {
        self.flush_by(flush, |wheel, index, due| {
            let Some(key) = wheel.entries.key_at(index) else { return false };
            let is_due = |entry: &mut Entry<T>| entry.deadline() <= due;
            let Some(entry) = wheel.entries.remove_if(index, is_due) else { return false };
            wheel.counters.record_expired(flush.present.since(entry.deadline()));
            expire(key, entry);
            true
        })
    }

    /// Flushes a batch as [`flush`](Self::flush) does. `expire` gets the index of each entry and
    /// the time at which it had to be due, and returns whether it took the entry; otherwise the
    /// entry is filed by its deadline.
    #[inline]
    pub(crate) fn flush_by(
        &mut self,
        flush: Flush,
        mut expire: impl FnMut(&mut Self, u32, Nanos) -> bool,
    ) -> bool {
        let First { tick, cascade, .. } = self.first();
        // What is being cascaded goes first if it begins with the next tick: it may hold what was
        // due when it joined that bucket.
        let is_cascade = tick > flush.limit || cascade.is_by(tick.next());
        let first =
            if is_cascade { self.expirations.cascading() } else { self.expirations.waiting() };
        let Some(first) = first else { return false };
        // Nothing is armed before what is first, so nothing is left behind. Set as soon as a bucket
        // begins to cascade, so that nothing joins it any more.
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
            // What is filed here from now on belongs to the next turn.
            self.taken = mem::replace(bucket, Bucket::EMPTY);
            bucket.armed = true;
            self.flushed = Flushed { tick, turn: flush.turn };
        }
        let mut references = mem::take(&mut self.scratch);
        self.taken.take_front(&mut self.blocks, flush.batch, &mut references);
        self.references -= references.len();
        // This is a separate loop, so that the cache misses of the whole batch overlap.
        references.retain(|reference| is_live(&self.entries, reference));
        // An extended entry has to wait for its new tick, even if that tick has come by now, so
        // that entries leave in the order of their ticks.
        // What becomes due after the turn's own tick is left to the next turn.
        let end = Nanos(self.length.start_of(flush.limit.next()).0 - 1);
        let is_over = tick < flush.limit;
        let due = if is_over { self.length.start_of(tick) } else { flush.present.min(end) };
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
        true
    }

    /// Inserts a batch of the entries of an overflow wheel's bucket again, in lower levels.
    fn cascade(&mut self, from: Expiration, flush: Flush) {
        let mut references = mem::take(&mut self.scratch);
        let bucket = &mut self.buckets[from.bucket as usize];
        bucket.take_front(&mut self.blocks, BATCH, &mut references);
        if bucket.len() == 0 {
            bucket.armed = false;
            self.expirations.remove(from);
        }
        // Stale references are moved with the others unless there are many: finding one costs a
        // cache miss, whereas moving it touches no entry.
        // mutants(< == >= - * %): only the pace.
        if self.references > self.len() + self.len() / 8 {
            let before = references.len();
            references.retain(|reference| is_live(&self.entries, reference));
            self.references -= before - references.len();
        }
        self.references -= references.len();
        self.counters.cascaded += references.len() as u64;
        // Whether the low 32 bits of a tick, and the bucket where it is filed, tell all of it.
        // mutants: only the pace. A flush corrects what is filed too low.
        let level = self.levels.level_of(from.bucket as usize);
        let low_bits_suffice = self.levels.span_of(level) <= 1 << 32;
        // What joined the bucket for a tick that begins after the turn may be due by now.
        let next = self.length.floor(flush.present).next();
        for reference in references.drain(..) {
            let ahead = reference.tick.wrapping_sub(from.start.0 as u32);
            let tick = Tick(from.start.0 + u64::from(ahead));
            if low_bits_suffice && (tick <= flush.limit || tick > next) {
                self.file(reference, tick);
            } else {
                self.file_by_deadline(reference, flush);
            }
        }
        self.scratch = references;
    }

    /// Files an entry again by its deadline, if the reference to it is live.
    fn file_by_deadline(&mut self, reference: Reference, flush: Flush) {
        if !is_live(&self.entries, &reference) {
            return;
        }
        let deadline = self.entries.at(reference.index).deadline();
        if deadline > self.last.max(flush.present) {
            return;
        }
        let tick = self.length.ceil(deadline);
        // What had passed when the turn began is due in this turn, although the clock has gone on.
        // A tick that is over is not skipped: entries leave in the order of their ticks.
        let has_passed = deadline <= flush.present && tick > flush.limit;
        let tick = if has_passed { self.length.floor(deadline) } else { tick };
        let filing = self.next_filing(reference.index);
        self.file(Reference { filing, ..reference }, tick);
    }

    /// Takes stale references off the front of the bucket that comes first, and the bucket out of
    /// the queue if it becomes empty: nobody has to wake up for it. Does bounded work, and returns
    /// whether there may be more to take.
    pub(crate) fn trim(&mut self) -> bool {
        let TimingWheel { buckets, taken, blocks, entries, expirations, .. } = self;
        let Some(first) = expirations.cascading().or(expirations.waiting()) else { return false };
        // What was taken out belongs to the bucket of level 0 that comes first.
        let is_taken = !first.is_overflow() && taken.len() > 0;
        let bucket = if is_taken { taken } else { &mut buckets[first.bucket as usize] };
        self.references -= bucket.trim(blocks, BATCH, |reference| !is_live(entries, reference));
        if !is_taken && bucket.len() == 0 {
            bucket.armed = false;
            expirations.remove(first);
            return true;
        }
        bucket.front(blocks).is_none_or(|front| !is_live(entries, &front))
    }

    /// Sweeps a few stale references if there are many. Every method that leaves one behind calls
    /// this, so there are never many more stale references than live ones.
    #[inline]
    fn sweep_if_stale(&mut self) {
        // mutants(>=): from which number on it sweeps.
        if self.references > 2 * self.len() + STALE_ALLOWED {
            self.sweep();
        }
    }

    #[inline(never)]
    fn sweep(&mut self) {
        let TimingWheel { buckets, blocks, entries, expirations, scratch, .. } = self;
        let is_live = |reference: &Reference| is_live(entries, reference);
        self.references -= self.sweep.step(buckets, blocks, expirations, scratch, is_live);
    }

    /// Takes the entries of one chunk of the slab out, with their deadlines.
    pub(crate) fn drain_chunk(&mut self, chunk: usize, mut out: impl FnMut(Nanos, T)) {
        let keys: Vec<Key> = self.entries.of_chunk(chunk).map(|(key, _)| key).collect();
        for key in keys {
            if let Some(entry) = self.entries.remove(key) {
                self.counters.returned += 1;
                out(entry.deadline(), entry.item);
            }
        }
        if self.len() == 0 {
            // What refers to them is given back.
            self.buckets = Vec::new();
            (self.taken, self.blocks) = (Bucket::EMPTY, Slab::new());
            (self.references, self.expirations) = (0, Expirations::default());
        }
    }

    /// Returns the expiration of each armed bucket, the bucket, and what was taken out of it and is
    /// not flushed yet.
    pub(crate) fn armed(&self) -> impl Iterator<Item = (Expiration, [&Bucket; 2])> {
        self.expirations.iter().map(|expiration| {
            let is_taken = !expiration.is_overflow() && expiration.tick == self.flushed.tick;
            let taken = if is_taken { &self.taken } else { &Bucket::EMPTY };
            (expiration, [&self.buckets[expiration.bucket as usize], taken])
        })
    }

    /// Returns the entries of a bucket, with their indices.
    pub(crate) fn entries_of(&self, bucket: &Bucket) -> impl Iterator<Item = (u32, &Entry<T>)> {
        let live = bucket.iter(&self.blocks).filter(|it| is_live(&self.entries, it));
        live.map(|reference| (reference.index, self.entries.at(reference.index)))
    }

    /// Returns how many levels have been needed so far.
    pub(crate) fn depth(&self) -> usize {
        self.buckets.len() / self.levels.size()
    }

    /// Checks the invariants that the module states. Takes time proportional to the wheel.
    ///
    /// `is_filed` says whether an entry is filed, as opposed to one that a flush left in its place.
    pub(crate) fn assert_invariants(&self, is_filed: impl Fn(&T) -> bool) {
        self.entries.assert_invariants();
        self.blocks.assert_invariants();
        let (mut references, mut live) = (0, 0);
        let mut check = |bucket: &Bucket, first: Tick, span: u64| {
            references += bucket.len();
            bucket.assert_invariants(&self.blocks);
            for reference in bucket.iter(&self.blocks) {
                if !is_live(&self.entries, &reference) {
                    continue;
                }
                live += usize::from(self.entries.at(reference.index).deadline() <= self.last);
                let ahead = reference.tick.wrapping_sub(first.0 as u32);
                assert!(u64::from(ahead) < span || span > 1 << 32, "in another tick's bucket");
            }
        };
        check(&self.taken, self.flushed.tick, 1);
        let mut armed = 0;
        for Expiration { tick, start, bucket } in self.expirations.iter() {
            let (bucket, number) = (&self.buckets[bucket as usize], bucket as usize);
            let level = self.levels.level_of(number);
            assert!(bucket.armed, "bucket {number} is queued, and not armed");
            assert!(level > 0 || tick >= self.current, "bucket {number} was left behind");
            check(bucket, start, self.levels.span_of(level));
            armed += 1;
        }
        assert_eq!(armed, self.buckets.iter().filter(|bucket| bucket.armed).count());
        let is_left = |bucket: &Bucket| !bucket.armed && bucket.len() > 0;
        assert!(!self.buckets.iter().any(is_left), "references in a bucket that is not armed");
        assert_eq!(references, self.references);
        let comes = |entry: &Entry<T>| entry.deadline() <= self.last && is_filed(&entry.item);
        let filed = self.entries.iter().filter(|(_, entry)| comes(entry)).count();
        assert_eq!(live, filed, "every entry that is filed has one live reference");
    }
}

/// Returns whether there is an entry with this filing as its latest one.
#[inline]
fn is_live<T>(entries: &Entries<T>, reference: &Reference) -> bool {
    entries.tag(reference.index) == Some(reference.filing)
}
