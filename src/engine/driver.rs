//! The driver: takes turns, in which what is due is flushed, on a thread of its own or a caller's.
//!
//! # Locks
//! The turn's lock comes first: a shard's is taken under it, and the delay queue's under that. No
//! lock is held while a task runs or is dropped, while the executor or `on_refused` is called,
//! while a waker is cloned, woken or dropped, or while an event is reported. The list of all locks
//! is in `docs/ARCHITECTURE.md`.
//!
//! # Turns
//! Advancing the clock means taking turns. A turn flushes every bucket that was due when it began,
//! a batch at a time. Under the turn's lock it determines the shard whose bucket comes first, takes
//! that shard's lock, polls the bucket under it and moves a batch of its entries. Then it releases
//! all locks and hands over the expired entries. So several threads may take turns at once, a task
//! may take a turn itself, and no thread waits for more than one batch.
//!
//! A thread that loses its core while it holds a shard keeps the shard for as long as the slices of
//! the other threads last. So a turn does not wait for a shard: the shard's buckets are put aside
//! for this step, and the other shards' buckets come first. When only buckets that were put aside
//! are left, the turn sleeps for a moment, in which the holder may get the core, and looks again,
//! so that due timers of other shards need not wait. (On a manual clock no shard is put aside:
//! there, timers leave in the order of their ticks.)
//!
//! # The reaper
//! A thread that calls a function, which takes a turn and waits, until that returns false.

use crate::engine::context::TimerContext;
use crate::engine::delay_queue::Told;
use crate::engine::manual_clock::OnClock;
use crate::engine::owner::{Expired, Owner, owner_of};
use crate::engine::report::{self, catch_panic_of};
use crate::engine::shard::{NAP, TURNS, assert_none_held_on};
use crate::engine::shuffle::Shuffle;
use crate::engine::stats::Stats;
use crate::store::slab::Slab;
use crate::sync::{Mutex, either_in_models, nap, thread, thread_local};
use crate::wheel::core::Trimmed;
use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The naps after which a turn has others let it go first to a shard that they keep busy: about
/// half a millisecond.
const PATIENCE: u32 = if cfg!(tickwheel_model) { 0 } else { 5 };

/// Empty buckets that are taken out of the delay queue under one hold of the turn's lock.
const TRIMMED_AT_ONCE: usize = 64;

/// The maximum nesting of turns on one thread: a task may advance the clock, whose tasks may do the
/// same, and so on. It bounds the stack that this takes, however much is due.
const MAX_NESTED: u32 = 8;

/// The result of a step of a turn.
enum Step {
    /// A batch, which its owner has to hand over.
    Flushed(Arc<dyn Owner>),
    /// A bucket of an owner that has left: one at a time, as the turn's lock is held meanwhile.
    Dropped,
    /// Everything that is due lies in shards that other threads hold; in virtual time, what comes
    /// first does.
    Busy,
    /// Nothing is due any more.
    Done,
}

pub(crate) struct Driver {
    pub(crate) context: Arc<TimerContext>,
    pub(crate) turn: Mutex<Turn>,
}

/// The state that a thread needs to take a turn.
pub(crate) struct Turn {
    /// Scratch space for expired entries, unless a turn has borrowed it. Thus most turns allocate
    /// nothing.
    room: Expired,
    /// By number; `None` for an owner that is being created, or has left.
    pub(crate) owners: Slab<Option<Arc<dyn Owner>>>,
    /// The numbers of those that have left, whose buckets may still be queued.
    pub(crate) gone: Vec<u32>,
    /// How many buckets were queued when those of owners that had left were last taken out.
    pub(crate) queued: usize,
    /// The counts of owners that were removed.
    pub(crate) departed: Stats,
    /// Whether owners that register from now on have to be closed as well.
    pub(crate) closed: bool,
    /// How much has expired in all turns.
    expired: u64,
}

impl Driver {
    pub(crate) fn new(context: Arc<TimerContext>) -> Self {
        let room = Expired::default();
        let (owners, gone, departed) = (Slab::new(), Vec::new(), Stats::default());
        let (queued, closed, expired) = (0, false, 0);
        let turn = Turn { room, owners, gone, queued, departed, closed, expired };
        Driver { context, turn: Mutex::new(turn) }
    }

