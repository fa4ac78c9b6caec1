//! Retries of what failed, after Dubbo's failback: the entries and their delays.
//!
//! A key has at most one retry that waits, in a [`KeyedTimer`]; its task is what is left of its
//! backoff. While the retry is under way the [`Attempt`] owns that, so whatever becomes of it,
//! nothing stays behind that could block the next failure.

use backon::{BackoffBuilder, ExponentialBuilder};
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::{Entry, KeyedTimer};

/// An operation that can be tried again.
pub trait Operation<K: Key>: Send + Sync + 'static {
    /// Tries it again. Called by the timer's executor: what takes time belongs elsewhere.
    fn attempt(&self, attempt: Attempt<K>);

    /// Handles an operation that failed too often, or that the timer refused because it is full or
    /// was shut down. Called where the failure was noted. The operation is forgotten, so the next
    /// failure begins anew.
    fn gave_up(&self, key: K);
}

/// What tells operations apart.
pub trait Key: Hash + Eq + Clone + Send + Sync + 'static {}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Key for K {}

type Delays = <ExponentialBuilder as BackoffBuilder>::Backoff;

/// Operations that failed, and are tried again until they succeed or are given up. Dropped, it
/// tries nothing any more.
pub struct Failback<K: Key>(Arc<Shared<K>>);

struct Shared<K: Key> {
    backoff: ExponentialBuilder,
    waiting: KeyedTimer<K, Delays>,
    operation: Arc<dyn Operation<K>>,
}

/// A retry that is under way. Dropped unanswered it has failed: so a panic, or a runtime that is
/// shut down, loses none.
#[must_use = "dropped, it has failed"]
pub struct Attempt<K: Key> {
    failback: Weak<Shared<K>>,
    key: K,
    /// Until it is answered.
    delays: Option<Delays>,
}

impl<K: Key> Failback<K> {
    /// Creates the retries. `backoff` returns how long to wait before each retry, and how many
    /// there are.
    pub fn new(
        timer: &Timer,
        backoff: ExponentialBuilder,
        operation: Arc<impl Operation<K>>,
    ) -> Failback<K> {
        let shared = Arc::new_cyclic(|shared: &Weak<Shared<K>>| {
            // Weak: the timer must not keep alive what keeps the timer.
            let failback = Weak::clone(shared);
            let expired = move |key, delays| {
                let Some(shared) = failback.upgrade() else {
                    return;
                };
                let failback = Weak::clone(&failback);
                shared.operation.attempt(Attempt {
                    failback,
                    key,
                    delays: Some(delays),
                });
            };
            let waiting = KeyedTimer::new(timer, expired);
            Shared {
                backoff,
                waiting,
                operation,
            }
        });
        Failback(shared)
    }

    /// Notes that an operation has failed: it will be tried again. If it waits for that already,
    /// this changes nothing.
    pub fn failed(&self, key: K) {
        self.0.wait(key, self.0.backoff.build());
    }

    /// Notes that an operation has succeeded, whoever tried it: no retry is needed. Returns whether
    /// one waited.
    pub fn succeeded(&self, key: &K) -> bool {
        self.0.waiting.cancel(key).is_some()
    }

    /// Returns how many operations wait for their next retry.
    pub fn waiting(&self) -> usize {
        self.0.waiting.len()
    }
}

impl<K: Key> Shared<K> {
    fn wait(&self, key: K, mut delays: Delays) {
        let Some(delay) = delays.next() else {
            return self.operation.gave_up(key);
        };
        let Entry::Vacant(free) = self.waiting.entry(key.clone()) else {
            return;
        };
        match free.add(delay, delays) {
            Ok(None) => {}
            // A retry whose time is up: it takes place, however often the operation fails.
            Ok(Some(due)) => _ = self.waiting.add(key, Duration::ZERO, due),
            Err(_) => self.operation.gave_up(key), // The timer is full, or was shut down.
        }
    }
}

impl<K: Key> Attempt<K> {
    /// Returns the operation.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Notes that it has succeeded; it is forgotten.
    pub fn succeeded(mut self) {
        self.delays = None;
        if let Some(shared) = self.failback.upgrade() {
            shared.waiting.cancel(&self.key);
        }
    }

    /// Notes that it has failed: it is tried again after the next delay, or given up.
    pub fn failed(self) {
        drop(self);
    }
}

impl<K: Key> Drop for Attempt<K> {
    fn drop(&mut self) {
        let Some(delays) = self.delays.take() else {
            return;
        };
        if let Some(shared) = self.failback.upgrade() {
            shared.wait(self.key.clone(), delays);
        }
    }
}
