//! The reaper: a thread that advances the clock, by the same calls as callers without a reaper.
//!
//! # Turns
//! Advancing the clock means taking turns. A turn flushes every bucket that was due when it began.
//! The delay queue names the first shard. A batch of its first bucket is flushed under its lock,
//! and handed over with no lock held. Several threads may take turns at once, a task may take a
//! turn, and no thread waits for more than one batch.
//!
//! A thread that loses its core keeps its shard for as long as the slices of the other threads
//! last. So a turn passes over a busy shard. When only busy shards are left, the turn sleeps for a
//! moment and tries again. It never queues for a lock: a thread that asks again and again would
//! overtake it. On a manual clock no shard is passed over, because timers leave in the order of
//! their ticks.

use crate::engine::delay_queue::{Awaited, TurnAction};
use crate::engine::manual_clock::OnClock;
use crate::engine::report;
use crate::engine::shard::{AnyShard, NAP, TimerContext};
use crate::engine::source::{Sources, Turn};
use crate::engine::stats::{Snapshot, Stats};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, OwnThread, either_in_models, nap, thread, thread_local};
use crate::wheel::tick::{Nanos, Tick};
use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

thread_local! {
    /// Whether this thread is a reaper. A reaper joins no thread: two whose tasks end each other's
    /// timers would deadlock.
    static IS_REAPER: Cell<bool> = const { Cell::new(false) };
    /// How many entries of keyed timers this thread holds; counted in debug builds.
    static HELD_ENTRIES: Cell<u32> = const { Cell::new(0) };
}

/// What advances the clock of a timer: the context, and the list of the sources that turns flush.
/// The timer, its reaper and its listeners own it, and the latter two do not keep the timer alive.
pub(crate) struct Engine {
    pub(crate) context: Arc<TimerContext>,
    pub(crate) sources: Sources,
}

enum Step {
    /// A batch, of which so many have expired.
    Flushed(usize),
    /// Other threads hold all shards with due buckets; in virtual time, the first shard.
    Busy,
    Done,
}

impl Engine {
    pub(crate) fn new(context: Arc<TimerContext>) -> Self {
        Engine {
            context,
            sources: Sources::default(),
        }
    }

    /// Takes turns until something has expired, or `timeout` has passed. Returns how much has
    /// expired.
    pub(crate) fn advance_clock(&self, timeout: Duration, limit: usize) -> usize {
        if HELD_ENTRIES.with(Cell::get) > 0 {
            panic!("this thread advances a timer while it holds an entry of a keyed timer");
        }
        if Turn::is_nested_too_deep() {
            return 0;
        }
        let mut until = None;
        loop {
            let expired = self.turn(limit);
            if expired > 0 || timeout.is_zero() {
                return expired;
            }
            let until = *until.get_or_insert_with(|| Instant::now().checked_add(timeout));
            self.trim_until_due();
            if !self.context.delay_queue.wait(&self.context.time, until) {
                return 0;
            }
        }
    }

    /// Flushes everything that is due now, until `limit` tasks have expired. Returns their number.
    fn turn(&self, limit: usize) -> usize {
        let TimerContext {
            time, delay_queue, ..
        } = &*self.context;
        let Some(mut turn) = Turn::begin(&self.context) else {
            return 0;
        };
        let mut total = 0;
        loop {
            match self.step(&mut turn) {
                Step::Flushed(expired) => total += expired,
                Step::Busy => {
                    // Other shards need not wait for the busy ones: one step with a later start
                    // serves what has become due in them. The turn's own start is restored after
                    // that step, so the turn still owes only what was due when it began.
                    let start = turn.start;
                    turn.start = delay_queue.begin_turn(time.present()).unwrap_or(start);
                    match self.step(&mut turn) {
                        Step::Flushed(expired) => total += expired,
                        Step::Busy | Step::Done => nap(NAP),
                    }
                    turn.start = start;
                }
                Step::Done => return total,
            }
            if total >= limit {
                turn.hand_over_deferred(Tick::NEVER);
                return total;
            }
        }
    }

    /// Flushes a batch of the first shard that no other thread holds, and hands it over.
    fn step(&self, turn: &mut Turn<'_>) -> Step {
        let TimerContext {
            time, delay_queue, ..
        } = &*self.context;
        let mut busy = Vec::new();
        loop {
            // Timers that became due since the turn began come before far ones.
            let cascades_early = !turn.has_cascaded || time.present() <= turn.start.tick;
            let shard = match delay_queue.next(turn.start, cascades_early, &busy) {
                // The tasks of the tick before may change what comes first.
                TurnAction::FlushDue(_, tick) if turn.hand_over_deferred(tick) => continue,
                TurnAction::FlushDue(shard, _) => shard,
                TurnAction::CascadeEarly(shard) => {
                    turn.has_cascaded = true;
                    shard
                }
                TurnAction::WaitForBusy => return Step::Busy,
                // The tasks of the last tick may add others.
                TurnAction::End if turn.hand_over_deferred(Tick::NEVER) => continue,
                TurnAction::End => return Step::Done,
            };
            // The source has gone, and has offered that nothing is pending.
            let Some(source) = self.sources.get(shard.source) else {
                continue;
            };
            if let Some(expired) = source.flush(shard.ordinal as usize, turn) {
                return Step::Flushed(expired);
            }
            // In virtual time the shard comes first all the same, so that the ticks keep their
            // order.
            if !either_in_models(!time.clock.is_manual()) {
                return Step::Busy;
            }
            busy.push(shard);
        }
    }

