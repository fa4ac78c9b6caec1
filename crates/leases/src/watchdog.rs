//! The watchdog: the book of leases with its timer and its store, and the round that is planned.
//!
//! One lock guards all of it. The timer's clock is read, and rounds are added and moved, under this
//! lock, so no thread owns the timer even for a moment: it ends where the last clone of the leases
//! is dropped. The store is called with no lock held.

use crate::Lease;
use crate::book::{Answer, Book, LeaseTerms, Stats};
use crate::sync::{Mutex, MutexGuard};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Instant;
use tickwheel::{AddError, Task, Timeout, Timer};

/// The store in which leases are taken: a lock server, a database.
///
/// Its methods are called with no lock held, by the timer's executor. `lost` has three exceptions:
/// - A [`hold`](crate::Leases::hold) that fails calls `lost` on the caller's thread.
/// - If the executor refuses or drops a round, the thread that drops it calls `lost`.
/// - After a shutdown of the timer, the thread that runs or drops the returned tasks calls `lost`.
///
/// When the last clone of [`Leases`](crate::Leases) has been dropped, at most a call that was on
/// its way may still come.
///
/// A store that takes time should hand the batches to a thread of its own. A panic in a call by
/// the executor is counted and reported by the timer, as of any task; the renewals that the panic
/// leaves unanswered count as failed. The other losses of a batch are reported before a panic of
/// `lost` goes on.
pub trait LeaseStore<K>: Send + Sync + 'static {
    /// Renews these leases, and answers each of them: at once, or later from any thread. A renewal
    /// that is dropped unanswered counts as failed and is tried again.
    fn renew(&self, batch: Vec<Renewal<K>>)
    where
        K: Hash + Eq + Clone + Send + 'static;

    /// Handles the loss of a lease: it ran out unrenewed, or the store said that it is gone, or the
    /// timer refused to renew it. Called once for each lost lease that was not released before.
    fn lost(&self, key: K);
}

/// A lease that the store has to renew. Dropping it unanswered counts as [`failed`](Self::failed).
pub struct Renewal<K: Hash + Eq + Clone + Send + 'static> {
    watchdog: Arc<Watchdog<K>>,
    key: K,
    number: u64,
    /// Given when this is dropped.
    answer: Answer,
}

impl<K: Hash + Eq + Clone + Send + 'static> Renewal<K> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Answers that the store has renewed the lease.
    pub fn renewed(mut self) {
        self.answer = Answer::Renewed;
    }

    /// Answers that this holder no longer has the lease in the store. From then on it is not held,
    /// and the timer's next turn reports it lost.
    pub fn gone(mut self) {
        self.answer = Answer::Gone;
    }

    /// Answers that it is unknown whether the lease was renewed: it is tried again.
    pub fn failed(self) {
        drop(self);
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Renewal<K> {
    fn drop(&mut self) {
        self.watchdog.answer(&self.key, self.number, self.answer);
    }
}

/// The state that the leases, the answers and the timer's task share. `None` once the last clone of
/// the leases is dropped. A `Lease` or a `Renewal` that lives on then keeps no store and no timer.
pub(crate) struct Watchdog<K>(Mutex<Option<State<K>>>);

struct State<K> {
    book: Book<K>,
    timer: Timer,
    store: Arc<dyn LeaseStore<K>>,
    /// The round that was planned last. While there are leases, it is pending, or it was handed
    /// over: then it plans the next one when it runs or is dropped.
    round: Option<Timeout>,
}

/// The timer's task: a round of renewals.
struct RoundTask<K: Hash + Eq + Clone + Send + 'static> {
    watchdog: Arc<Watchdog<K>>,
    has_begun: bool,
}

impl<K: Hash + Eq + Clone + Send + 'static> RoundTask<K> {
    fn run(mut self) {
        self.has_begun = true;
        self.watchdog.run();
    }
}

