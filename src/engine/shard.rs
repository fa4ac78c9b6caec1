//! The shard: a timing wheel behind a lock; and the context that all shards of a timer share.
//!
//! Timers, keyed timers, purgatories and sleeping futures keep their entries in shards. `X` is what
//! each keeps beside the wheel.
//!
//! # Locks
//! Under a shard's lock the delay queue's lock may be taken, but never another shard's. No user
//! code runs under it, except where the documentation says so.

use crate::engine::clock::{Time, When};
use crate::engine::delay_queue::{DelayQueue, ShardId, TurnStart};
use crate::engine::report::{self, catch_panic, catch_panic_of};
use crate::engine::stats::Snapshot;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{HotMutex, HotMutexGuard, Mutex, nap, process};
use crate::wheel::bucket::Reference;
use crate::wheel::counters::Counters;
use crate::wheel::expirations::First;
use crate::wheel::level::round_size;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use crate::wheel::timing_wheel::flush::Flush;
use crate::wheel::timing_wheel::{BATCH, TimingWheel};
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the shards of a timer share: its name, its time, its delay queue and its counts. Owns no
/// shards, so they and futures may keep it after the end of the timer.
pub(crate) struct TimerContext {
    pub(crate) name: Arc<str>,
    pub(crate) time: Time,
    /// Padded, because many threads change it, and all of them read the rest.
    pub(crate) delay_queue: CachePadded<DelayQueue>,
    /// The limit on pending entries, and their number: counted only if there is a limit.
    max_pending: Option<usize>,
    pending: CachePadded<AtomicUsize>,
    /// Panics of user code that were contained. Relaxed: the count publishes nothing.
    pub(crate) panicked: AtomicU64,
    /// How much has expired in all turns. Relaxed: other threads use it only as a hint.
    pub(crate) expired: AtomicU64,
    /// The process in which the timer was started, if it has a reaper.
    started_in: Option<u32>,
    /// Whether it was reported that this process is another one. Relaxed: it publishes nothing.
    reported_fork: AtomicBool,
}

/// Whether a full timer refuses an entry. Both kinds count towards `max_pending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Keep,
    Exceed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

impl TimerContext {
    pub(crate) fn new(
        name: Arc<str>,
        time: Time,
        max_pending: Option<usize>,
        with_reaper: bool,
    ) -> Self {
        TimerContext {
            name,
            time,
            delay_queue: CachePadded::default(),
            max_pending,
            pending: CachePadded::default(),
            panicked: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            started_in: with_reaper.then(process),
            reported_fork: AtomicBool::new(false),
        }
    }

    /// Returns whether this process was forked after the timer was started, and so has no copy of
    /// the reaper. Reports that once. Costs a system call; the caller holds no lock.
    pub(crate) fn check_fork(&self) -> bool {
        let is_forked = self.started_in.is_some_and(|started| started != process());
        if is_forked && !self.reported_fork.swap(true, Ordering::Relaxed) {
            report::event!(
                error,
                timer = &*self.name,
                "the timer was started before a fork: it has no reaper in this process"
            );
        }
        is_forked
    }

    /// Wakes the futures and loops that drive the timer. The caller holds no lock, because wakers
    /// are user code.
    #[cold]
    pub(crate) fn wake_listeners(&self) {
        for waker in self.delay_queue.wakers() {
            self.catch_panic(|| waker.wake_by_ref());
        }
    }

    pub(crate) fn stop(&self) {
        self.delay_queue.stop();
        self.wake_listeners();
    }

    pub(crate) fn catch_panic<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        let returned = catch_panic_of(&self.name, code);
        if returned.is_none() {
            self.panicked.fetch_add(1, Ordering::Relaxed);
        }
        returned
    }
}

pub(crate) struct Shard<T, X = ()> {
    state: HotMutex<ShardState<T, X>>,
}

pub(crate) type ShardGuard<'a, T, X = ()> = HotMutexGuard<'a, ShardState<T, X>>;

