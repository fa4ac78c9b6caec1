//! The driver: where cells, delay queue, clock and executor meet. All locking rules stand here.
//!
//! # Locks
//! | lock | guards | may be held while taking |
//! |---|---|---|
//! | turn | which thread takes buckets out of the delay queue | cell, gate |
//! | cell, one per shard | the shard | gate |
//! | gate | the delay queue, the sleepers | nothing |
//!
//! So there is no cycle. A thread holds at most one cell. None of them is held while a task runs or
//! is dropped, while the executor or `on_refused` is called, or while something is reported.
//!
//! # Turns
//! To advance the clock is to take turns. A turn flushes every bucket that was due when it began, a
//! batch at a time: under the turn's lock it polls a bucket and moves a batch of its entries, then
//! it releases all locks and hands over what expired. So several threads may take turns at once, a
//! task may take one itself, and nobody waits for more than one batch.

use crate::cell::Cell;
use crate::common::Common;
use crate::delay_queue::Expiration;
use crate::executor::{Batch, Executor};
use crate::gate::Waited;
use crate::pool;
use crate::report::{self, contain};
use crate::stats::{Snapshot, Stats};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, thread_number};
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is to become of a task that the executor refused.
pub(crate) type OnRefused<T> = Box<dyn Fn(T) + Send + Sync>;

pub(crate) struct Driver<T: Send + 'static> {
    pub(crate) common: Arc<Common>,
    pub(crate) cells: Box<[&'static Cell<T>]>,
    /// Which cell of its pair a thread adds to, 0 or 1: see [`Driver::home`].
    active: Box<[CachePadded<AtomicUsize>]>,
    executor: Box<dyn Executor<T>>,
    on_refused: Option<OnRefused<T>>,
    /// The newly armed buckets of the batch that is being flushed; empty between turns.
    turn: Mutex<Vec<Expiration>>,
    refused: AtomicU64,
    panicked: AtomicU64,
}

