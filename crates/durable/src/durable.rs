//! A node: its builder, and its calls.

mod bulk;

use crate::contained::event;
use crate::entry::{
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Scheduled, Search, Touched,
    check_name,
};
use crate::node::acker::{Acker, Ended};
use crate::node::batcher::{BATCH, Batcher, Call, WORKERS, take_batch};
use crate::node::runner::{Handler, Runner};
use crate::node::stats::Stats;
use crate::node::undriven::{UNDRIVEN, if_undriven};
use crate::node::{Drain, Node, Options, claimer, keeper, lookout, taker};
use crate::store::{Name, NewTimer, Operations, Store};
use crate::sync::{JoinSet, Mutex, lock};
use crate::when::{Moment, When};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::Timer;
use tokio::sync::{mpsc, watch};

/// Opens a store when a node starts.
pub trait OpenStore: Send {
    /// The store.
    type Store: Store;

    /// Connects, and makes the tables if they are missing. `lease` is the node's.
    fn open(self, lease: Duration) -> impl Future<Output = Result<Self::Store, Error>> + Send;
}

impl<S: Store> OpenStore for S {
    type Store = S;

    async fn open(self, _: Duration) -> Result<S, Error> {
        Ok(self)
    }
}

/// Sets up a node: [`Durable`] makes a builder for each kind of store.
#[derive(Debug)]
#[must_use = "a builder does nothing unless it is started"]
pub struct DurableBuilder<O> {
    pub(crate) store: O,
    pub(crate) options: Options,
}

impl<O: OpenStore> DurableBuilder<O> {
    pub(crate) fn new(store: O) -> Self {
        DurableBuilder {
            store,
            options: Options::default(),
        }
    }

    /// Sets how long a claim lasts that is not renewed: 5 s by default, 100 ms to a day. Claims
    /// that the store answers after more than half a lease are given back unrun: choose a lease of
    /// many times the store's answers under load.
    ///
    /// Timers that a dead node had in its handlers run again after a lease and up to two seconds.
    /// Handlers that run long have claims of up to a minute, which are waited for as well. Other
    /// timers do not wait.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(Duration::from_millis(100), Duration::from_secs(86_400));
        self
    }

    /// Sets how many timers are claimed and not acknowledged, at most: 1,000 by default, at most a
    /// million. As many run twice if the node dies. A node with 0 runs none: it schedules, cancels
    /// and lists timers for other nodes to run, and asks nothing of the store by itself.
    pub fn max_in_flight(mut self, max_in_flight: u32) -> Self {
        self.options.max_in_flight = max_in_flight.min(1 << 20);
        self
    }

    /// Sets after how many attempts a timer is given up: 20 by default, at least one.
    ///
    /// After three crashes of the process a timer runs alone, and only then a crash counts as its
    /// attempt. After such a crash it waits until a process has been up for twelve leases, then
    /// twice as long each time, up to 192 leases.
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.options.max_attempts = max_attempts.max(1);
        self
    }

    /// Sets when a handler that panicked or [failed](Outcome::Failed) is called again: after a
    /// second by default. The delay doubles with each attempt, up to 1,024 times the first delay.
    /// Up to a quarter is added at random.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.options.retry_after = retry_after;
        self
    }

    /// Sets how long a handler may take: without limit by default. A longer handler is dropped at
    /// its next `await`, and has [failed](Outcome::Failed). A handler that blocks its thread is not
    /// interrupted.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.options.time_limit = Some(limit);
        self
    }

    /// Opens the store, and calls `handler` with each timer that is due.
    ///
    /// The handler runs on the current tokio runtime, up to
    /// [`max_in_flight`](Self::max_in_flight) at once, one at a time for each key. A panic is a
    /// failed attempt. A handler must not block the runtime's threads, but use
    /// `tokio::task::spawn_blocking`: a node whose threads are blocked for a lease cannot renew its
    /// claims, and other nodes run the timers as well.
    ///
    /// `timer` must be driven, for example by its own thread
    /// ([`start`](tickwheel::TimerBuilder::start)). It must have no `max_pending`: a full timer
    /// refuses the node's own sleeps. Timers are late by up to its tick.
    ///
    /// # Errors
    /// The errors of opening the store. Later the node repeats calls that fail.
    ///
    /// # Panics
    /// Outside of a tokio runtime; on PostgreSQL also in one without I/O or time.
    pub async fn start<T, H, F>(
        self,
        timer: &Timer<T>,
        handler: H,
    ) -> Result<Durable<O::Store>, Error>
    where
        T: Send + 'static,
        H: Fn(Due) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let store = self.store.open(self.options.lease).await?;
        // Claims begin at the store's present: its clock may differ from this machine's. A look
        // would do, but may take too long: see `lookout`.
        let now = store.renew(Vec::new()).await?.now;
        let handler: Handler = Box::new(move |due| Box::pin(handler(due)) as _);
        let (ended, queue) = mpsc::unbounded_channel();
        let node = Arc::new(Node::new(store, now, timer.closures(), self.options, ended));
        let inner = Arc::new(Inner::new(Arc::clone(&node)));
        // A node that runs no timer asks nothing by itself.
        if node.options.max_in_flight > 0 {
            // Each `Due` leads to the node, weakly: a handler must not keep one that was dropped.
            let owner: Weak<Inner<O::Store>> = Arc::downgrade(&inner);
            // Not before `inner` is there: a handler asks for its node.
            inner.run(Runner::new(node, owner as _, handler), queue);
        }
        Ok(Durable { inner })
    }
}