pub(crate) struct ShardState<T, X> {
    wheel: TimingWheel<T>,
    /// What the shard's source keeps beside the entries.
    pub(crate) extra: X,
    /// The timer that the shard serves; `None` in the pool.
    context: Option<Arc<TimerContext>>,
    /// The shard's name; `None` once its source has gone: then it offers nothing any more.
    id: Option<ShardId>,
    /// The last offer to the delay queue.
    offered: First,
    /// Set by a shutdown: nothing can be added or moved any more.
    closed: bool,
}

pub(crate) trait Extra: Default {
    /// Returns whether nothing is left of the shard's source, once the wheel is empty.
    fn is_empty(&self) -> bool {
        true
    }
}

impl Extra for () {}

/// A buffer that a source's flushes share, so that most flushes allocate nothing.
pub(crate) type Spare<E> = Mutex<Vec<E>>;

/// How often a lock is tried before it counts as taken: about as long as a call holds it. In
/// models, trying again does not help.
const TRIES: usize = if cfg!(tickwheel_model) { 1 } else { 32 };

/// How often a call tries a taken lock again before it waits in the kernel: for some microseconds,
/// as a wait there takes. std's mutex tries half as often, and not at all while another thread
/// waits: a quarter of the time of two threads was spent in the kernel.
const TRIES_BEFORE_WAIT: usize = if cfg!(tickwheel_model) { 0 } else { 200 };

/// The pause before a thread tries a busy shard again: long enough for the holder to get a core.
pub(crate) const NAP: Duration = Duration::from_micros(50);

impl<T, X: Extra> Shard<T, X> {
    pub(crate) fn new() -> Self {
        let state = ShardState {
            wheel: idle_wheel(),
            extra: X::default(),
            context: None,
            id: None,
            offered: First::NEVER,
            closed: true,
        };
        Shard {
            state: HotMutex::new(state),
        }
    }

    pub(crate) fn serve(
        &self,
        context: &Arc<TimerContext>,
        source: u64,
        ordinal: u32,
        wheel_size: usize,
    ) {
        let time = &context.time;
        let size = round_size(wheel_size);
        // A turn ends although each of its tasks makes a source, and adds something to it for now.
        let turn = context.delay_queue.turns();
        let wheel = TimingWheel::new(time.tick, size, time.present(), time.last()).after(turn);
        let id = context.delay_queue.add_shard(source, ordinal);
        let mut state = self.lock();
        state.wheel.restart(wheel);
        state.extra = X::default();
        state.context = Some(Arc::clone(context));
        state.id = Some(id);
        state.offered = First::NEVER;
        state.closed = false;
    }

    pub(crate) fn is_free(&self) -> bool {
        let state = self.lock();
        state.wheel.len() == 0 && state.extra.is_empty()
    }

    /// Frees what the shard holds for a source that has gone, except what another thread is taking
    /// out.
    pub(crate) fn retire(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wheel.restart(idle_wheel());
        let context = state.context.take();
        let extra = if state.extra.is_empty() {
            mem::take(&mut state.extra)
        } else {
            X::default()
        };
        drop(state);
        drop((context, extra)); // Not under the lock: callers of old handles need not wait.
    }
}

fn idle_wheel<T>() -> TimingWheel<T> {
    TimingWheel::new(TickLength::new(1), 4, Tick(0), Nanos::NEVER)
}

