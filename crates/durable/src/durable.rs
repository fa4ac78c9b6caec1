//! A node: its builder, and its calls.

mod bulk;

use crate::entry::{
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Pending, Scheduled, Search, Touched,
    When, check_name,
};
use crate::node::batcher::{Batcher, WORKERS, fitting_rows, look_again};
use crate::node::deadline::LONGEST;
use crate::node::runner::{self, Handler, Runner};
use crate::node::stats::Stats;
use crate::node::{Node, Options, UNDRIVEN, claimer, draw, if_undriven, loader, membership};
use crate::store::{Bars, KeyName, NewRow, NodeId, Place, Store, StoreTime, Written};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

/// Opens a store when a node starts.
pub trait OpenStore: Send {
    /// The store.
    type Store: Store;

    /// Connects, and brings the tables up to date.
    fn open(self) -> impl Future<Output = Result<Self::Store, Error>> + Send;
}

impl<S: Store> OpenStore for S {
    type Store = S;

    async fn open(self) -> Result<S, Error> {
        Ok(self)
    }
}

/// Sets up a node: [`Durable`] makes a builder for each kind of store.
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

    /// Sets how long a node may be silent before other nodes take its timers over: 5 s by default,
    /// 100 ms to a day. Use the same lease on all nodes of a namespace. Timers of a dead node are
    /// late by the lease and the time to load them.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(Duration::from_millis(100), Duration::from_secs(86_400));
        self
    }

    /// Sets how far ahead timers are loaded into the wheel: a minute by default, at least 2 s. A
    /// longer window takes more memory, a shorter window more queries.
    pub fn window(mut self, window: Duration) -> Self {
        self.options.window = window.clamp(Duration::from_secs(2), LONGEST);
        self
    }

    /// Sets how many timers are claimed and not acknowledged, at most: 1,000 by default, at least
    /// one. As many run twice if the node dies.
    pub fn max_in_flight(mut self, max_in_flight: u32) -> Self {
        self.options.max_in_flight = max_in_flight.clamp(1, u32::MAX >> 4);
        self
    }

    /// Sets how many timers are loaded, at most: a million by default, at least one. Further timers
    /// fire a second or two late.
    pub fn max_near(mut self, max_near: usize) -> Self {
        self.options.max_near = max_near.max(1);
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
    /// second by default, doubled each time, plus up to a quarter at random.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.options.retry_after = retry_after;
        self
    }

    /// Sets how long a handler may take: without limit by default. A longer handler is dropped at
    /// its next `await`, and has [failed](Outcome::Failed). A handler that blocks its thread is not
    /// interrupted. A handler can [ask for more time](Due::extend).
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.options.time_limit = Some(limit);
        self
    }

    /// Sets how many timers that are over five seconds late are claimed in a second, for example
    /// after an outage: without limit by default, at least one. Timers on time go first.
    pub fn catch_up_rate(mut self, per_second: u32) -> Self {
        self.options.catch_up_rate = per_second.max(1);
        self
    }

    /// Returns the bare store, for tests and tools.
    pub fn store(self) -> O {
        self.store
    }

    /// Opens the store, joins the other nodes, and calls `handler` with each timer that is due.
    ///
    /// The handler runs on the current tokio runtime, up to
    /// [`max_in_flight`](Self::max_in_flight) at once, one at a time for each key. A panic is a
    /// failed attempt. `timer` must be driven, for example by its own thread
    /// ([`start`](tickwheel::TimerBuilder::start)). It must have no `max_pending`: a full timer
    /// refuses to renew the node's lease.
    ///
    /// # Errors
    /// The errors of opening the store. Later failures are repeated by the node.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
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
        let store = self.store.open().await?;
        let handler = Box::new(move |due| Box::pin(handler(due)) as _);
        Durable::start(store, timer.closures(), self.options, handler).await
    }
}

impl<O> fmt::Debug for DurableBuilder<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableBuilder")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A node's durable timers, in one namespace of a store: see the [crate's page](crate).
///
/// Clones share the node. When the last clone is dropped, the node stops as in a crash: claimed
/// timers run again elsewhere when the lease has run out. Call [`drain`](Self::drain) to avoid
/// that.
///
/// All calls may be made at once, from any task of the runtime. A call returns when the store has
/// committed. Dropping a call's future does not undo the call. A call that starts after another one
/// has returned takes effect after it; concurrent calls on one key take effect in either order.
pub struct Durable<S: Store> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    node: Arc<Node<S>>,
    schedules: Batcher<NewRow, Scheduled>,
    cancels: Batcher<KeyName, Cancelled>,
    touches: Batcher<(KeyName, StoreTime), Touched>,
    leave: watch::Sender<bool>,
    /// Ends when the node has left.
    member: Mutex<JoinSet<()>>,
    /// Ends when `Inner` is dropped.
    _tasks: JoinSet<()>,
}

