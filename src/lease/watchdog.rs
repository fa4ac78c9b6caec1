//! The watchdog: the timer's task, and the handling of a store's answers.
//!
//! # Locks
//! There is one lock, for the book and the planned round; no other is taken under it. Rounds are
//! added and moved, the store is called, and keys are hashed, cloned and dropped outside of it.

use crate::engine::context::TimerContext;
use crate::engine::report::{self, Contained};
use crate::lease::book::{Answer, Book, LeaseTerms, Left, Stats};
use crate::store::slab::Key;
use crate::sync::{Mutex, MutexGuard};
use crate::timer::Timer;
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::homes::Homes;
use crate::timer::timeout::Timeout;
use std::hash::Hash;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The store in which leases are taken: a lock server, a database.
///
/// Its methods are called with no lock held, usually by the timer's executor. The thread that
/// answers a renewal, shuts the timer down or finds it shut down, or drops what `shutdown` returned
/// may call them as well. When the last clone of [`Leases`](crate::lease::Leases) has been dropped,
/// at most a call that was on its way may still come.
///
/// A store that takes time should hand the batches to a thread of its own. A panic is contained,
/// counted by the timer (in [`Stats::panicked`](crate::Stats::panicked)) and reported. The renewals
/// that it leaves unanswered count as failed.
pub trait LeaseStore<K>: Send + Sync + 'static {
    /// Renews these leases, and answers each of them: at once, or later from any thread. A renewal
    /// that is dropped unanswered counts as failed and is tried again.
    fn renew(&self, batch: Vec<Renewal<K>>)
    where
        K: Hash + Eq + Clone + Send + 'static;

    /// Handles the loss of a lease: it ran out unrenewed, or the store said that it is gone, or the
    /// timer was shut down. Called once for each lost lease that was not released before.
    fn lost(&self, key: K);
}

/// The leases, answers and the timer's task refer to it. It never owns a timer, even for a moment:
/// the timer could end there, on a thread that must not wait for the reaper.
pub(crate) struct Watchdog<K> {
    terms: LeaseTerms,
    pub(crate) context: Arc<TimerContext>,
    /// Where the rounds are added, which refer to this.
    homes: Weak<Homes<Task>>,
    schedule: Mutex<Schedule<K>>,
}

/// The book, and the round that is planned by it.
struct Schedule<K> {
    book: Book<K>,
    /// The number of the planned round, or of the next one that is planned.
    number: u64,
    plan: Plan,
    /// Until the last clone of the leases is dropped: then nobody is told of a loss any more, and
    /// a lease or an answer that is kept keeps nothing of the user's. Those that call it share it.
    store: Option<Arc<Contained<Box<dyn LeaseStore<K>>>>>,
}

/// The round with the number of the schedule. There is at most one, which has not begun.
enum Plan {
    Nothing,
    /// A thread is adding it, and will look when it is due once more.
    Adding,
    Added(Arc<Timeout>),
}

/// A lease that the store has to renew. Dropping it unanswered counts as [`failed`](Self::failed).
///
/// To answer may report leases [`lost`](LeaseStore::lost), on this thread: hold no lock that this
/// takes.
pub struct Renewal<K: Hash + Eq + Clone + Send + 'static> {
    watchdog: Arc<Watchdog<K>>,
    name: Key,
    /// `None` after it was answered; then no caller can ask for it.
    key: Option<K>,
}

/// The timer's task: a round of renewals, with its number. If it is dropped instead of run, the
/// round was missed.
struct RoundTask<K: Hash + Eq + Clone + Send + 'static>(Option<Arc<Watchdog<K>>>, u64);