impl<T, X> Shard<T, X> {
    /// Locks the shard. A caller that files something must [unlock](Self::unlock) it.
    #[inline]
    pub(crate) fn lock(&self) -> ShardGuard<'_, T, X> {
        self.state.lock()
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<ShardGuard<'_, T, X>> {
        self.state.try_lock()
    }

    /// Takes the lock, unless its holder keeps it for longer than a call: the holder then waits for
    /// a core, and this thread would too.
    fn try_lock_often(&self, tries: usize) -> Option<ShardGuard<'_, T, X>> {
        (0..tries).find_map(|_| {
            let state = self.try_lock();
            if state.is_none() {
                std::hint::spin_loop();
            }
            state
        })
    }

    /// Locks the shard without queueing: std's mutex is not fair, and a thread that locks it again
    /// and again would overtake this one for seconds.
    pub(crate) fn lock_by_trying(&self) -> ShardGuard<'_, T, X> {
        loop {
            match self.try_lock_often(TRIES) {
                Some(state) => return state,
                None => nap(NAP),
            }
        }
    }

    /// Makes a short change to a shard that many threads want. A thread that finds it locked
    /// expects to get it sooner than the kernel would wake it.
    #[inline]
    pub(crate) fn with_lock<R>(&self, act: impl FnOnce(&mut ShardState<T, X>) -> R) -> R {
        let mut state = self.try_lock().unwrap_or_else(|| self.lock_taken());
        let answer = act(&mut state);
        Self::unlock(state);
        answer
    }

    #[cold]
    #[inline(never)]
    fn lock_taken(&self) -> ShardGuard<'_, T, X> {
        self.try_lock_often(TRIES_BEFORE_WAIT)
            .unwrap_or_else(|| self.lock())
    }

    /// Releases the lock. Before that, offers the first bucket to the delay queue if it has become
    /// earlier, and wakes the threads that wait longer.
    #[inline]
    pub(crate) fn unlock(state: ShardGuard<'_, T, X>) {
        // Only a bucket that was armed since the last look can have become the first.
        if state.wheel.has_armed() {
            Self::offer_and_unlock(state);
        }
    }

    /// Offers the first bucket if it has changed, and releases the lock. After that, wakes the
    /// listeners that wait longer, and looks whether there is a reaper to be woken.
    #[cold]
    fn offer_and_unlock(mut state: ShardGuard<'_, T, X>) {
        let first = state.wheel.take_first();
        let before = mem::replace(&mut state.offered, first);
        let mut waits = None;
        if let (Some(context), Some(id)) = (&state.context, state.id) {
            if first != before && context.delay_queue.offer(id, first) {
                waits = Some(Arc::clone(context));
            }
        }
        drop(state);
        if let Some(context) = waits {
            context.wake_listeners();
            context.check_fork();
        }
    }

    /// Flushes a batch for a turn, and hands over what expired, as
    /// [`Source::flush`](crate::engine::source::Source::flush) does. `flush_batch` fills a buffer
    /// under the lock; `hand_over` empties it with no lock held.
    pub(crate) fn flush_and_hand_over<E>(
        &self,
        turn: TurnStart,
        spare: &Spare<E>,
        flush_batch: impl FnOnce(&mut ShardState<T, X>, Flush, &mut Vec<E>),
        hand_over: impl FnOnce(&mut Vec<E>) -> usize,
    ) -> Option<usize> {
        let mut expired = mem::take(&mut *spare.lock());
        let state = self.try_lock_often(TRIES);
        let was_free = state.is_some();
        // The remains of a source that goes are not flushed, but counted as cancelled.
        if let Some(mut state) = state.filter(|state| state.id.is_some()) {
            let present = now(&state.context);
            let before = state.wheel.len();
            let flush = Flush {
                limit: turn.tick,
                turn: turn.number,
                present,
                batch: BATCH,
            };
            flush_batch(&mut state, flush, &mut expired);
            // Counted before it is handed over: a running task is always in the count.
            if let Some(context) = &state.context {
                context
                    .expired
                    .fetch_add(expired.len() as u64, Ordering::Relaxed);
            }
            // Under the same lock: an entry that is gone has given its permit back.
            state.return_permits(before - state.wheel.len());
            Self::offer_and_unlock(state);
        }
        let count = hand_over(&mut expired);
        *spare.lock() = expired;
        was_free.then_some(count)
    }

    /// Locks the shard for a look at one chunk of its entries; `None` behind the last chunk. A walk
    /// over all entries calls this for chunk after chunk, so that no lock is held for long.
    pub(crate) fn lock_chunk(&self, chunk: usize) -> Option<ShardGuard<'_, T, X>> {
        let state = self.lock_by_trying();
        (chunk < state.wheel.chunks()).then_some(state)
    }

    /// Closes the shard and takes out the pending entries, chunk by chunk.
    pub(crate) fn drain(&self) -> impl Iterator<Item = (Nanos, T)> {
        self.close();
        (0..)
            .map_while(|chunk| self.lock_chunk(chunk).map(|state| (chunk, state)))
            .flat_map(|(chunk, mut state)| {
                let mut drained = Vec::new();
                state
                    .wheel
                    .drain_chunk(chunk, |deadline, item| drained.push((deadline, item)));
                state.return_permits(drained.len());
                Self::offer_and_unlock(state);
                drained
            })
    }
}