/// A node's durable timers, in one namespace of a store: see the [crate's page](crate).
///
/// Clones share the node. When the last clone is dropped, the node stops as in a crash: handlers
/// are dropped, and their timers run again elsewhere when their claims have run out. Call
/// [`drain`](Self::drain) to avoid that.
///
/// All calls may be made at once, from any task of any runtime, while the runtime of the start
/// runs. A call returns when the store has committed. A call whose future is dropped may still take
/// effect; one in steps ends after a step. A call that starts after another one has returned takes
/// effect after it; concurrent calls on one key take effect in either order.
pub struct Durable<S: Store> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    node: Arc<Node<S>>,
    schedules: Batcher<NewTimer>,
    cancels: Batcher<Name>,
    touches: Batcher<(Name, Moment)>,
    /// Each task that claims has a receiver. Such a task ends when the node has left and the
    /// handlers that the task has called have ended.
    claimers: watch::Sender<()>,
    /// End when `Inner` is dropped.
    tasks: Mutex<JoinSet<()>>,
}

impl<S: Store> Inner<S> {
    /// Spawns the tasks of the node's calls.
    fn new(node: Arc<Node<S>>) -> Self {
        let mut tasks = JoinSet::new();
        if_undriven(&node.timer, &mut tasks, UNDRIVEN, || {
            event!(
                warn,
                "no timer fires: nobody calls `advance_clock` of the timer, or `start`"
            );
        });
        Inner {
            schedules: Batcher::spawn(&mut tasks, &node),
            cancels: Batcher::spawn(&mut tasks, &node),
            touches: Batcher::spawn(&mut tasks, &node),
            node,
            claimers: watch::Sender::default(),
            tasks: Mutex::new(tasks),
        }
    }

    /// Spawns the tasks that run timers.
    fn run(&self, runner: Runner<S>, queue: mpsc::UnboundedReceiver<Ended>) {
        let node = || Arc::clone(&self.node);
        let runner = Arc::new(runner);
        self.spawn_claimer(claimer::run(node(), Arc::clone(&runner)));
        self.spawn_claimer(taker::run(node(), runner));
        let mut tasks = lock(&self.tasks);
        tasks.spawn(claimer::listen(node()));
        tasks.spawn(lookout::run(node()));
        tasks.spawn(keeper::run(node()));
        let acker = Arc::new(Acker::new(node(), queue));
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&acker).run());
        }
    }

    fn spawn_claimer(&self, run: impl Future<Output = ()> + Send + 'static) {
        let claimer = self.claimers.subscribe();
        lock(&self.tasks).spawn(async move {
            run.await;
            drop(claimer);
        });
    }
}

impl Due {
    /// Returns the node whose handler this is, to schedule further timers. `None` if the last clone
    /// was dropped, or the store is of another kind. Do not keep the node beyond the handler.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_durable::store::Store; // Or `Memory`, or `Postgres`.
    /// use tickwheel_durable::{Due, Entry, Outcome};
    ///
    /// async fn remind<S: Store>(due: Due) -> Outcome {
    ///     let Some(node) = due.node::<S>() else { return Outcome::Failed("gone".into()) };
    ///     match node.schedule(Entry::keyed("follow-up", Duration::from_secs(60), "x")).await {
    ///         Ok(_) => Outcome::Done,
    ///         Err(error) => Outcome::Failed(error.to_string()),
    ///     }
    /// }
    /// ```
    pub fn node<S: Store>(&self) -> Option<Durable<S>> {
        let inner = self.owner.upgrade()?.downcast::<Inner<S>>().ok()?;
        Some(Durable { inner })
    }
}