impl<K: Hash + Eq + Clone + Send + 'static> Renewal<K> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        self.key.as_ref().expect("it is not answered yet")
    }

    /// Answers that the store has renewed the lease.
    pub fn renewed(mut self) {
        self.answer(Answer::Renewed);
    }

    /// Answers that this holder no longer has the lease in the store: it is lost.
    pub fn gone(mut self) {
        self.answer(Answer::Gone);
    }

    /// Answers that it is unknown whether the lease was renewed: it is tried again.
    pub fn failed(self) {
        drop(self);
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(key) = self.key.take() {
            self.watchdog.answer(self.name, key, answer);
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Watchdog<K> {
    pub(crate) fn new(timer: &Timer, terms: LeaseTerms, store: Box<dyn LeaseStore<K>>) -> Self {
        let (book, plan) = (Book::new(terms), Plan::Nothing);
        let homes = &timer.base.closures().beside.homes;
        let context = Arc::clone(&homes.shards.context);
        let store = Some(Arc::new(Contained::new(&context.name, store)));
        let schedule = Mutex::new(Schedule { book, number: 0, plan, store });
        Watchdog { terms, context, homes: Arc::downgrade(homes), schedule }
    }

    pub(crate) fn now(&self) -> Instant {
        self.context.time.clock.now()
    }

    /// Enters a lease, with two copies of its key.
    pub(crate) fn hold(
        self: &Arc<Self>,
        hash: u64,
        keys: [K; 2],
        since: Instant,
    ) -> Result<Key, AddError<Task>> {
        let mut schedule = self.schedule.lock();
        if schedule.book.closed {
            let number = schedule.number;
            drop(schedule);
            keys.into_iter().for_each(|key| self.context.discard(key));
            return Err(AddError::Shutdown(self.entry(since, number).into()));
        }
        // A key's `Eq` may panic, while this function has the keys: they go without the lock.
        let former = schedule.book.find(hash, &keys[0]);
        let (name, former) = schedule.book.take((hash, former), keys, since);
        let Err(refused) = self.plan(schedule, since) else {
            self.discard(former);
            return Ok(name);
        };
        let left = self.schedule.lock().book.refuse(name);
        let is_lost = left.is_none();
        self.discard(former.into_iter().chain(left));
        self.lose_all();
        // Others may have been refused meanwhile as well, and have reported this lease lost.
        if is_lost { Ok(name) } else { Err(refused) }
    }

    pub(crate) fn is_held(&self, name: Key) -> bool {
        let now = self.now();
        self.schedule.lock().book.is_held(name, now)
    }

    /// Removes a lease. Returns whether it was held.
    pub(crate) fn release(&self, name: Key) -> bool {
        let now = self.now();
        let mut schedule = self.schedule.lock();
        let was_held = schedule.book.is_held(name, now);
        // A lease that was closed is being reported lost, once.
        let left = if schedule.book.closed { None } else { schedule.book.release(name) };
        drop(schedule);
        self.discard(left);
        was_held
    }

    pub(crate) fn stats(&self) -> Stats {
        self.schedule.lock().book.stats()
    }

    /// Ensures that there is a round when something is due, but not before `earliest`. Releases the
    /// lock while it adds or moves the round: listeners are woken then.
    fn plan<'a>(
        self: &'a Arc<Self>,
        mut schedule: MutexGuard<'a, Schedule<K>>,
        earliest: Instant,
    ) -> Result<(), AddError<Task>> {
        let mut planned = None;
        while let Some(due) = schedule.book.next_due() {
            let (due, number) = (due.max(earliest), schedule.number);
            match &schedule.plan {
                Plan::Adding => break,
                Plan::Added(_) if planned.is_some_and(|planned| planned <= due) => break,
                Plan::Added(round) => {
                    let round = Arc::clone(round);
                    drop(schedule);
                    if round.hasten(due) || planned.is_some() {
                        return Ok(());
                    }
                    // The executor has it, or the timer was shut down: adding another one tells.
                    schedule = self.schedule.lock();
                    schedule.forget(number);
                }
                Plan::Nothing => {
                    schedule.plan = Plan::Adding;
                    drop(schedule);
                    let entry = self.entry(due, number);
                    let added = match self.homes.upgrade() {
                        // One timer for all leases: other code that fills it must not lose them.
                        Some(homes) => homes.add_beyond_limit(entry),
                        None => Err(AddError::Shutdown(entry.into())),
                    };
                    schedule = self.schedule.lock();
                    if schedule.number != number {
                        // It has begun, and plans the next one. Or the leases have ended.
                        drop(schedule);
                        return added.map(|round| drop(round.cancel()));
                    }
                    let round = added.inspect_err(|_| drop(schedule.forget(number)))?;
                    schedule.plan = Plan::Added(Arc::new(round));
                    planned = Some(due);
                }
            }
        }
        Ok(())
    }

    fn entry(self: &Arc<Self>, due: Instant, number: u64) -> TimerEntry {
        let mut round = RoundTask(Some(Arc::clone(self)), number);
        TimerEntry::at(due, move || round.0.take().iter().for_each(|it| it.run(round.1)))
    }

    fn answer(self: &Arc<Self>, name: Key, key: K, answer: Answer) {
        let (now, mut key) = (self.now(), Some(key));
        let mut schedule = self.schedule.lock();
        let lost = schedule.book.answer(name, &mut key, answer, now);
        let planned = self.plan(schedule, now);
        self.context.discard(key);
        self.report_lost(lost);
        if planned.is_err() {
            self.lose_all();
        }
    }

    /// Runs a round, batch by batch, with the lock released between batches. The next round is
    /// planned before the store is called, which may take its time. If there is more to do at once,
    /// another thread of the executor may continue.
    fn run(self: &Arc<Self>, number: u64) {
        let now = self.now();
        let mut schedule = self.schedule.lock();
        schedule.forget(number);
        let (mut round, failed) = (schedule.book.begin(now), schedule.book.take_failed());
        drop(schedule);
        if failed > 0 {
            // Reported once, not for each lease: an outage may fail all of them, again and again.
            let timer = &*self.context.name;
            report::warn!(timer = timer, failed = failed, "leases were not renewed: tried again");
        }
        let mut is_over = false;
        while !is_over {
            let now = self.now();
            let mut schedule = self.schedule.lock();
            let room = self.terms.batch_size - round.renewals.len();
            is_over = schedule.book.go_on(&mut round, now, room);
            if !is_over && round.renewals.len() < self.terms.batch_size && round.lost.is_empty() {
                continue;
            }
            let planned = self.plan(schedule, now);
            self.report_lost(round.lost.drain(..));
            // The leases may be ending on another thread, or have ended in the calls just made.
            if planned.is_err() || self.schedule.lock().book.closed {
                // The store must not renew them either, because nobody holds them.
                round.renewals.into_iter().for_each(|(key, _)| self.context.discard(key));
                return self.lose_all();
            }
            let watchdog = || Arc::clone(self);
            let renewal = |(key, name)| Renewal { watchdog: watchdog(), name, key: Some(key) };
            let batch: Vec<_> = round.renewals.drain(..).map(renewal).collect();
            if !batch.is_empty() {
                self.call_store(batch, |store, batch| store.renew(batch));
            }
        }
    }

    /// Handles a round that was not run, because the executor refused it or the timer was shut
    /// down. In the first case the round is tried again a little later, like a failed renewal.
    fn missed(self: &Arc<Self>, number: u64) {
        let later = self.now() + self.terms.retry();
        let mut schedule = self.schedule.lock();
        schedule.forget(number);
        let planned = self.plan(schedule, later);
        if planned.is_err() {
            self.lose_all(); // Before the refused round is dropped, which would be missed as well.
        }
    }

    fn report_lost(&self, lost: impl IntoIterator<Item = Left<K>>) {
        for (key, spare) in lost {
            self.call_store(key, |store, key| store.lost(key));
            self.context.discard(spare);
        }
    }

    /// Gives something to the store, or drops it once the leases have ended: that is looked at each
    /// time, because the call before may have dropped the last clone.
    fn call_store<V>(&self, what: V, call: impl FnOnce(&dyn LeaseStore<K>, V)) {
        let store = self.schedule.lock().store.clone();
        self.context.catch_panic(|| match store {
            Some(store) => call(&***store, what),
            None => drop(what),
        });
    }

    /// Drops what has left the book.
    fn discard(&self, left: impl IntoIterator<Item = Left<K>>) {
        for (key, spare) in left {
            self.context.discard(key);
            self.context.discard(spare);
        }
    }

    /// Ends all leases because the last clone is dropped.
    pub(crate) fn end(&self) {
        let store = self.schedule.lock().store.take();
        self.lose_all();
        drop(store);
    }

    /// Ends all leases, because nothing can renew them any more: none is held as soon as this
    /// begins. They are removed a few at a time, so that the lock is never held for long.
    fn lose_all(&self) {
        loop {
            let left = self.schedule.lock().book.close();
            if left.is_empty() {
                break;
            }
            self.report_lost(left);
        }
        let mut schedule = self.schedule.lock();
        let number = schedule.number;
        let plan = schedule.forget(number);
        drop(schedule);
        if let Plan::Added(round) = plan {
            drop(round.cancel());
        }
    }
}

impl<K> Schedule<K> {
    /// Forgets the round with this number, which has begun, can't be moved or is no longer needed.
    /// Returns what was planned. A thread that is still adding it sees that the number has changed.
    fn forget(&mut self, number: u64) -> Plan {
        if self.number != number {
            return Plan::Nothing;
        }
        self.number += 1;
        mem::replace(&mut self.plan, Plan::Nothing)
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for RoundTask<K> {
    fn drop(&mut self) {
        if let Some(watchdog) = self.0.take() {
            watchdog.missed(self.1);
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Renewal<K> {
    fn drop(&mut self) {
        self.answer(Answer::Failed);
    }
}
