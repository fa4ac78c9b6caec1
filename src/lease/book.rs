//! The book of leases: their terms and counts, which are held and until when, what is due next.
//!
//! This is plain data that knows neither a clock nor a store. A lease is *due* when its next
//! renewal is due; while a renewal is in flight, it is due when it runs out. The name of a lease
//! belongs to a single holding: an answer counts only for the name with which the renewal was sent.
//!
//! All calls run under one lock, so each call takes a bounded number of steps, and calls nothing of
//! a key's but `Eq`. Values that are no longer needed are returned to the caller, who drops them.

use crate::store::slab::{Key, Slab};
use crate::store::table::{KeyTable, ShortHash};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::Bound;
use std::time::{Duration, Instant};

/// How long leases last, when they are renewed, and how many at once.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::lease::LeaseTerms;
///
/// // A lease of 30 s, renewed every 10 s; at most 100 in one call to the store.
/// let terms = LeaseTerms::new(Duration::from_secs(30));
/// assert_eq!(terms, terms.renew_every(Duration::from_secs(10)).batch_size(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    pub(crate) lease: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) batch_size: usize,
}

/// The longest lease, 100 years: what is added to the present then has a name.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl LeaseTerms {
    /// Creates the terms of leases that run out `lease` after they were taken or renewed. `lease`
    /// is clamped to a range from one microsecond to 100 years. Default: renewal after a third of
    /// it, at most 100 leases in one call to the store.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        let lease = lease.clamp(Duration::from_micros(1), LONGEST);
        LeaseTerms { lease, renew_every: lease / 3, batch_size: 100 }
    }

    /// Sets how long after it was taken or renewed a lease is renewed, clamped to a range from one
    /// nanosecond to seven eighths of the lease. A shorter period survives more failures. A renewal
    /// may be earlier by an eighth of the period, to join others in one batch.
    #[must_use]
    pub fn renew_every(mut self, period: Duration) -> Self {
        self.renew_every = period.clamp(Duration::from_nanos(1), self.lease - self.lease / 8);
        self
    }

    /// Sets the maximum number of leases that are renewed in one call to the store; at least 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size.max(1);
        self
    }

    /// Returns by how much a renewal may be earlier than it is due.
    pub(crate) fn slack(&self) -> Duration {
        self.renew_every / 8
    }

    /// Returns how long after a failure a renewal is tried again.
    pub(crate) fn retry(&self) -> Duration {
        (self.renew_every / 4).max(Duration::from_nanos(1))
    }
}

/// What leases have done so far, as returned by [`Leases::stats`](crate::lease::Leases::stats).
///
/// Every lease that was taken is held, was released or was lost:
/// `taken == held + released + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that are held. A lease that has run out counts until it is reported lost.
    pub held: usize,
    /// Leases that were taken: successful calls of `hold` and `hold_since`.
    pub taken: u64,
    /// Renewals that the store confirmed in time.
    pub renewed: u64,
    /// Renewals that failed, or were dropped unanswered, and are tried again.
    pub failed: u64,
    /// Leases that were released or dropped before they were reported lost, or that ended because
    /// their key was taken again.
    pub released: u64,
    /// Leases that were reported lost: they ran out, the store no longer had them, or the timer was
    /// shut down.
    pub lost: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { held, taken, renewed, failed, released, lost } = self;
        writeln!(f, "held {held}, taken {taken}, released {released}, lost {lost}")?;
        write!(f, "renewed {renewed}, failed {failed}")
    }
}

/// The maximum number of leases that a call looks at. It is small in models, so that a round of few
/// leases takes several calls.
pub(crate) const BATCH: usize = if cfg!(tickwheel_model) { 2 } else { 64 };

