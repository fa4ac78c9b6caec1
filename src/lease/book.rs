//! The book of leases: which are held, until when, and what is due next.
//!
//! Plain data that knows neither a clock nor a store. A lease is *due* for its next renewal, and
//! while a renewal is in flight for the moment at which it runs out. An answer only counts if it is
//! for the generation that is held, and for a renewal that is in flight.

use crate::lease::terms::LeaseTerms;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Book<K> {
    terms: LeaseTerms,
    leases: HashMap<K, Lease>,
    /// Every lease, by what it is due for; the number tells those of one moment apart.
    due: BTreeMap<(Instant, u64), K>,
    /// Of the last generation, and the last entry in `due`.
    last: u64,
    /// Renewals that failed since the last round.
    failed: usize,
}

#[derive(Debug)]
struct Lease {
    generation: u64,
    runs_out: Instant,
    due: (Instant, u64),
    /// When the renewal was sent that is in flight.
    sent: Option<Instant>,
}

/// What a store answers to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Renewed,
    /// Somebody else holds it, or nobody.
    Gone,
    /// Nobody knows: it is tried again.
    Failed,
}

/// What is to be done at a moment.
#[derive(Debug)]
pub(crate) struct Round<K> {
    /// With their generations.
    pub(crate) renewals: Vec<(K, u64)>,
    pub(crate) lost: Vec<K>,
    /// How many renewals failed since the last round.
    pub(crate) failed: usize,
}

impl<K: Hash + Eq + Clone> Book<K> {
    pub(crate) fn new(terms: LeaseTerms) -> Self {
        Book { terms, leases: HashMap::new(), due: BTreeMap::new(), last: 0, failed: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Enters a lease that was asked for at `since`; a former one of this key is forgotten. Its
    /// generation.
    pub(crate) fn take(&mut self, key: K, since: Instant) -> u64 {
        self.forget(&key);
        self.last += 1;
        let generation = self.last;
        let runs_out = since + self.terms.lease;
        let due = (since + self.terms.renew_every, generation);
        // First what may panic, in the key's `Hash`: what is due without a lease would stay due.
        self.leases.insert(key.clone(), Lease { generation, runs_out, due, sent: None });
        self.due.insert(due, key);
        generation
    }

    pub(crate) fn is_held(&self, key: &K, generation: u64, now: Instant) -> bool {
        let lease = self.leases.get(key).filter(|lease| lease.generation == generation);
        lease.is_some_and(|lease| now < lease.runs_out)
    }

    /// Forgets a lease; whether it was held.
    pub(crate) fn release(&mut self, key: &K, generation: u64, now: Instant) -> bool {
        let held = self.is_held(key, generation, now);
        if self.leases.get(key).is_some_and(|lease| lease.generation == generation) {
            self.forget(key);
        }
        held
    }

    fn forget(&mut self, key: &K) {
        if let Some(lease) = self.leases.remove(key) {
            self.due.remove(&lease.due);
        }
    }

    /// When the next round should be.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// Sends what is due, and what is due so soon that it goes along; finds what has run out.
    pub(crate) fn round(&mut self, now: Instant) -> Round<K> {
        let soon = (now + self.terms.slack(), u64::MAX);
        let due: Vec<K> = self.due.range(..=soon).map(|(_, key)| key.clone()).collect();
        let (mut renewals, mut lost) = (Vec::new(), Vec::new());
        for key in due {
            let Some(lease) = self.leases.get_mut(&key) else { continue };
            if lease.runs_out <= now {
                self.forget(&key);
                lost.push(key);
            } else if lease.sent.is_none() {
                lease.sent = Some(now);
                renewals.push((key.clone(), lease.generation));
                let runs_out = lease.runs_out;
                self.set_due(&key, runs_out);
            }
        }
        Round { renewals, lost, failed: std::mem::take(&mut self.failed) }
    }

    /// Takes the answer to a renewal. Whether the lease is lost by it.
    pub(crate) fn answer(
        &mut self,
        key: &K,
        generation: u64,
        answer: Answer,
        now: Instant,
    ) -> bool {
        let lease = self.leases.get_mut(key).filter(|lease| lease.generation == generation);
        let Some((lease, sent)) = lease.and_then(|lease| lease.sent.take().map(|at| (lease, at)))
        else {
            return false;
        };
        match answer {
            // Whoever has asked meanwhile was told that it is not held.
            _ if lease.runs_out <= now => {
                self.forget(key);
                true
            }
            Answer::Renewed => {
                // Counted from when it was sent: the store can't have done it before.
                lease.runs_out = sent + self.terms.lease;
                let next = (sent + self.terms.renew_every).max(now);
                self.set_due(key, next);
                false
            }
            Answer::Failed => {
                self.failed += 1;
                let next = (now + self.terms.retry()).min(lease.runs_out);
                self.set_due(key, next);
                false
            }
            Answer::Gone => {
                self.forget(key);
                true
            }
        }
    }

    fn set_due(&mut self, key: &K, at: Instant) {
        if let Some(lease) = self.leases.get_mut(key) {
            self.due.remove(&lease.due);
            self.last += 1;
            lease.due = (at, self.last);
            self.due.insert(lease.due, key.clone());
        }
    }

    /// Forgets all leases.
    pub(crate) fn clear(&mut self) -> Vec<K> {
        self.due.clear();
        self.leases.drain().map(|(key, _)| key).collect()
    }
}
