//! The book of leases: which are held and until when, what is due next, and their counts.
//!
//! It is plain data that knows neither a clock nor a store. A lease is *due* when its next renewal
//! is due; while a renewal is in flight, it is due when it runs out. A number belongs to a single
//! holding of a key: an answer counts only for the number with which the renewal was sent.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::mem;
use std::time::{Duration, Instant};

/// How long leases last, when they are renewed, and how many at once.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_leases::LeaseTerms;
///
/// // A lease of 30 s, renewed every 10 s; at most 100 in one call to the store.
/// let terms = LeaseTerms::new(Duration::from_secs(30));
/// assert_eq!(terms, terms.renew_every(Duration::from_secs(10)).batch_size(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    lease: Duration,
    pub(crate) renew_every: Duration,
    batch_size: usize,
}

/// The longest lease, 100 years, so that the present plus a lease does not overflow an `Instant`.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl LeaseTerms {
    /// Creates the terms of leases that run out `lease` after they were taken or renewed. `lease`
    /// is clamped to a range from one microsecond to 100 years. Default: renewal after a third of
    /// it, at most 100 leases in one call to the store.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        let lease = lease.clamp(Duration::from_micros(1), LONGEST);
        LeaseTerms {
            lease,
            renew_every: lease / 3,
            batch_size: 100,
        }
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

    /// Returns how long after a failure a renewal is tried again.
    pub(crate) fn retry(&self) -> Duration {
        (self.renew_every / 4).max(Duration::from_nanos(1))
    }
}

/// What leases have done so far, as returned by [`Leases::stats`](crate::Leases::stats).
///
/// Every lease that was taken is held, was released or was lost:
/// `taken == held + released + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that are held. A lease that has run out counts until it is lost.
    pub held: usize,
    /// Leases that were taken: successful calls of `hold` and `hold_since`.
    pub taken: u64,
    /// Renewals that the store confirmed in time.
    pub renewed: u64,
    /// Renewals that failed, or were dropped unanswered, and are tried again.
    pub failed: u64,
    /// Leases that were released or dropped before they were lost, or that ended because their key
    /// was taken again.
    pub released: u64,
    /// Leases that were lost: they ran out, the store no longer had them, or the timer refused to
    /// renew them. Each of these is reported once.
    pub lost: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats {
            held,
            taken,
            renewed,
            failed,
            released,
            lost,
        } = self;
        writeln!(
            f,
            "held {held}, taken {taken}, released {released}, lost {lost}"
        )?;
        write!(f, "renewed {renewed}, failed {failed}")
    }
}

/// The answer of a store to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Renewed,
    /// Somebody else holds the lease, or nobody does.
    Gone,
    /// The outcome is unknown: the renewal is tried again.
    Failed,
}

pub(crate) struct Book<K> {
    pub(crate) terms: LeaseTerms,
    leases: HashMap<K, Record>,
    /// The key of every lease, by when the lease is due, and by its number.
    due: BTreeMap<(Instant, u64), K>,
    /// All counts but `held`, which is the number of leases.
    stats: Stats,
}

struct Record {
    /// How many leases were taken before, which distinguishes this one from all others.
    number: u64,
    runs_out: Instant,
    due: Instant,
    /// When the renewal in flight was sent.
    sent: Option<Instant>,
}

impl<K: Hash + Eq + Clone> Book<K> {
    pub(crate) fn new(terms: LeaseTerms) -> Self {
        Book {
            terms,
            leases: HashMap::new(),
            due: BTreeMap::new(),
            stats: Stats::default(),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            held: self.leases.len(),
            ..self.stats
        }
    }

    /// Enters a lease that was requested at `since`, in place of the key's former one. Returns its
    /// number.
    pub(crate) fn take(&mut self, key: K, since: Instant) -> u64 {
        let number = self.stats.taken;
        let due = since + self.terms.renew_every;
        let record = Record {
            number,
            runs_out: since + self.terms.lease,
            due,
            sent: None,
        };
        if let Some(former) = self.leases.insert(key.clone(), record) {
            self.due.remove(&(former.due, former.number));
            self.stats.released += 1;
        }
        self.due.insert((due, number), key);
        self.stats.taken += 1;
        number
    }