pub(crate) struct Book<K> {
    terms: LeaseTerms,
    leases: Slab<Record<K>>,
    /// Finds them by their keys.
    index: KeyTable<u32>,
    /// Every lease, by when it is due; the number distinguishes leases that are due at the same
    /// moment.
    due: BTreeMap<Due, Key>,
    /// The number of the last entry in `due`.
    last: u64,
    /// All counts but `held`, which is the number of leases.
    stats: Stats,
    /// How many of the failed renewals were reported.
    reported: u64,
    /// The latest time at which it was asked or answered; `None` before the first call.
    present: Option<Instant>,
    /// Whether renewal has ended for good: then no lease is held.
    pub(crate) closed: bool,
}

type Due = (Instant, u64);

/// The key of a lease that has left the book, and the one that was kept for its next renewal. The
/// caller drops them.
pub(crate) type Left<K> = (K, Option<K>);

/// What the book knows of a lease.
struct Record<K> {
    key: K,
    hash: ShortHash,
    runs_out: Instant,
    due: Due,
    /// The key for the next renewal, so that none has to be cloned under the lock; `None` while a
    /// renewal is in flight.
    spare: Option<K>,
    /// When the last renewal was sent.
    sent: Instant,
}

/// The answer of a store to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Renewed,
    /// Somebody else holds it, or nobody does.
    Gone,
    /// The outcome is unknown: the renewal is tried again.
    Failed,
}

/// A round of renewals: visits the leases that are due when it begins, and those that are due so
/// soon that they join it.
pub(crate) struct Round<K> {
    until: Instant,
    /// Where the round continues.
    from: Bound<Due>,
    /// Leases that are entered later have a higher number and are left to the next round. Otherwise
    /// a store that fails at once could keep this round going.
    last: u64,
    /// The renewals to send, and the leases that were found to have run out.
    pub(crate) renewals: Vec<(K, Key)>,
    pub(crate) lost: Vec<Left<K>>,
}

impl<K: Eq> Book<K> {
    pub(crate) fn new(terms: LeaseTerms) -> Self {
        Book {
            terms,
            leases: Slab::new(),
            index: KeyTable::new(),
            due: BTreeMap::new(),
            last: 0,
            stats: Stats::default(),
            reported: 0,
            present: None,
            closed: false,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { held: self.leases.len(), ..self.stats }
    }

    /// Returns the index of a key's lease, if there is one.
    pub(crate) fn find(&self, hash: u64, key: &K) -> Option<u32> {
        let is_meant = |index: &u32| self.leases.at(*index).key == *key;
        self.index.find(ShortHash::of(hash), is_meant).copied()
    }

    /// Enters a lease that was requested at `since`, with two copies of its key, in place of the
    /// former one. Returns its name, and what is left of that.
    pub(crate) fn take(
        &mut self,
        (hash, former): (u64, Option<u32>),
        [key, spare]: [K; 2],
        since: Instant,
    ) -> (Key, Option<Left<K>>) {
        let hash = ShortHash::of(hash);
        let former = former.and_then(|index| self.remove(index));
        self.stats.taken += 1;
        self.stats.released += u64::from(former.is_some());
        self.last += 1;
        let due = (since + self.terms.renew_every, self.last);
        let runs_out = since + self.terms.lease;
        let record = Record { key, hash, runs_out, due, spare: Some(spare), sent: since };
        let name = self.leases.insert(record, 0);
        self.index.insert(hash, name.index);
        self.due.insert(due, name);
        (name, former)
    }

    /// Returns the present of a caller that has read the clock before it took the lock: not before
    /// that of another one which took the lock first.
    fn present(&mut self, now: Instant) -> Instant {
        *self.present.insert(self.present.map_or(now, |present| present.max(now)))
    }

    pub(crate) fn is_held(&mut self, name: Key, now: Instant) -> bool {
        let now = self.present(now);
        let lease = self.leases.get(name).filter(|_| !self.closed);
        lease.is_some_and(|lease| now < lease.runs_out)
    }

    /// Removes a lease that was just entered, because nothing would renew it.
    pub(crate) fn refuse(&mut self, name: Key) -> Option<Left<K>> {
        let left = self.remove_named(name);
        self.stats.taken -= u64::from(left.is_some());
        left
    }

    /// Removes a lease that is released.
    pub(crate) fn release(&mut self, name: Key) -> Option<Left<K>> {
        let left = self.remove_named(name);
        self.stats.released += u64::from(left.is_some());
        left
    }

    /// Removes a lease that is lost.
    fn lose(&mut self, index: u32) -> Option<Left<K>> {
        self.stats.lost += 1;
        self.remove(index)
    }

    fn remove_named(&mut self, name: Key) -> Option<Left<K>> {
        self.leases.get(name)?;
        self.remove(name.index)
    }

    fn remove(&mut self, index: u32) -> Option<Left<K>> {
        let Record { key, hash, due, spare, .. } = self.leases.remove_if(index, |_| true)?;
        self.index.remove(hash, |other| *other == index);
        self.due.remove(&due);
        Some((key, spare))
    }

    /// Returns when the next round should be.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.keys().next().map(|(at, _)| *at).filter(|_| !self.closed)
    }