impl<S: Store> Durable<S> {
    /// Schedules a timer. `Ok` means that the timer is committed: it fires or is cancelled,
    /// whatever becomes of this node. A timer replaces the key's former timer. If that timer's
    /// handler runs, the new timer waits for its end.
    ///
    /// Waits for one commit, shared with simultaneous calls.
    ///
    /// # Errors
    /// [`Error::BadName`] and [`Error::PayloadTooLong`]; [`Error::Unavailable`] and
    /// [`Error::Refused`]: nothing was scheduled; [`Error::Uncertain`]: it may have been;
    /// [`Error::Closed`] after a drain.
    pub async fn schedule(&self, entry: Entry) -> Result<Scheduled, Error> {
        let timer = entry.timer()?;
        self.check_open()?;
        self.inner.schedules.call(timer).await
    }

    /// Schedules many timers, in batches of 1,000 timers or 1 MiB. Each batch is one commit, except
    /// for keys that another transaction has locked. Entries with the same key take effect in
    /// order. The answers are in order.
    ///
    /// # Errors
    /// As for [`schedule`](Self::schedule). Earlier batches are committed, and the unlocked keys of
    /// the failed batch; a bad entry is found before any commit.
    pub async fn schedule_many(&self, entries: Vec<Entry>) -> Result<Vec<Scheduled>, Error> {
        let timers = entries.into_iter().map(Entry::timer);
        let timers = timers.collect::<Result<Vec<NewTimer>, Error>>()?;
        let mut waiting: VecDeque<(NewTimer, usize)> = timers.into_iter().zip(0..).collect();
        let mut scheduled = Vec::with_capacity(waiting.len());
        let mut batch = take_batch(&mut waiting, BATCH);
        while !batch.is_empty() {
            self.check_open()?;
            let node = &self.inner.node;
            let timers = batch.iter().map(|(timer, _)| timer.clone()).collect();
            // The next one is put together while the store has this one.
            let next = async { take_batch(&mut waiting, BATCH) };
            let (answers, next) = tokio::join!(NewTimer::call(node, timers), next);
            for ((timer, index), answer) in batch.into_iter().zip(answers?) {
                let answer = match answer {
                    Some(answer) => answer,
                    // Not here: the future of this call may not be polled for a while.
                    None => self.inner.schedules.call(timer).await?,
                };
                scheduled.push((index, answer));
            }
            batch = next;
        }
        // A key that stood twice was left for a later batch.
        scheduled.sort_unstable_by_key(|(index, _)| *index);
        Ok(scheduled.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Cancels a key's timer, unless a handler has it: see [`Cancelled`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Refused`]: nothing was cancelled; [`Error::Uncertain`]:
    /// the timer may be cancelled; [`Error::BadName`], [`Error::Closed`].
    pub async fn cancel(&self, key: &str) -> Result<Cancelled, Error> {
        check_name("key", key)?;
        self.check_open()?;
        self.inner.cancels.call(Name::of_key(key)).await
    }

    /// Moves a key's timer, earlier or later, unless a handler has it.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn touch(&self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        check_name("key", key)?;
        self.check_open()?;
        let moment = Moment::from(when.into());
        self.inner.touches.call((Name::of_key(key), moment)).await
    }

    /// Returns a key's timer, if it has one. A dead timer is not found: see [`dead`](Self::dead).
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::BadName`].
    pub async fn get(&self, key: &str) -> Result<Option<Listed>, Error> {
        check_name("key", key)?;
        self.store().get(Name::of_key(key)).await
    }

    /// Lists timers in the order of their times, those that handlers have included.
    ///
    /// Reads all timers that handlers have, and the others from the first to the last one of the
    /// page, left out or not. With a tag or a key prefix PostgreSQL reads all timers of that tag
    /// or prefix instead.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Refused`] on PostgreSQL of a zero byte in the search.
    pub async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.store().list(search).await
    }

    /// Lists dead timers in the order of their deaths. Reads the dead timers from the first to the
    /// last one of the page, left out or not. With a tag PostgreSQL reads all timers of that tag
    /// instead, those that are not dead included.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Refused`] on PostgreSQL of a zero byte in the search.
    pub async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.store().dead(search).await
    }

    /// Stops claims, and waits: for running handlers without limit, then for their
    /// acknowledgements a lease at most. What is not acknowledged by then runs again elsewhere.
    /// Drain before you shut the timer down: after that no acknowledgement is waited for.
    /// Other nodes run the other timers. Do not wait for a drain in a handler, for which the drain
    /// waits. A drain whose future you drop claims nothing either: drain again, as calls may
    /// schedule timers until a drain returns.
    ///
    /// Once the handlers have ended, calls that change timers fail with [`Error::Closed`]. Lists
    /// and lookups still work, and so do calls in your own transactions on PostgreSQL.
    pub async fn drain(&self) {
        let node = &self.inner.node;
        node.reach(Drain::Waits);
        self.inner.claimers.closed().await;
        node.drained.store(true, Relaxed);
        // A place is free again once its timer is acknowledged.
        let all = node.room.acquire_many(node.options.max_in_flight);
        // What is not acknowledged by then runs again, as after a crash.
        let _ = node.timer.timeout(node.options.lease, all).await;
    }

    /// Drains as [`drain`](Self::drain) does, but waits for running handlers no longer than
    /// `limit`. Then drops them at their next `await`: their timers are due again at once, for
    /// other nodes, unless they have expired, and the attempts do not count. A handler that blocks
    /// its thread is waited for. What a handler has spawned goes on, and is told by
    /// [`Due::is_lost`].
    pub async fn drain_within(&self, limit: Duration) {
        let node = &self.inner.node;
        node.reach(Drain::Waits);
        let ended = node.timer.timeout(limit, self.inner.claimers.closed());
        // Fails as well if the timer was shut down: it measures no limit any more.
        if ended.await.is_err() {
            node.reach(Drain::Drops);
        }
        self.drain().await;
    }

    /// Returns counts and the state of this node. Costs little.
    pub fn stats(&self) -> Stats {
        let node = &self.inner.node;
        let counted = node.count().clone();
        Stats {
            in_flight: node.held.len() as u64,
            ..counted
        }
    }

    #[cfg(any(test, feature = "sqlite"))]
    pub(crate) fn node(&self) -> &Node<S> {
        &self.inner.node
    }

    pub(crate) fn store(&self) -> &S {
        &self.inner.node.store
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        let node = &self.inner.node;
        match node.drained.load(Relaxed) || node.timer.is_shutdown() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

impl Call for NewTimer {
    type Answer = Scheduled;

    async fn call<S: Store>(
        node: &Node<S>,
        timers: Vec<Self>,
    ) -> Result<Vec<Option<Scheduled>>, Error> {
        let tell = node.tells(timers.len());
        let changed = node.store.schedule(timers, tell).await?;
        let written = changed.answers.iter().flatten();
        let written = written.filter(|answer| **answer != Scheduled::Kept).count();
        node.count().scheduled += written as u64;
        if changed.answers.contains(&Some(Scheduled::Replaced)) {
            node.agenda.note_change();
        }
        node.note(changed.now, changed.first);
        Ok(changed.answers)
    }
}

impl Call for Name {
    type Answer = Cancelled;

    async fn call<S: Store>(
        node: &Node<S>,
        names: Vec<Self>,
    ) -> Result<Vec<Option<Cancelled>>, Error> {
        let changed = node.store.cancel(names).await?;
        node.agenda.note_change();
        let answers = changed.answers.iter().flatten();
        let cancelled = answers.filter(|answer| matches!(answer, Cancelled::Cancelled(_)));
        node.count().cancelled += cancelled.count() as u64;
        Ok(changed.answers)
    }
}

impl Call for (Name, Moment) {
    type Answer = Touched;

    async fn call<S: Store>(
        node: &Node<S>,
        moves: Vec<Self>,
    ) -> Result<Vec<Option<Touched>>, Error> {
        let tell = node.tells(moves.len());
        let changed = node.store.touch(moves, tell).await?;
        node.agenda.note_change();
        node.note(changed.now, changed.first);
        Ok(changed.answers)
    }
}

impl<S: Store> Clone for Durable<S> {
    fn clone(&self) -> Self {
        Durable {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S: Store> fmt::Debug for Durable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