    /// Returns what a listener has to wait for before it takes a turn; `waker` wakes it if that
    /// changes.
    pub(crate) fn listen(&self, number: u64, waker: &Waker) -> Awaited {
        self.trim_until_due();
        let TimerContext {
            time, delay_queue, ..
        } = &*self.context;
        let (awaited, unused) = delay_queue.listen(time, number, Arc::new(waker.clone()));
        drop(unused);
        awaited
    }

    /// Removes buckets of cancelled timers from the front, unless something is due: a turn removes
    /// them too.
    fn trim_until_due(&self) {
        let TimerContext {
            time, delay_queue, ..
        } = &*self.context;
        while !delay_queue.is_due(time.present()) && self.trim() {}
    }

    /// Removes cancelled timers from the front of the first shard. Does bounded work, and returns
    /// whether there may be more.
    fn trim(&self) -> bool {
        let Some(first) = self.context.delay_queue.first() else {
            return false;
        };
        let Some(source) = self.sources.get(first.source) else {
            return false;
        };
        source
            .shard(first.ordinal as usize)
            .is_some_and(AnyShard::trim)
    }

    pub(crate) fn next_expiration(&self) -> Option<Instant> {
        let time = &self.context.time;
        Some(
            time.instant_of_tick(self.next_tick()?)
                .max(time.clock.now()),
        )
    }

    fn next_tick(&self) -> Option<Tick> {
        while self.trim() {}
        self.context.delay_queue.next_tick()
    }

    pub(crate) fn len(&self) -> usize {
        let sources = self.sources.all();
        sources
            .values()
            .flat_map(|source| source.shards())
            .map(AnyShard::len)
            .sum()
    }

    pub(crate) fn stats(&self) -> Stats {
        let TimerContext {
            name, delay_queue, ..
        } = &*self.context;
        let mut stats = self.sources.stats();
        stats.name = name.to_string();
        let panicked = self.context.panicked.load(Ordering::Relaxed);
        stats.panicked = stats.panicked.saturating_add(panicked);
        stats.wakeups = delay_queue.wakeups();
        stats.forked = self.context.check_fork();
        stats
    }

    pub(crate) fn snapshot(&self, shards: usize) -> Snapshot {
        let mut snapshot = Snapshot::new(shards);
        let now: Nanos = self.context.time.now();
        for source in self.sources.all().values() {
            source
                .shards()
                .for_each(|shard| shard.snapshot(&mut snapshot, now));
        }
        snapshot
    }

    /// Closes all sources. Ends the waits of listeners that may wait for that.
    pub(crate) fn close(&self) {
        self.sources.close();
        self.context.stop();
    }

    pub(crate) fn assert_invariants(&self) {
        self.sources
            .all()
            .values()
            .for_each(|source| source.assert_invariants());
    }
}

impl OnClock for Engine {
    fn wake(&self) {
        if self.context.delay_queue.clock_moved() {
            self.context.wake_listeners();
        }
    }

    fn next(&self) -> Option<Nanos> {
        // Nested deeper, `advance_clock` expires nothing.
        if Turn::is_nested_too_deep() {
            return None;
        }
        let tick = self.next_tick()?;
        Some(self.context.time.elapsed_at(tick))
    }

    fn advance(&self) {
        self.advance_clock(Duration::ZERO, usize::MAX);
    }

    fn expired(&self) -> u64 {
        self.context.expired.load(Ordering::Relaxed)
    }
}

/// Notes that this thread holds an entry of a keyed timer. Advancing the clock would then wait for
/// its own thread: for ever in release builds, with a panic in debug builds.
#[derive(Debug)]
pub(crate) struct Holding;

impl Holding {
    #[inline]
    pub(crate) fn begin() -> Self {
        if cfg!(debug_assertions) {
            HELD_ENTRIES.with(|held| held.set(held.get() + 1));
        }
        Holding
    }
}

impl Drop for Holding {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD_ENTRIES.with(|held| held.set(held.get() - 1));
        }
    }
}

pub(crate) fn is_reaper() -> bool {
    IS_REAPER.with(Cell::get)
}

pub(crate) struct Reaper {
    thread: Mutex<Option<OwnThread>>,
}

/// How long the reaper pauses between two panics in a row: constant panics cost next to nothing,
/// and a thread that joins the reaper hardly notices.
const REST: Duration = Duration::from_millis(100);

impl Reaper {
    /// Starts a thread with the timer's name that advances the clock until the timer is stopped. A
    /// panic that reaches its loop, that of a user's `Drop` or of a clock, is counted and reported,
    /// and the reaper goes on.
    pub(crate) fn start(engine: &Arc<Engine>) -> std::io::Result<Self> {
        let own = Arc::clone(engine);
        let thread = OwnThread::spawn(&engine.context.name, move || {
            IS_REAPER.with(|is_reaper| is_reaper.set(true));
            let context = &own.context;
            let name = &*context.name;
            report::event!(debug, timer = name, "the reaper has started");
            let mut has_panicked = false;
            while !context.delay_queue.is_stopped() {
                let advance = || own.advance_clock(Duration::MAX, usize::MAX);
                // In a model, a panic of the reaper must fail the model.
                if cfg!(tickwheel_model) {
                    advance();
                    continue;
                }
                let panics = context.catch_panic(advance).is_none();
                // Not after a single one: the timers behind a `Drop` that panics would be late. A
                // clock that panics does so in each turn.
                if panics && has_panicked {
                    thread::sleep(REST);
                }
                has_panicked = panics;
            }
            report::event!(debug, timer = name, "the reaper has stopped");
        })?;
        Ok(Reaper {
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Waits until the thread of a stopped timer has ended. Does not wait on any reaper's thread.
    pub(crate) fn join(&self) {
        if is_reaper() {
            return;
        }
        // Held while joining, so that other joins also wait for the thread's end.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            thread.join();
        }
    }
}