    /// Takes turns until something has expired, or until `timeout` has passed by the system's
    /// clock: one of the user's may stand still. Returns how much has expired.
    pub(crate) fn advance(&self, timeout: Duration) -> usize {
        assert_none_held_on(&self.context);
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
            if !self.wait(until) {
                return 0;
            }
        }
    }

    /// Makes one round of the reaper: a turn, and a wait without end. Returns whether to go on.
    pub(crate) fn reap(&self) -> bool {
        self.turn();
        self.wait(None)
    }

    /// Flushes everything that is due now. Returns how much expired.
    fn turn(&self) -> usize {
        let Some(start) = self.begin_turn() else { return 0 };
        TURNS.with(|turns| turns.set(turns.get() + 1));
        let (mut total, mut naps) = (0, 0);
        let mut expired = Expired::default();
        let mut shuffle = self.context.time.clock.as_manual().and_then(Shuffle::on);
        loop {
            let insists = naps >= PATIENCE;
            let mut step = self.flush_batch(start, insists, &mut expired);
            if let Step::Busy = step {
                // What has fallen due in other shards since then need not wait for the busy ones.
                // It does not prolong the turn, which began at its start.
                step = self
                    .begin_turn()
                    .map_or(Step::Done, |present| self.flush_batch(present, insists, &mut expired));
            }
            match step {
                Step::Flushed(owner) => {
                    total += match &mut shuffle {
                        Some(shuffle) => shuffle.add(owner, &mut expired),
                        None => owner.hand_over(&mut expired),
                    };
                }
                Step::Dropped => {}
                Step::Busy => {
                    nap(NAP);
                    naps += 1;
                }
                Step::Done => {
                    let last = shuffle.as_mut().map_or(0, |it| it.hand_over(&mut expired));
                    total += last;
                    if last == 0 {
                        break;
                    }
                }
            }
        }
        TURNS.with(|turns| turns.set(turns.get() - 1));
        total
    }

    /// Begins a turn, unless there is nothing to do. Returns the tick at which it began.
    fn begin_turn(&self) -> Option<u64> {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        let start = time.ticks.floor(time.now());
        let _may_poll = self.turn.lock();
        delay_queue.begin_turn(start).then_some(start)
    }

    /// Makes one step of a turn: flushes a batch of the bucket that comes first among those whose
    /// shards no other thread holds.
    fn flush_batch(&self, turn_start: u64, insists: bool, expired: &mut Expired) -> Step {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        let mut turn = self.turn.lock();
        let Turn { room, owners, expired: total, .. } = &mut *turn;
        room.lend_to(expired);
        let mut is_one_aside = false;
        let step = loop {
            // Read again for each batch, so that timers which fall due during a long cascade need
            // not wait for its end.
            let now = time.now();
            let present = time.ticks.floor(now);
            let (named, others) = match delay_queue.poll(turn_start, present) {
                Ok(due) => due,
                Err(true) => break Step::Busy,
                Err(false) => {
                    expired.lend_to(room);
                    break Step::Done;
                }
            };
            let Some(owner) = owners.at(owner_of(named.shard)) else { break Step::Dropped };
            if owner.flush((named, others), (turn_start, now), insists, expired) {
                *total += expired.len() as u64;
                break Step::Flushed(Arc::clone(owner));
            }
            delay_queue.put_aside(named);
            is_one_aside = true;
            // In virtual time it comes first all the same, so that the ticks keep their order.
            if !either_in_models(time.clock.as_manual().is_none()) {
                break Step::Busy;
            }
        };
        if is_one_aside {
            delay_queue.bring_back();
        }
        step
    }

    /// Waits, but not beyond `until`, until something is due. Returns whether it is.
    fn wait(&self, until: Option<Instant>) -> bool {
        self.trim_until_due();
        self.context.delay_queue.wait(&self.context.time, until)
    }

    /// Returns what the listener of this number has to wait for before it takes a turn; `waker`
    /// wakes it if that changes.
    pub(crate) fn tell(&self, number: u64, waker: &Waker) -> Told {
        self.trim_until_due();
        let TimerContext { time, delay_queue, .. } = &*self.context;
        let (told, unused) = delay_queue.tell(time, number, Arc::new(waker.clone()));
        self.context.catch_panic(|| drop(unused));
        told
    }

    /// Takes the buckets that hold only what was cancelled off the front of the delay queue, unless
    /// something is due: that comes first, and a turn takes them off as well.
    fn trim_until_due(&self) {
        let TimerContext { time, delay_queue, .. } = &*self.context;
        while self.trim(&self.turn.lock()) && !delay_queue.is_due(time) {}
    }

    /// Removes the first few buckets that hold only cancelled entries from the front of the delay
    /// queue, so that no thread wakes up for them. Returns whether there may be more.
    ///
    /// While the turn's lock is held no thread polls: all armed buckets are in the queue.
    fn trim(&self, turn: &Turn) -> bool {
        for _ in 0..TRIMMED_AT_ONCE {
            let Some(first) = self.context.delay_queue.first() else { return false };
            let Some(owner) = turn.owners.at(owner_of(first.shard)) else {
                self.context.delay_queue.take(first);
                continue;
            };
            match owner.trim(first) {
                Some(Trimmed::Empty) => {}
                Some(Trimmed::Unknown) => break,
                Some(Trimmed::Live) | None => return false,
            }
        }
        true
    }

    pub(crate) fn next_expiration(&self) -> Option<Instant> {
        let time = &self.context.time;
        Some(time.instant_of_tick(self.next_tick()?).max(time.clock.now()))
    }

    /// Returns when the bucket that comes first has to be flushed; after a stop none is.
    fn next_tick(&self) -> Option<u64> {
        let _turn = loop {
            let turn = self.turn.lock();
            if !self.trim(&turn) {
                break turn;
            }
        };
        self.context.delay_queue.next_tick()
    }
}