    /// Returns a lease, if it is the one with this number.
    fn find(&mut self, key: &K, number: u64) -> Option<&mut Record> {
        self.leases
            .get_mut(key)
            .filter(|lease| lease.number == number)
    }

    pub(crate) fn is_held(&mut self, key: &K, number: u64, now: Instant) -> bool {
        self.find(key, number)
            .is_some_and(|lease| now < lease.runs_out)
    }

    /// Removes a lease that is released. Returns whether it was held.
    pub(crate) fn release(&mut self, key: &K, number: u64, now: Instant) -> bool {
        let was_held = self.is_held(key, number, now);
        if self.find(key, number).is_some() {
            self.remove(key);
            self.stats.released += 1;
        }
        was_held
    }

    /// Removes a key's lease. Returns the key.
    fn remove(&mut self, key: &K) -> Option<K> {
        let lease = self.leases.remove(key)?;
        self.due.remove(&(lease.due, lease.number))
    }

    /// Returns when the first lease is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.keys().next().map(|(due, _)| *due)
    }

    /// Finds one batch of what is due, or so soon that it joins the batch. Returns what is to be
    /// renewed, which is in flight from now on, with its numbers; and what is lost.
    pub(crate) fn round(&mut self, now: Instant) -> (Vec<(K, u64)>, Vec<K>) {
        // All numbers of that moment, too.
        let until = (now + self.terms.renew_every / 8, u64::MAX);
        let due = self.due.range(..=until).take(self.terms.batch_size);
        let due: Vec<_> = due
            .map(|((_, number), key)| (key.clone(), *number))
            .collect();
        let mut renewals = Vec::new();
        let mut lost = Vec::new();
        for (key, number) in due {
            let Some(lease) = self.find(&key, number) else {
                continue;
            };
            let runs_out = lease.runs_out;
            if runs_out <= now {
                lost.extend(self.remove(&key));
                self.stats.lost += 1;
            } else if lease.sent.is_none() {
                lease.sent = Some(now);
                self.set_due(&key, runs_out);
                renewals.push((key, number));
            }
        }
        (renewals, lost)
    }

    /// Records the answer to a renewal. Returns when the lease is due, unless the answer is too
    /// late: then a round finds the lease lost.
    pub(crate) fn answer(
        &mut self,
        key: &K,
        number: u64,
        answer: Answer,
        now: Instant,
    ) -> Option<Instant> {
        let terms = self.terms;
        let lease = self
            .find(key, number)
            .filter(|lease| now < lease.runs_out)?;
        let sent = lease.sent.take()?;
        let due = match answer {
            Answer::Renewed => {
                // Counted from when the renewal was sent: the store can't have renewed the lease
                // before.
                lease.runs_out = sent + terms.lease;
                sent + terms.renew_every
            }
            Answer::Failed => (now + terms.retry()).min(lease.runs_out),
            Answer::Gone => {
                lease.runs_out = now;
                now
            }
        };
        self.stats.renewed += u64::from(answer == Answer::Renewed);
        self.stats.failed += u64::from(answer == Answer::Failed);
        self.set_due(key, due);
        Some(due)
    }

    fn set_due(&mut self, key: &K, due: Instant) {
        let Some(lease) = self.leases.get_mut(key) else {
            return;
        };
        let former = (mem::replace(&mut lease.due, due), lease.number);
        if let Some(key) = self.due.remove(&former) {
            self.due.insert((due, former.1), key);
        }
    }

    /// Removes the leases that have run out, which are lost. Returns their keys.
    pub(crate) fn lose_run_out(&mut self, now: Instant) -> Vec<K> {
        // No lease is due after it has run out.
        let due = self.due.range(..=(now, u64::MAX)).map(|(_, key)| key);
        let has_run_out = |key: &&K| self.leases.get(*key).is_some_and(|it| it.runs_out <= now);
        let lost: Vec<K> = due.filter(has_run_out).cloned().collect();
        self.stats.lost += lost.len() as u64;
        lost.iter().for_each(|key| drop(self.remove(key)));
        lost
    }

    /// Removes all leases, which are lost. Returns their keys.
    pub(crate) fn lose_all(&mut self) -> Vec<K> {
        self.stats.lost += self.leases.len() as u64;
        self.leases.clear();
        mem::take(&mut self.due).into_values().collect()
    }
}