impl<S: Store> Inner<S> {
    /// Spawns the node's tasks.
    fn new(
        node: Arc<Node<S>>,
        handler: Handler,
        owner: Weak<dyn Any + Send + Sync>,
        room: Arc<Semaphore>,
    ) -> Self {
        let (mut tasks, mut member) = (JoinSet::new(), JoinSet::new());
        let (leave, leaving) = watch::channel(false);
        member.spawn(membership::run(Arc::clone(&node), leaving));
        tasks.spawn(loader::run(Arc::clone(&node)));
        if_undriven(&node.timer, &mut tasks, UNDRIVEN, || {
            tracing::warn!("no timer fires: nobody calls `advance_clock` of the timer, or `start`");
        });
        let (ended, queue) = mpsc::unbounded_channel();
        let again = ended.downgrade();
        let runner = Arc::new(Runner::new(Arc::clone(&node), owner, handler, ended));
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..WORKERS {
            let (runner, room) = (Arc::clone(&runner), Arc::clone(&room));
            tasks.spawn(claimer::run(Arc::clone(&node), runner, room));
            tasks.spawn(runner::run_acker(
                Arc::clone(&node),
                Arc::clone(&queue),
                again.clone(),
            ));
        }
        tasks.spawn(claimer::run_suspects(Arc::clone(&node), runner, room));
        Inner {
            schedules: Batcher::spawn(&mut tasks, &node, |node, rows| async move {
                schedule(&node, rows).await
            }),
            cancels: Batcher::spawn(&mut tasks, &node, |node, keys| async move {
                node.store.cancel(keys).await
            }),
            touches: Batcher::spawn(&mut tasks, &node, |node, keys| async move {
                node.store.touch(keys).await
            }),
            node,
            leave,
            member: Mutex::new(member),
            _tasks: tasks,
        }
    }
}

impl Due {
    /// Returns the node whose handler this is, to schedule further timers. `None` if the last clone
    /// was dropped, or the store is of another kind. Do not keep the node beyond the handler.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_durable::store::Store; // Or `Sqlite`, or `Postgres`.
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
    async fn start(
        store: S,
        timer: Timer,
        options: Options,
        handler: Handler,
    ) -> Result<Self, Error> {
        let node = Arc::new(Node::new(store, timer, options));
        node.store.connect().await?;
        // Before anything is scheduled: what time it is there.
        let asked = node.timer.now();
        node.clock
            .observe(asked, node.store.hints(NodeId(0)).await?.now);
        let places = node.options.max_in_flight as usize;
        let room = Arc::new(Semaphore::new(0));
        let inner = Arc::new_cyclic(|inner: &Weak<Inner<S>>| {
            Inner::new(node, handler, inner.clone() as _, Arc::clone(&room))
        });
        // Handlers are called from now on: what they are given is there.
        room.add_permits(places);
        Ok(Durable { inner })
    }

