//! Leases that are renewed while they are held: a watchdog for locks in a store.

pub(crate) mod book;
pub(crate) mod terms;

use crate::lease::book::{Answer, Book, Round};
use crate::lease::terms::LeaseTerms;
use crate::report::{self, contain};
use crate::sync::Mutex;
use crate::{AddError, Task, Timeout, Timer, TimerEntry};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

/// Where leases live: a lock server, a database.
///
/// Called by the timer's executor, with no lock held: a store that may take its time has a thread
/// of its own, and hands the batches over. A panic is contained and reported; what it leaves
/// unanswered counts as failed.
pub trait LeaseStore<K>: Send + Sync + 'static {
    /// Renews each of these leases, and answers each: at once, or later from any thread. What is
    /// dropped unanswered has failed, and is tried again.
    fn renew(&self, batch: Vec<Renewal<K>>)
    where
        K: Hash + Eq + Clone + Send + 'static;

    /// A lease is lost: it ran out unrenewed, or the store said that it is gone. Called once for
    /// each lease that was not released before.
    fn lost(&self, key: K);
}

/// Leases on keys, which are renewed as long as they are held.
///
/// Whoever has taken a lock in a store for a limited time says [`hold`](Self::hold). From then on
/// the lease is renewed, a third of it after it was taken or renewed, many leases in one call to
/// the store. A renewal that fails is tried again while the lease lasts, without disturbing the
/// others. If it runs out all the same, or the store says that it is gone,
/// [`LeaseStore::lost`] is called, once.
///
/// The timer's executor must not drop the tasks that it refuses: without its rounds nothing is
/// renewed, nor reported lost.
///
/// Cloning shares it. It keeps the timer. When the last clone is dropped, nothing is renewed any
/// more, and nothing is lost. When the timer is shut down as the next round of renewals has to be
/// planned, all leases are reported lost at once: nobody would renew them. All leases take one
/// timer, which goes above `max_pending` if need be.
///
/// After Redisson's lock watchdog.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use std::time::Duration;
/// use tickwheel::{LeaseStore, LeaseTerms, Leases, ManualClock, Renewal, Timer};
///
/// struct Store(Sender<String>);
///
/// impl LeaseStore<&'static str> for Store {
///     fn renew(&self, batch: Vec<Renewal<&'static str>>) {
///         for renewal in batch {
///             self.0.send(format!("renew {}", renewal.key())).unwrap();
///             renewal.renewed(); // As the server says.
///         }
///     }
///     fn lost(&self, key: &'static str) {
///         self.0.send(format!("lost {key}")).unwrap();
///     }
/// }
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (sender, log) = channel();
/// let leases = Leases::new(&timer, LeaseTerms::new(Duration::from_secs(30)), Store(sender));
/// let lease = leases.hold("orders")?;
/// for _ in 0..25 {
///     clock.advance(Duration::from_secs(1));
///     timer.advance_clock(Duration::ZERO);
/// }
/// assert_eq!(log.try_iter().collect::<Vec<_>>(), ["renew orders", "renew orders"]);
/// assert!(lease.release());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Leases<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    shared: Arc<Shared<K>>,
}

/// Dropped with the last clone.
struct Shared<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    /// Kept, so that renewal does not end with somebody else's last clone.
    _timer: Timer,
    watchdog: Arc<Watchdog<K>>,
}

/// The timer's task: a round of renewals. Leases and answers refer to it.
struct Watchdog<K> {
    terms: LeaseTerms,
    timer: crate::WeakTimer,
    /// The timer's locks may be taken under it.
    state: Mutex<State<K>>,
    store: Box<dyn LeaseStore<K>>,
}

struct State<K> {
    book: Book<K>,
    /// When the next round is, and its timeout.
    round: Option<(Instant, Timeout)>,
}

/// A lease that is held. Dropping it stops its renewal, as [`release`](Self::release) does.
#[must_use = "dropped at once, it is not renewed"]
pub struct Lease<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    watchdog: Arc<Watchdog<K>>,
    key: K,
    generation: u64,
}

/// A lease that the store has to renew. Dropped unanswered, it has failed.
pub struct Renewal<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    watchdog: Arc<Watchdog<K>>,
    key: K,
    generation: u64,
    answered: bool,
}

impl<K> Leases<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    /// No leases yet. They are renewed by calls to `store` from `timer`'s executor.
    pub fn new(timer: &Timer, terms: LeaseTerms, store: impl LeaseStore<K>) -> Self {
        let state = Mutex::new(State { book: Book::new(terms), round: None });
        let (weak, store) = (timer.downgrade(), Box::new(store));
        let watchdog = Arc::new(Watchdog { terms, timer: weak, state, store });
        Leases { shared: Arc::new(Shared { _timer: timer.clone(), watchdog }) }
    }

    /// Begins to renew a lease that was taken at this moment: [`hold_since`](Self::hold_since) now.
    ///
    /// # Errors
    /// [`AddError::Shutdown`] if the timer was shut down.
    pub fn hold(&self, key: K) -> Result<Lease<K>, AddError<Task>> {
        self.hold_since(key, self.shared.watchdog.now())
    }

    /// Begins to renew a lease that was taken at `since` or later: when the store was asked for it,
    /// by the timer's clock; not in the future. So a slow answer makes no lease last longer here
    /// than in the store.
    ///
    /// If the key is held already, that is a new generation: the former lease is not renewed any
    /// more, and not lost.
    ///
    /// # Errors
    /// [`AddError::Shutdown`] if the timer was shut down. The former lease has ended then as well.
    pub fn hold_since(&self, key: K, since: Instant) -> Result<Lease<K>, AddError<Task>> {
        let watchdog = Arc::clone(&self.shared.watchdog);
        let since = since.min(watchdog.now());
        let mut state = watchdog.state.lock();
        let generation = state.book.take(key.clone(), since);
        if let Err(error) = watchdog.plan(&mut state) {
            state.book.release(&key, generation, since);
            return Err(error);
        }
        drop(state);
        Ok(Lease { watchdog, key, generation })
    }

    /// How many leases are held; what has run out counts until it is reported lost.
    pub fn len(&self) -> usize {
        self.shared.watchdog.state.lock().book.len()
    }

    /// Whether no lease is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Lease<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Whether it is held: it has not run out, is not lost, and was not taken again. Looks at the
    /// clock: a process that has slept is told so before it hears of the loss.
    pub fn is_held(&self) -> bool {
        let now = self.watchdog.now();
        self.watchdog.state.lock().book.is_held(&self.key, self.generation, now)
    }

    /// Stops the renewal; whether the lease was still held. Call it before the lock is given back
    /// to the store, and give back only what was held.
    ///
    /// After it no answer counts, and `lost` is not called if it was still held; if it was not,
    /// that call may be on its way. So may a renewal to the store, which must renew only what this
    /// holder has: nothing once it was given back.
    pub fn release(self) -> bool {
        self.watchdog.release(&self.key, self.generation)
    }
}