/// Plans the next round whatever has become of this one: it was refused by the executor, dropped
/// with what a shutdown has returned, or a key has panicked. Like a failed renewal, the next round
/// is a little later, unless this one has planned it.
impl<K: Hash + Eq + Clone + Send + 'static> Drop for RoundTask<K> {
    fn drop(&mut self) {
        let mut guard = self.watchdog.lock();
        let Some(State { book, timer, .. }) = &mut *guard else {
            return;
        };
        let now = timer.now();
        // The executor may refuse the next rounds too, and only a round finds what is lost. One
        // that has begun has looked, and a key that panicked in it would panic again.
        let lost = if self.has_begun {
            Vec::new()
        } else {
            book.lose_run_out(now)
        };
        let earliest = now + book.terms.retry();
        self.watchdog.plan_next(guard, earliest, lost);
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Watchdog<K> {
    pub(crate) fn new(timer: Timer, terms: LeaseTerms, store: Arc<dyn LeaseStore<K>>) -> Self {
        let state = State {
            book: Book::new(terms),
            timer,
            store,
            round: None,
        };
        Watchdog(Mutex::new(Some(state)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<State<K>>> {
        // A key's code may panic under the lock, which leaves the book as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to renew a lease that was taken at `since`, or at this moment.
    pub(crate) fn hold(
        self: &Arc<Self>,
        key: K,
        since: Option<Instant>,
    ) -> Result<Lease<K>, AddError<Task>> {
        let entered = key.clone();
        let mut guard = self.lock();
        let state = guard
            .as_mut()
            .expect("the caller has a clone of the leases");
        let now = state.timer.now();
        // Counted from the future, the lease would last longer here than in the store.
        let since = since.map_or(now, |since| since.min(now));
        // When this lease is due: if the round was handed over, it plans for the others.
        let due = since + state.book.terms.renew_every;
        if let Err(refused) = self.plan(state, due) {
            let lost = state.book.lose_all();
            drop(guard);
            self.report(lost);
            return Err(refused);
        }
        let number = state.book.take(entered, since);
        Ok(Lease {
            watchdog: Arc::clone(self),
            key,
            number,
        })
    }

    pub(crate) fn is_held(&self, key: &K, number: u64) -> bool {
        self.lock()
            .as_mut()
            .is_some_and(|State { book, timer, .. }| book.is_held(key, number, timer.now()))
    }

    /// Removes a lease. Returns whether it was held.
    pub(crate) fn release(&self, key: &K, number: u64) -> bool {
        self.lock()
            .as_mut()
            .is_some_and(|State { book, timer, .. }| book.release(key, number, timer.now()))
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock()
            .as_ref()
            .map(|state| state.book.stats())
            .unwrap_or_default()
    }

    fn answer(&self, key: &K, number: u64, answer: Answer) {
        if let Some(State {
            book, timer, round, ..
        }) = &mut *self.lock()
        {
            let due = book.answer(key, number, answer, timer.now());
            if let (Some(due), Some(round)) = (due, round) {
                round.hasten(due); // Or it was handed over, and plans the next one.
            }
        }
    }

    /// Ensures that there is a round at `due` or before. The caller drops the error without the
    /// lock, because there is a round in it.
    fn plan(self: &Arc<Self>, state: &mut State<K>, due: Instant) -> Result<(), AddError<Task>> {
        // A round that was handed over cannot be hastened any more.
        if !state.round.as_ref().is_some_and(|round| round.hasten(due)) {
            let round = RoundTask {
                watchdog: Arc::clone(self),
                has_begun: false,
            };
            state.round = Some(state.timer.at(due, move || round.run())?);
        }
        Ok(())
    }

    /// Ensures that there is a round when something is due, but not before `earliest`. Then reports
    /// losses, without the lock. If the timer refuses the round, all leases are lost; returns
    /// whether it has accepted.
    fn plan_next(
        self: &Arc<Self>,
        mut guard: MutexGuard<'_, Option<State<K>>>,
        earliest: Instant,
        mut lost: Vec<K>,
    ) -> bool {
        let mut planned = Ok(());
        if let Some(state) = &mut *guard {
            let due = state.book.next_due().map(|due| due.max(earliest));
            planned = due.map_or(Ok(()), |due| self.plan(state, due));
            if planned.is_err() {
                lost.extend(state.book.lose_all());
            }
        }
        drop(guard);
        self.report(lost);
        planned.is_ok() // There is a round in the error, which plans nothing when it is dropped.
    }

    /// Runs a round: one batch. The next round is planned before the store is called, which may
    /// take its time.
    fn run(self: &Arc<Self>) {
        let mut guard = self.lock();
        let Some(State { book, timer, .. }) = &mut *guard else {
            return;
        };
        let now = timer.now();
        let (renewals, lost) = book.round(now);
        let renewal = |(key, number)| Renewal {
            watchdog: Arc::clone(self),
            key,
            number,
            // Until the store says otherwise, also if it panics with the renewal.
            answer: Answer::Failed,
        };
        // Made first: if the report of a loss panics, these count as failed.
        let batch: Vec<_> = renewals.into_iter().map(renewal).collect();
        // What nobody holds any more must not be renewed either.
        if !self.plan_next(guard, now, lost) || batch.is_empty() {
            return;
        }
        let Some(store) = self.store() else { return };
        store.renew(batch);
    }

    /// Reports losses. If a call panics, the others are reported before the panic goes on. If a
    /// call drops the last clone of the leases, the others are not reported.
    fn report(&self, lost: Vec<K>) {
        let mut panicked = None;
        for key in lost {
            let Some(store) = self.store() else { return };
            // The others are lost as well, and are reported whatever becomes of this one.
            let called = catch_unwind(AssertUnwindSafe(|| store.lost(key)));
            panicked = panicked.or(called.err());
        }
        match panicked {
            // A second panic on its way would abort the process.
            Some(panic) if !thread::panicking() => resume_unwind(panic),
            _ => (),
        }
    }

    fn store(&self) -> Option<Arc<dyn LeaseStore<K>>> {
        self.lock().as_ref().map(|state| Arc::clone(&state.store))
    }

    /// Ends all leases because the last clone is dropped.
    pub(crate) fn end(&self) {
        let Some(state) = self.lock().take() else {
            return;
        };
        // The round refers to this.
        drop(state.round.map(|round| round.cancel()));
    }
}