    /// Schedules a timer. `Ok` means that the timer is committed: it fires or is cancelled,
    /// whatever becomes of this node. A timer replaces the key's former timer. If that timer's
    /// handler runs, both handlers may run, one after the other.
    ///
    /// Waits for one commit, shared with simultaneous calls.
    ///
    /// # Errors
    /// [`Error::BadName`] and [`Error::PayloadTooLong`]; [`Error::Unavailable`] and
    /// [`Error::Refused`]: nothing was scheduled; [`Error::Uncertain`]: it may have been;
    /// [`Error::Closed`] after a drain.
    pub async fn schedule(&self, entry: Entry) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        self.check_open()?;
        self.inner.schedules.call(row).await
    }

    /// Schedules many timers, in batches of 1,000 timers or 1 MiB. Each batch is one commit, except
    /// for keys that another transaction has locked. Entries with the same key take effect in
    /// order. The answers are in order.
    ///
    /// # Errors
    /// As for [`schedule`](Self::schedule). Earlier batches are committed, and the unlocked keys of
    /// the failed batch; a bad entry is found before any commit.
    pub async fn schedule_many(&self, entries: Vec<Entry>) -> Result<Vec<Scheduled>, Error> {
        let rows = entries.into_iter().map(|entry| self.row(entry));
        let mut rows = rows.collect::<Result<Vec<NewRow>, Error>>()?;
        let mut answers = Vec::with_capacity(rows.len());
        while !rows.is_empty() {
            self.check_open()?;
            let (node, batch) = (&self.inner.node, rows.drain(..fitting_rows(rows.iter())));
            let batch: Vec<NewRow> = batch.collect();
            let some = schedule(node, batch.clone()).await?;
            answers.extend(look_again(&node.timer, |it| schedule(node, it), batch, some).await?);
        }
        Ok(answers)
    }

    /// Cancels a key's timer, unless a handler has it: see [`Cancelled`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Refused`]: nothing was cancelled; [`Error::Uncertain`]:
    /// the timer may be cancelled; [`Error::BadName`], [`Error::Closed`].
    pub async fn cancel(&self, key: &str) -> Result<Cancelled, Error> {
        self.check_open()?;
        let answer = self.inner.cancels.call(self.name(key)?).await?;
        let cancelled = matches!(answer, Cancelled::Cancelled(_));
        self.inner.node.counters.lock().cancelled += u64::from(cancelled);
        Ok(answer)
    }

    /// Moves a key's timer, earlier or later, unless a handler has it.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn touch(&self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        self.check_open()?;
        let due = self.resolve(when);
        self.inner.touches.call((self.name(key)?, due)).await
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::BadName`].
    pub async fn get(&self, key: &str) -> Result<Option<Pending>, Error> {
        self.inner.node.store.get(self.name(key)?).await
    }

    /// Lists timers in the order of their times, also timers that handlers have. A page reads the
    /// timers that it leaves out as well; on PostgreSQL, few before or after the page.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.inner.node.store.list(search).await
    }

    /// Counts the timers due in `bars` equal intervals of a range, at most 10,000. Reads all timers
    /// of the range.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn histogram(&self, range: Range<SystemTime>, bars: u32) -> Result<Vec<u64>, Error> {
        let (from, to) = (StoreTime::from(range.start), StoreTime::from(range.end));
        let count = bars.clamp(1, 10_000);
        let width = (to.since(from) / count).max(Duration::from_micros(1));
        self.inner
            .node
            .store
            .histogram(Bars { from, width, count })
            .await
    }

    /// Lists dead timers in the order of their deaths. A page reads the timers that it leaves out
    /// as well; on PostgreSQL, none before or after the page once the server has analyzed the
    /// table.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.inner.node.store.dead(search).await
    }

    /// Stops claims, waits for running handlers and their acknowledgements, and hands the other
    /// timers over. Later calls are refused. Waits for the store at most a lease long, for handlers
    /// without limit.
    pub async fn drain(&self) {
        self.inner.leave.send_replace(true);
        while self.inner.member.lock().await.join_next().await.is_some() {}
    }

    /// Returns counts and the state of this node. Costs little.
    pub fn stats(&self) -> Stats {
        let Node {
            counters,
            window,
            slots,
            ..
        } = &*self.inner.node;
        let counted = counters.lock().clone(); // Before: what counts as done is in flight no more.
        Stats {
            near: window.near() as u64,
            ready: window.ready.len() as u64,
            in_flight: slots.in_flight(),
            slots: slots.len() as u64,
            ..counted
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn count(&self, scheduled: usize, cancelled: usize) {
        let mut counters = self.inner.node.counters.lock();
        counters.scheduled += scheduled as u64;
        counters.cancelled += cancelled as u64;
    }

    pub(crate) fn store(&self) -> &S {
        &self.inner.node.store
    }

    pub(crate) fn row(&self, entry: Entry) -> Result<NewRow, Error> {
        entry.check()?;
        let id = draw();
        let hash = entry.key.as_ref().map_or(id as u64, |key| hash(key));
        let Node { store, clock, .. } = &*self.inner.node;
        Ok(entry.row(store.slot(hash), id, clock.now()))
    }

    pub(crate) fn resolve(&self, when: impl Into<When>) -> StoreTime {
        when.into().resolve(self.inner.node.clock.now())
    }

    pub(crate) fn name(&self, key: &str) -> Result<KeyName, Error> {
        check_name("key", key)?;
        Ok(KeyName {
            slot: self.inner.node.store.slot(hash(key)),
            key: key.to_owned(),
        })
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if *self.inner.leave.borrow() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }
}

/// Schedules a batch, and notes its near timers.
#[tracing::instrument(level = "debug", skip_all, fields(rows = rows.len()))]
async fn schedule<S: Store>(
    node: &Node<S>,
    rows: Vec<NewRow>,
) -> Result<Vec<Option<Scheduled>>, Error> {
    let places: Vec<Place> = rows.iter().map(|row| row.place).collect();
    let id = node.slots.node().unwrap_or(NodeId(0)); // Nobody's: then everybody is told.
    let written = node.store.schedule(id, rows).await?;
    for (place, written) in places.into_iter().zip(&written) {
        if let Some(Written { due, .. }) = written.filter(|it| it.answer != Scheduled::Kept) {
            node.counters.lock().scheduled += 1;
            node.note(Place { due, ..place });
        }
    }
    Ok(written
        .into_iter()
        .map(|written| written.map(|it| it.answer))
        .collect())
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

/// Hashes a key with FNV-1a. Never change the hash: stored timers would not be found.
fn hash(key: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    key.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of FNV's own page.
    #[test]
    fn keys_lie_where_they_always_have() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
    }
}