    /// Begins a round.
    pub(crate) fn begin(&self, now: Instant) -> Round<K> {
        Round {
            until: now + self.terms.slack(),
            from: Bound::Unbounded,
            last: self.last,
            renewals: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Continues a round, for at most so many leases. Returns whether the round is over.
    pub(crate) fn go_on(&mut self, round: &mut Round<K>, now: Instant, limit: usize) -> bool {
        let until = Bound::Included((round.until, u64::MAX));
        let due = self.due.range((round.from, until)).take(limit.min(BATCH));
        let due: Vec<_> = due.map(|(due, name)| (*due, *name)).collect();
        let Some((last, _)) = due.last() else { return true };
        round.from = Bound::Excluded(*last);
        for (_, name) in due.iter().filter(|((_, number), _)| *number <= round.last) {
            let (index, Some(lease)) = (name.index, self.leases.get_mut(*name)) else { continue };
            if lease.runs_out <= now {
                round.lost.extend(self.lose(index));
            } else if let Some(key) = lease.spare.take() {
                lease.sent = now;
                round.renewals.push((key, *name));
                let runs_out = lease.runs_out;
                self.set_due(index, runs_out);
            }
        }
        due.len() < limit.min(BATCH)
    }

    /// Returns how many renewals failed since the last call.
    pub(crate) fn take_failed(&mut self) -> u64 {
        let reported = mem::replace(&mut self.reported, self.stats.failed);
        self.stats.failed - reported
    }

    /// Records the answer to a renewal, and takes its key back if that is needed again. Returns the
    /// lease if the answer ends it.
    pub(crate) fn answer(
        &mut self,
        name: Key,
        key: &mut Option<K>,
        answer: Answer,
        now: Instant,
    ) -> Option<Left<K>> {
        let now = self.present(now);
        let (index, terms) = (name.index, self.terms);
        let lease = self.leases.get_mut(name).filter(|lease| lease.spare.is_none())?;
        // A caller that has asked after it ran out was told that it is not held.
        if answer == Answer::Gone || lease.runs_out <= now {
            return self.lose(index);
        }
        lease.spare = key.take();
        let next = if answer == Answer::Renewed {
            // Counted from when the renewal was sent: the store can't have renewed the lease
            // before.
            self.stats.renewed += 1;
            lease.runs_out = lease.sent + terms.lease;
            (lease.sent + terms.renew_every).max(now)
        } else {
            self.stats.failed += 1;
            (now + terms.retry()).min(lease.runs_out)
        };
        self.set_due(index, next);
        None
    }

    fn set_due(&mut self, index: u32, at: Instant) {
        self.last += 1;
        let due = (at, self.last);
        let former = mem::replace(&mut self.leases.at_mut(index).due, due);
        if let Some(name) = self.due.remove(&former) {
            self.due.insert(due, name);
        }
    }

    /// Ends all leases, and takes some of the remaining ones out, which are lost.
    pub(crate) fn close(&mut self) -> Vec<Left<K>> {
        self.closed = true;
        let some = self.leases.last_indices(None, BATCH).into_iter();
        let left: Vec<_> = some.filter_map(|index| self.lose(index)).collect();
        left
    }
}