impl<T, X> ShardState<T, X> {
    #[inline]
    pub(crate) fn open_context(&self) -> Option<&Arc<TimerContext>> {
        if self.closed {
            None
        } else {
            self.context.as_ref()
        }
    }

    /// Takes a permit for another entry. An entry that can be refused never exceeds the limit, not
    /// even for a moment: otherwise a refused `add` could make another one fail. Relaxed: entries
    /// lie behind their shard's lock.
    #[inline]
    pub(crate) fn admit(&self, limit: Limit) -> Result<(), Refusal> {
        let context = self.open_context().ok_or(Refusal::Closed)?;
        let Some(max) = context.max_pending else {
            return Ok(());
        };
        let one_more = |pending| (pending < max || limit == Limit::Exceed).then_some(pending + 1);
        let taken = context
            .pending
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.map(|_| ()).map_err(|_| Refusal::Full)
    }

    /// Adds an item that was admitted. Always inlined: as a call it cost 10 % of W1.
    #[inline(always)]
    pub(crate) fn add(&mut self, due: Due, item: T) -> Key {
        let (key, reference) = self.insert(due, item);
        self.file(reference, due);
        key
    }

    /// Adds an item that was admitted, and returns the reference to be filed.
    #[inline(always)]
    pub(crate) fn insert(&mut self, due: Due, item: T) -> (Key, Reference) {
        self.wheel.insert(due, item)
    }

    #[inline(always)]
    pub(crate) fn file(&mut self, reference: Reference, due: Due) {
        let ShardState { wheel, context, .. } = self;
        wheel.file(reference, due, || now(context));
    }

    /// Files a present entry as due at once, so that the next turn looks at it.
    #[cold]
    pub(crate) fn file_now(&mut self, index: u32) {
        let Some(context) = &self.context else { return };
        let due = context.time.due(When::After(Duration::ZERO));
        self.wheel.file_again(index, due, due.deadline);
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.wheel.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.wheel.get_mut(key)
    }

    /// Returns the item of a present entry.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &T {
        self.wheel.at(index)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        self.wheel.at_mut(index)
    }

    /// Returns the deadline of a present entry.
    #[inline]
    pub(crate) fn deadline_at(&self, index: u32) -> Nanos {
        self.wheel.deadline_at(index)
    }

    /// Returns a time of the shard's timer as an instant; `None` is never.
    #[inline]
    pub(crate) fn instant_of(&self, deadline: Nanos) -> Option<Instant> {
        self.context.as_ref()?.time.instant_or_never(deadline)
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn keys_of(&self, chunk: usize) -> impl Iterator<Item = Key> {
        self.wheel.keys_of(chunk)
    }

    /// Returns what the source keeps, to be changed beside a look at the entries.
    #[inline]
    pub(crate) fn split(&mut self) -> (&mut X, &TimingWheel<T>) {
        (&mut self.extra, &self.wheel)
    }

    pub(crate) fn assert_invariants(&self, is_filed: impl Fn(&T) -> bool) {
        self.wheel.assert_invariants(is_filed);
    }

    /// Flushes a batch of the first bucket. Due entries are taken out for `expire`.
    #[inline]
    pub(crate) fn flush(&mut self, flush: Flush, mut expire: impl FnMut(&mut X, Key, T)) {
        let ShardState { wheel, extra, .. } = self;
        wheel.flush(flush, |key, entry| expire(extra, key, entry.item));
    }

    /// Flushes a batch of the first bucket. Due entries stay, filed no longer. `see` gets each
    /// entry, and whether it is due.
    #[inline]
    pub(crate) fn flush_in_place(&mut self, flush: Flush, see: impl FnMut(Key, &mut T, bool)) {
        self.wheel.flush_in_place(flush, see);
    }

    /// Extends the deadline of a present entry; an earlier one has no effect.
    #[inline]
    pub(crate) fn extend(&mut self, index: u32, due: Due) {
        if self.wheel.extend(index, due.deadline) {
            self.unfile_unless_due(index, due.deadline);
        }
    }

    /// Unfiles an entry whose deadline is beyond the last one, unless it has passed, in the last
    /// tick. Cold, so that [`extend`](Self::extend) does not prepare to read the clock.
    #[cold]
    fn unfile_unless_due(&mut self, index: u32, deadline: Nanos) {
        if deadline > now(&self.context) {
            self.wheel.unfile(index);
        }
    }

    #[inline]
    pub(crate) fn move_to(&mut self, index: u32, due: Due) {
        let ShardState { wheel, context, .. } = self;
        wheel.move_to(index, due, || now(context));
    }

    /// Moves a present entry to an earlier deadline; a later one has no effect.
    pub(crate) fn hasten(&mut self, index: u32, due: Due) {
        if due.deadline < self.wheel.deadline_at(index) {
            self.move_to(index, due);
        }
    }

    #[inline]
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let item = self.wheel.cancel(key)?;
        self.return_permits(1);
        Some(item)
    }

    #[inline]
    pub(crate) fn cancel_at(&mut self, index: u32) -> Option<T> {
        self.end_at(index, |_, _| None)
    }

    /// Takes an entry out. `ends` gets the item and a function that reads the clock. It returns
    /// that reading if the entry has expired, and `None` if it is cancelled.
    #[inline]
    pub(crate) fn end_at(
        &mut self,
        index: u32,
        ends: impl FnOnce(&mut T, &dyn Fn() -> Nanos) -> Option<Nanos>,
    ) -> Option<T> {
        let ShardState { wheel, context, .. } = self;
        let item = wheel.end_at(index, |item| ends(item, &|| now(context)))?;
        self.return_permits(1);
        Some(item)
    }

    /// Gives permits back, under the lock under which their entries have gone.
    #[inline]
    pub(crate) fn return_permits(&self, permits: usize) {
        let Some(context) = &self.context else { return };
        if context.max_pending.is_some() {
            context.pending.fetch_sub(permits, Ordering::Relaxed);
        }
    }
}