impl OnClock for Driver {
    fn wake(&self) {
        self.context.clock_moved();
    }

    fn next(&self) -> Option<u64> {
        // Nested deeper, `advance` expires nothing, whatever is due.
        let tick = if TURNS.with(Cell::get) >= MAX_NESTED { None } else { self.next_tick() };
        tick.map(|tick| self.context.time.elapsed_at(tick))
    }

    fn advance(&self) {
        Driver::advance(self, Duration::ZERO);
    }

    fn expired(&self) -> u64 {
        self.turn.lock().expired
    }
}

thread_local! {
    /// Whether this thread is a reaper. A reaper waits for the end of no other thread: two whose
    /// tasks end each other's timers would wait for ever.
    static IS_REAPER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the reaper of any timer.
pub(crate) fn is_reaper() -> bool {
    IS_REAPER.with(Cell::get)
}

/// A running reaper thread.
#[derive(Debug)]
pub(crate) struct Reaper {
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// How long the reaper pauses after a round that panicked: long enough that a round which panics
/// every time costs next to nothing, and short enough that a thread which waits for the reaper's
/// end hardly notices.
const REST: Duration = Duration::from_millis(100);

impl Reaper {
    /// Starts a thread with the timer's name that calls `round` until it returns false.
    ///
    /// A round contains all panics of user code, so one that panics is a defect of this crate. The
    /// next round is then tried after a pause: a timer that has lost something is better than a
    /// timer that no longer expires anything.
    pub(crate) fn start(
        context: &Arc<TimerContext>,
        mut round: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let (builder, context) = (thread::Builder::new(), Arc::clone(context));
        let thread = builder.name(context.name.to_string()).spawn(move || {
            IS_REAPER.with(|is_reaper| is_reaper.set(true));
            report::debug!(timer = &*context.name, "the reaper has started");
            let rest = || {
                context.count_panic();
                thread::sleep(REST);
                true
            };
            let mut go_on = || {
                if cfg!(tickwheel_model) {
                    return round(); // In a model, a panic of the reaper must fail the model.
                }
                catch_panic_of(&context.name, &mut round).unwrap_or_else(rest)
            };
            while go_on() {}
            report::debug!(timer = &*context.name, "the reaper has stopped");
        })?;
        Ok(Reaper { thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the thread has ended; its owner has told it to stop. Does not wait on a reaper,
    /// this one or another.
    pub(crate) fn join(&self) {
        if is_reaper() {
            return;
        }
        // Held while joining: other threads that join also wait for the thread's end.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            let _ = thread.join(); // It contains every panic.
        }
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use crate::engine::clock::{SystemClock, Time};
    use crate::wheel::ticks::Ticks;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Of user code only a clock can make a round panic, so that is tested here.
    #[test]
    fn a_round_that_panics_is_counted_and_followed_by_a_rest_and_another_round() {
        let time = Time::new(SystemClock.into(), Ticks::new(1));
        let context = Arc::new(TimerContext::new("panics".into(), time, None));
        let rounds = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&rounds);
        let round = move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            assert!(number == 1 || number > 3, "which is what the test is about");
            number < 5
        };
        let start = Instant::now();
        Reaper::start(&context, round).expect("a thread can be started").join();
        let counts = [&*rounds, &context.panicked].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [6, 3], "0, 2 and 3 panic, 5 is the last");
        assert!(start.elapsed() >= 3 * REST);
    }
}