impl<T: Send + 'static> Driver<T> {
    pub(crate) fn new(
        common: Arc<Common>,
        cells: Box<[&'static Cell<T>]>,
        executor: Box<dyn Executor<T>>,
        on_refused: Option<OnRefused<T>>,
    ) -> Self {
        let pairs = cells.len().div_ceil(2);
        Driver {
            common,
            cells,
            active: (0..pairs).map(|_| CachePadded::new(AtomicUsize::new(0))).collect(),
            executor,
            on_refused,
            turn: Mutex::new(Vec::new()),
            refused: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
        }
    }

    /// The cell that the calling thread adds to.
    ///
    /// Each thread has a pair of cells to itself, as far as there are enough, and adds to one of
    /// them. When other threads come there often, because they cancel what this one adds, it goes
    /// to the other one of the pair, and leaves them the first with the timers that they know. So
    /// neither meets the other's lock, nor the cache lines behind it.
    #[inline]
    pub(crate) fn home(&self) -> &'static Cell<T> {
        let pair = self.pair();
        // Relaxed: either cell is right. The number of cells is a power of two.
        let cell = 2 * pair + self.active[pair].load(Ordering::Relaxed);
        self.cells[cell & (self.cells.len() - 1)]
    }

    /// Lets the calling thread's pair change over to its other cell.
    pub(crate) fn leave_crowd(&self) {
        self.active[self.pair()].fetch_xor(1, Ordering::Relaxed);
    }

    #[inline]
    fn pair(&self) -> usize {
        thread_number() as usize & (self.active.len() - 1)
    }

    /// Takes turns until something has expired, or until `timeout` has passed. Returns how much.
    pub(crate) fn advance(&self, timeout: Duration) -> usize {
        let time = &self.common.time;
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
        let Common { time, gate, .. } = &*self.common;
        let start = time.ticks.floor(time.now());
        if !gate.begin_turn(start) {
            return 0;
        }
        let mut total = 0;
        let mut expired = Vec::new();
        while let Some(count) = self.flush_batch(start, &mut expired) {
            total += count;
            self.hand_over(&mut expired);
        }
        total
    }

    fn flush_batch(&self, turn_start: u64, expired: &mut Vec<T>) -> Option<usize> {
        let Common { time, gate, .. } = &*self.common;
        let mut armed = self.turn.lock();
        // Read anew for each batch: what falls due during a long cascade need not wait for its end.
        let now = time.now();
        let expiration = gate.poll(turn_start, time.ticks.floor(now))?;
        let cell = self.cells[expiration.shard as usize];
        Some(cell.flush(&self.common, expiration, now, &mut armed, expired))
    }

    /// Hands tasks to the executor; contains its panics, and sees to what it refuses.
    fn hand_over(&self, tasks: &mut Vec<T>) {
        if tasks.is_empty() {
            return;
        }
        let mut batch = Batch { tasks: tasks.drain(..), refused: Vec::new() };
        loop {
            let before = batch.len();
            if contain(|| self.executor.execute_batch(&mut batch)).is_some() {
                break;
            }
            self.panicked.fetch_add(1, Ordering::Relaxed);
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
            let disposed = contain(|| match &self.on_refused {
                Some(handler) => handler(task),
                None => drop(task),
            });
            if disposed.is_none() {
                self.panicked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn wait(&self, until: Option<Instant>) -> Waited {
        drop(self.forget_empty_buckets());
        self.common.gate.wait(&self.common.time, until)
    }

    /// Takes buckets that are empty off the front of the delay queue, so that nobody wakes up for
    /// timers that were all cancelled.
    ///
    /// Returns the turn's lock. While it is held nobody polls: all armed buckets are in the queue.
    fn forget_empty_buckets(&self) -> MutexGuard<'_, Vec<Expiration>> {
        let turn = self.turn.lock();
        let gate = &*self.common.gate;
        while let Some(first) = gate.first() {
            if !self.cells[first.shard as usize].forget_if_empty(gate, first) {
                break;
            }
        }
        turn
    }

    pub(crate) fn next_expiration(&self) -> Option<Instant> {
        let _turn = self.forget_empty_buckets();
        let Common { time, gate, .. } = &*self.common;
        let next = time.instant_of_tick(gate.next_tick()?);
        Some(next.max(time.clock.now()))
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.iter().map(|cell| cell.lock().shard.len()).sum()
    }

    pub(crate) fn stats(&self) -> Stats {
        let refused = self.refused.load(Ordering::Relaxed);
        let panicked = self.panicked.load(Ordering::Relaxed) + self.executor.panicked();
        let mut stats = Stats::new(refused, panicked, self.common.gate.wakeups());
        for cell in &self.cells {
            let state = cell.lock();
            stats.absorb(&state.shard.counters, state.shard.len());
        }
        stats
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let Common { time, gate, .. } = &*self.common;
        let mut levels = Vec::new();
        self.cells.iter().for_each(|cell| cell.lock().shard.snapshot(&mut levels));
        let now = time.clock.now();
        gate.for_each(|expiration| {
            let elapsed = expiration.bucket.level == crate::delay_queue::ELAPSED;
            let level = if elapsed { 0 } else { expiration.bucket.level as usize };
            let wait = time.instant_of_tick(expiration.tick).saturating_duration_since(now);
            if let Some(level) = levels.get_mut(level) {
                let next = level.next_expiration.get_or_insert(wait);
                *next = wait.min(*next);
            }
        });
        Snapshot::new(levels, self.cells.len())
    }

    /// Ends the waits of everybody who waits.
    pub(crate) fn stop(&self) {
        self.common.gate.stop();
    }

    /// Closes all cells, and hands what was pending to `out`, with its deadline.
    pub(crate) fn drain(&self, mut out: impl FnMut(u64, T)) {
        self.cells.iter().for_each(|cell| cell.drain(&self.common, &mut out));
    }

    pub(crate) fn assert_invariants(&self) {
        let _turn = self.turn.lock();
        let mut queued = std::collections::HashMap::new();
        self.common.gate.for_each(|expiration| {
            *queued.entry((expiration.shard, expiration.bucket)).or_insert(0) += 1;
        });
        for cell in &self.cells {
            cell.assert_invariants(|shard, id| queued.get(&(shard, id)).copied().unwrap_or(0));
        }
    }
}

impl<T: Send + 'static> Drop for Driver<T> {
    /// Nothing is pending: whoever drops the timer has drained it.
    fn drop(&mut self) {
        self.cells.iter().for_each(|cell| pool::put(cell));
    }
}