impl<K> Renewal<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The store has renewed the lease.
    pub fn renewed(self) {
        self.answer(Answer::Renewed);
    }

    /// The store says that this holder has the lease no more: it is lost.
    pub fn gone(self) {
        self.answer(Answer::Gone);
    }

    /// It is not known whether the lease was renewed: it is tried again.
    pub fn failed(self) {
        drop(self);
    }

    fn answer(mut self, answer: Answer) {
        self.answered = true;
        self.watchdog.answer(&self.key, self.generation, answer);
    }
}

impl<K> Watchdog<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn now(&self) -> Instant {
        self.timer.upgrade().map_or_else(Instant::now, |timer| timer.now())
    }

    fn release(&self, key: &K, generation: u64) -> bool {
        let now = self.now();
        self.state.lock().book.release(key, generation, now)
    }

    /// Sees to it that there is a round when something is due.
    fn plan(self: &Arc<Self>, state: &mut State<K>) -> Result<(), AddError<Task>> {
        let Some(due) = state.book.next_due() else { return Ok(()) };
        if let Some((at, timeout)) = &mut state.round {
            if (*at <= due && timeout.is_pending()) || timeout.reschedule_at(due) {
                *at = due.min(*at);
                return Ok(());
            }
        }
        state.round = None;
        let entry = TimerEntry::at(due, Task::from(Waker::from(Arc::clone(self))));
        let timeout = match self.timer.upgrade() {
            // One for all leases: they are not lost because somebody else has filled the timer.
            Some(timer) => timer.add_beyond_limit(entry)?,
            None => return Err(AddError::Shutdown(entry)),
        };
        state.round = Some((due, timeout));
        Ok(())
    }

    /// The same after something has changed. If nobody can renew any more, all leases are lost.
    fn plan_or_lose(self: &Arc<Self>, state: &mut State<K>) -> Vec<K> {
        match self.plan(state) {
            Ok(()) => Vec::new(),
            Err(_) => state.book.clear(),
        }
    }

    fn answer(self: &Arc<Self>, key: &K, generation: u64, answer: Answer) {
        let now = self.now();
        let mut state = self.state.lock();
        let is_lost = state.book.answer(key, generation, answer, now);
        let mut lost = self.plan_or_lose(&mut state);
        drop(state);
        lost.extend(is_lost.then(|| key.clone()));
        self.report_lost(lost);
    }

    fn report_lost(&self, lost: Vec<K>) {
        for key in lost {
            contain(|| self.store.lost(key));
        }
    }
}

impl<K> Wake for Watchdog<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn wake(self: Arc<Self>) {
        let now = self.now();
        let mut state = self.state.lock();
        let Round { renewals, mut lost, failed } = state.book.round(now);
        lost.extend(self.plan_or_lose(&mut state));
        // If all are lost because of a shutdown, the store must not renew them for nobody.
        let renewals = if state.book.len() == 0 { Vec::new() } else { renewals };
        drop(state);
        if failed > 0 {
            // Not one by one: an outage may fail them all, again and again.
            report::warn!(failed = failed, "leases were not renewed: tried again");
        }
        self.report_lost(lost);
        let renewal = |(key, generation)| {
            let watchdog = Arc::clone(&self);
            Renewal { watchdog, key, generation, answered: false }
        };
        let mut renewals = renewals.into_iter().map(renewal).peekable();
        while renewals.peek().is_some() {
            contain(|| self.store.renew(renewals.by_ref().take(self.terms.batch_size).collect()));
        }
    }
}

impl<K> Drop for Renewal<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn drop(&mut self) {
        if !self.answered {
            self.watchdog.answer(&self.key, self.generation, Answer::Failed);
        }
    }
}

impl<K> Drop for Lease<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn drop(&mut self) {
        self.watchdog.release(&self.key, self.generation);
    }
}

impl<K> Drop for Shared<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn drop(&mut self) {
        let mut state = self.watchdog.state.lock();
        drop(state.book.clear());
        let round = state.round.take();
        drop(state);
        drop(round.map(|(_, timeout)| timeout.cancel()));
    }
}

impl<K> Clone for Leases<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn clone(&self) -> Self {
        Leases { shared: Arc::clone(&self.shared) }
    }
}

macro_rules! debug_by_name {
    ($($name:ident),*) => {$(
        impl<K: Hash + Eq + Clone + Send + 'static> fmt::Debug for $name<K> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
debug_by_name!(Leases, Lease, Renewal);
