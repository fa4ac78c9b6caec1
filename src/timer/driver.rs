//! The driver: where shards, delay queue, clock and executor meet. All locking rules stand here.
//!
//! # Locks
//! | lock | guards | may be held while taking |
//! |---|---|---|
//! | turn | which thread takes buckets out of the delay queue | shard, delay queue |
//! | shard, one of each | its core | delay queue |
//! | delay queue | the bucket queue, the sleepers | nothing |
//!
//! So there is no cycle. A thread holds at most one
//! shard. None of them is held while a task runs or
//! is dropped, while the executor or `on_refused` is called, or while something is reported.
//!
//! # Turns
//! To advance the clock is to take turns. A turn flushes every bucket that was due when it began, a
//! batch at a time: under the turn's lock it looks whose bucket comes first, takes that shard's
//! lock, polls the bucket under it and moves a batch of its entries; then it releases all locks and
//! hands over what expired. So several threads may take turns at once, a task may take one itself,
//! and nobody waits for more than one batch.
//!
//! A thread that loses its core while it holds a shard keeps the shard for as long as the others'
//! slices last. So a turn does not wait for a shard: its buckets are put aside for this step, and
//! the other shards' come first. When only such buckets are left it sleeps for a moment, in which
//! the holder may get the core, and begins anew: what falls due in other shards meanwhile need not
//! wait. (On a manual clock it waits for the lock: there a call has to expire all that is due, and
//! nobody sleeps.)

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, either_in_models, thread, thread_local};
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::{Waited, Wakes};
use crate::timer::executor::{Batch, Executor};
use crate::timer::report::{self, Contained, catch_panic};
use crate::timer::shards::Shards;
use crate::timer::stats::Stats;
use crate::wheel::bucket_queue::{Due, Expiration};
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use crate::work;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is to become of a task that the executor refused.
pub(crate) type OnRefused<T> = Box<dyn Fn(T) + Send + Sync>;

/// How long a turn sleeps when all that is due lies in shards that somebody holds who waits for a
/// core: long enough for that one to get it.
const NAP: Duration = Duration::from_micros(50);

/// Empty buckets that are taken out of the delay queue under one hold of the turn's lock.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Turns of one thread inside each other: a task may advance the clock, whose tasks may, and so on.
/// Bounds the stack that this takes, however much is due.
const MAX_NESTED: u32 = 8;

thread_local! {
    /// How many turns this thread is in.
    static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// What became of a step of a turn.
enum Step {
    /// A batch; whom to wake, now that no lock is held.
    Flushed(Wakes),
    /// All that is due lies in shards that somebody holds.
    Busy,
    /// Nothing is due any more.
    Done,
}

pub(crate) struct Driver<T: Send + 'static> {
    pub(crate) context: Arc<TimerContext>,
    pub(crate) shards: Shards<T>,
    executor: Contained<Box<dyn Executor<T>>>,
    on_refused: Contained<Option<OnRefused<T>>>,
    /// The newly armed buckets of the batch that is being flushed; empty between turns.
    turn: Mutex<Vec<Expiration>>,
    refused: AtomicU64,
    panicked: AtomicU64,
}