#[inline]
fn now(context: &Option<Arc<TimerContext>>) -> Nanos {
    // A thread that adds or moves something has found the shard open.
    context
        .as_ref()
        .map_or(Nanos::default(), |context| context.time.now())
}

pub(crate) trait AnyShard {
    /// Takes cancelled timers off the front, so that no thread wakes up for them. Does bounded
    /// work. Returns whether the first bucket has changed, or may change.
    fn trim(&self) -> bool;

    /// Closes the shard: nothing can be added any more.
    fn close(&self);

    /// Closes the shard, offers that nothing is pending, and adds its counts. An operation that a
    /// thread is checking counts as cancelled.
    fn detach(&self, counters: &mut Counters);

    /// Drops all pending entries of a closed shard. Returns their number.
    fn drop_pending(&self) -> u64;

    fn len(&self) -> usize;

    /// Adds the shard's counts. Returns the number of pending entries.
    fn count(&self, counters: &mut Counters) -> usize;

    fn snapshot(&self, snapshot: &mut Snapshot, now: Nanos);
}

impl<T, X> AnyShard for Shard<T, X> {
    fn trim(&self) -> bool {
        // Waiting for a busy shard does not pay.
        let Some(mut state) = self.try_lock_often(TRIES) else {
            return false;
        };
        let more = state.wheel.trim();
        Self::offer_and_unlock(state);
        more
    }

    fn close(&self) {
        self.lock_by_trying().closed = true;
    }

    fn detach(&self, counters: &mut Counters) {
        let mut state = self.lock_by_trying();
        state.closed = true;
        let id = state.id.take();
        if let (Some(context), Some(id)) = (&state.context, id) {
            context.delay_queue.remove_shard(id);
        }
        state.wheel.count(counters);
        counters.cancelled += state.wheel.len() as u64;
    }

    fn drop_pending(&self) -> u64 {
        let mut count = 0;
        for (_, item) in self.drain() {
            // A drop that panics must not keep the others from being dropped.
            catch_panic(|| drop(item));
            count += 1;
        }
        count
    }

    fn len(&self) -> usize {
        self.lock().wheel.len()
    }

    fn count(&self, counters: &mut Counters) -> usize {
        let state = self.lock();
        state.wheel.count(counters);
        state.wheel.len()
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: Nanos) {
        snapshot.absorb(&self.lock().wheel, now);
    }
}