impl<T: Send + 'static> Driver<T> {
    pub(crate) fn new(
        context: Arc<TimerContext>,
        shards: Shards<T>,
        executor: Box<dyn Executor<T>>,
        on_refused: Option<OnRefused<T>>,
    ) -> Self {
        Driver {
            context,
            shards,
            executor: Contained::new(executor),
            on_refused: Contained::new(on_refused),
            turn: Mutex::new(Vec::new()),
            refused: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
        }
    }

    /// Takes turns until something has expired, or until `timeout` has passed. Returns how much.
    pub(crate) fn advance(&self, timeout: Duration) -> usize {
        if TURNS.with(Cell::get) >= MAX_NESTED {
            return 0;
        }
        let time = &self.context.time;
        let mut until = None;
        loop {
            let expired = self.turn();
            let may_wait = !timeout.is_zero() && time.clock.as_manual().is_none();
            if expired > 0 || !may_wait {
                return expired;
            }
            let until = *until.get_or_insert_with(|| Instant::now().checked_add(timeout));
            if self.wait(until) != Waited::Due {
                return 0;
            }
        }
    }

    /// One step of the reaper: a turn and a wait without end. Whether to go on.
    pub(crate) fn reap(&self) -> bool {
        self.turn();
        self.wait(None) == Waited::Due
    }

    /// Flushes everything that is due now. Returns how much expired.
    fn turn(&self) -> usize {
        let mut start = self.begin_turn();
        if start.is_none() {
            return 0;
        }
        TURNS.with(|turns| turns.set(turns.get() + 1));
        let mut total = 0;
        let mut expired = Vec::new();
        while let Some(turn_start) = start {
            match self.flush_batch(turn_start, &mut expired) {
                Step::Flushed(wakes) => {
                    self.context.delay_queue.wake(wakes);
                    total += expired.len();
                    self.hand_over(&mut expired);
                }
                Step::Busy => {
                    thread::sleep(NAP);
                    // What other shards have got meanwhile need not wait for the busy one.
                    start = self.begin_turn();
                }
                Step::Done => break,
            }
        }
        TURNS.with(|turns| turns.set(turns.get() - 1));
        total
    }

    /// Begins a turn, unless there is nothing to do: from when.
    fn begin_turn(&self) -> Option<u64> {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        let start = time.ticks.floor(time.now());
        let _may_poll = self.turn.lock();
        delay_queue.begin_turn(start).then_some(start)
    }

    /// One step of a turn: flushes a batch of the bucket that comes first among those whose shards
    /// nobody holds.
    fn flush_batch(&self, turn_start: u64, expired: &mut Vec<T>) -> Step {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        let mut armed = self.turn.lock();
        let mut is_one_aside = false;
        let step = loop {
            work::count(1);
            // Read anew for each batch: what falls due during a long cascade need not wait for its
            // end.
            let now = time.now();
            let present = time.ticks.floor(now);
            let (shard, state) = match delay_queue.next_due(turn_start, present) {
                Due::Nothing => return Step::Done,
                Due::Shard(shard) => (shard, self.shards.of(shard).try_lock()),
                Due::Busy(shard) if !either_in_models(time.clock.as_manual().is_none()) => {
                    // In virtual time timers leave in the order of their ticks, whoever is busy.
                    let state = self.shards.of(shard).lock();
                    delay_queue.bring_back();
                    (shard, Some(state))
                }
                Due::Busy(_) => break Step::Busy,
            };
            let Some(mut state) = state else {
                delay_queue.put_aside(shard, turn_start, present);
                is_one_aside = true;
                continue;
            };
            if let Some(expiration) = delay_queue.poll(shard, turn_start, present) {
                let wakes = state.flush(&self.context, expiration, now, &mut armed, expired);
                break Step::Flushed(wakes);
            }
        };
        if is_one_aside {
            delay_queue.bring_back();
        }
        step
    }

    /// Hands tasks to the executor; contains its panics, and sees to what it refuses.
    fn hand_over(&self, tasks: &mut Vec<T>) {
        if tasks.is_empty() {
            return;
        }
        let mut batch = Batch { tasks: tasks.drain(..), refused: Vec::new() };
        loop {
            let before = batch.len();
            if catch_panic(|| self.executor.execute_batch(&mut batch)).is_some() {
                break;
            }
            self.count_panic();
            if batch.len() == before || batch.len() == 0 {
                break;
            }
        }
        let Batch { tasks, mut refused } = batch;
        refused.extend(tasks); // What the executor left lying.
        if !refused.is_empty() {
            self.refuse(refused);
        }
    }

    fn refuse(&self, tasks: Vec<T>) {
        self.refused.fetch_add(tasks.len() as u64, Ordering::Relaxed);
        if self.on_refused.is_none() {
            report::warn!(tasks = tasks.len(), "the executor refused expired tasks: dropped");
        }
        for task in tasks {
            let disposed = catch_panic(|| match &*self.on_refused {
                Some(handler) => handler(task),
                None => drop(task),
            });
            if disposed.is_none() {
                self.count_panic();
            }
        }
    }

    fn wait(&self, until: Option<Instant>) -> Waited {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        // What is due comes first: a turn takes the empty ones off as well.
        while self.forget_some(&self.turn.lock()) && !delay_queue.is_due(time) {}
        delay_queue.wait(time, until)
    }

    /// Takes the first few buckets off the front of the delay queue that hold nothing but what was
    /// cancelled, so that nobody wakes up for them. Whether there may be more.
    ///
    /// While the turn's lock is held nobody polls: all armed buckets are in the queue.
    fn forget_some(&self, _turn: &MutexGuard<'_, Vec<Expiration>>) -> bool {
        let delay_queue = &*self.context.delay_queue;
        for _ in 0..FORGOTTEN_AT_ONCE {
            work::count(1);
            let Some(first) = delay_queue.first() else { return false };
            match self.shards.of(first.shard).forget_if_empty(delay_queue, first) {
                Trimmed::Empty => {}
                Trimmed::Live => return false,
                Trimmed::Unknown => break,
            }
        }
        true
    }

    pub(crate) fn next_expiration(&self) -> Option<Instant> {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        let _turn = loop {
            let turn = self.turn.lock();
            if !self.forget_some(&turn) {
                break turn;
            }
        };
        Some(time.instant_of_tick(delay_queue.next_tick()?).max(time.clock.now()))
    }

    /// Relaxed: the count publishes nothing.
    pub(crate) fn count_panic(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let refused = self.refused.load(Ordering::Relaxed);
        let handed_on = catch_panic(|| self.executor.panicked()).unwrap_or(0);
        let panicked = self.panicked.load(Ordering::Relaxed).saturating_add(handed_on);
        let mut stats = Stats::new(refused, panicked, self.context.delay_queue.wakeups());
        self.shards.add_to(&mut stats);
        stats
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.shards.snapshot(self.context.time.now())
    }

    /// Ends the waits of everybody who waits.
    pub(crate) fn stop(&self) {
        self.context.delay_queue.stop();
    }

    pub(crate) fn assert_invariants(&self) {
        let _turn = self.turn.lock();
        self.shards.assert_invariants(&self.context.delay_queue);
    }
}
