//! The shard: a timing wheel behind a lock; and the context, which all shards of a timer share.
//!
//! The entries of a timer, keyed timers, purgatories and sleeping futures lie in shards. What they
//! keep in a shard beside its wheel, `X`, differs. Here is what they have in common: who may add,
//! how a shard is flushed, and what is offered to the delay queue.
//!
//! # Locks
//! Under a shard's lock the delay queue's lock may be taken, but never another shard's. No user
//! code runs under it, unless the documentation of what it serves says so.

use crate::engine::clock::Time;
use crate::engine::delay_queue::{DelayQueue, ShardId, TurnStart};
use crate::engine::report::{catch_panic, catch_panic_of};
use crate::engine::stats::Snapshot;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{HotMutex, HotMutexGuard, Mutex, nap};
use crate::wheel::bucket::Reference;
use crate::wheel::counters::Counters;
use crate::wheel::expirations::{First, Flush};
use crate::wheel::level::round_size;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use crate::wheel::timing_wheel::{BATCH, TimingWheel};
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// What the shards of a timer share.
pub(crate) struct TimerContext {
    /// The name of the timer.
    pub(crate) name: Arc<str>,
    pub(crate) time: Time,
    /// Padded, like the other thing that many threads change: all of them read the rest.
    pub(crate) delay_queue: CachePadded<DelayQueue>,
    /// The most entries that may be pending, if there is a limit; and how many are, only then.
    max_pending: Option<usize>,
    pending: CachePadded<AtomicUsize>,
    /// Panics of user code that were contained. Relaxed: the count publishes nothing.
    pub(crate) panicked: AtomicU64,
    /// How much has expired in all turns. Relaxed: it is read by the thread that advances, or as a
    /// hint that another one did.
    pub(crate) expired: AtomicU64,
}

/// Whether an entry counts against `max_pending`, or is one that cannot be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Keep,
    Exceed,
}

/// The reason why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

impl TimerContext {
    pub(crate) fn new(name: Arc<str>, time: Time, max_pending: Option<usize>) -> Self {
        let (delay_queue, pending) = (CachePadded::default(), CachePadded::default());
        let (panicked, expired) = (AtomicU64::new(0), AtomicU64::new(0));
        TimerContext { name, time, delay_queue, max_pending, pending, panicked, expired }
    }

    /// Wakes the listeners: futures and loops that drive the timer. The caller holds no lock, as
    /// this is the user's code.
    #[cold]
    pub(crate) fn wake_listeners(&self) {
        for waker in self.delay_queue.wakers() {
            self.catch_panic(|| waker.wake_by_ref());
        }
    }

    /// Ends the waits of threads and listeners, now and later.
    pub(crate) fn stop(&self) {
        self.delay_queue.stop();
        self.wake_listeners();
    }

    /// Calls user code; counts and reports a panic in it. Returns nothing then.
    pub(crate) fn catch_panic<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        let returned = catch_panic_of(&self.name, code);
        if returned.is_none() {
            self.panicked.fetch_add(1, Ordering::Relaxed);
        }
        returned
    }
}

/// A lock and what is behind it; see the [module](self).
pub(crate) struct Shard<T, X = ()> {
    state: HotMutex<ShardState<T, X>>,
}

pub(crate) type ShardGuard<'a, T, X = ()> = HotMutexGuard<'a, ShardState<T, X>>;

/// What is behind the lock of a shard.
pub(crate) struct ShardState<T, X> {
    pub(crate) wheel: TimingWheel<T>,
    pub(crate) extra: X,
    /// Of the timer that it serves; `None` while it is in the pool.
    pub(crate) context: Option<Arc<TimerContext>>,
    /// How it is named; `None` once it offers nothing any more, because its source has gone.
    id: Option<ShardId>,
    /// What the delay queue was offered last.
    offered: First,
    /// Set by a shutdown: from then on nothing can be added, and nothing moves.
    pub(crate) closed: bool,
}

/// What a source keeps in a shard beside its wheel.
pub(crate) trait Extra: Default {
    /// Returns whether nothing is left of the source that the shard serves, or has served.
    fn is_empty(&self) -> bool;
}

impl Extra for () {
    fn is_empty(&self) -> bool {
        true
    }
}

/// A buffer for what the flushes of a source take out, unless a turn has it: thus most flushes
/// allocate nothing.
pub(crate) type Spare<E> = Mutex<Vec<E>>;

/// How often a lock is tried before it counts as taken: for about as long as a call holds it. In
/// models, trying again does not help.
const TRIES: usize = if cfg!(tickwheel_model) { 1 } else { 32 };

/// How long a thread waits for a shard that another one holds, before it tries again: long enough
/// for the holder to get a core.
pub(crate) const NAP: Duration = Duration::from_micros(50);

impl<T, X: Extra> Shard<T, X> {
    /// Creates a shard that serves nobody.
    pub(crate) fn new() -> Self {
        let state = ShardState {
            wheel: idle_wheel(),
            extra: X::default(),
            context: None,
            id: None,
            offered: First::NEVER,
            closed: true,
        };
        Shard { state: HotMutex::new(state) }
    }

    /// Begins to serve a source; nothing is left of the former one.
    pub(crate) fn serve(
        &self,
        context: &Arc<TimerContext>,
        source: u64,
        ordinal: u32,
        wheel_size: usize,
    ) {
        let time = &context.time;
        let size = round_size(wheel_size);
        let wheel = TimingWheel::new(time.tick, size, time.present(), time.last());
        let id = context.delay_queue.add_shard(source, ordinal);
        let mut state = self.lock();
        state.wheel.restart(wheel);
        (state.extra, state.context) = (X::default(), Some(Arc::clone(context)));
        (state.id, state.offered, state.closed) = (Some(id), First::NEVER, false);
    }

    /// Returns whether nothing is left of the source that the shard serves, or has served.
    pub(crate) fn is_free(&self) -> bool {
        let state = self.lock();
        state.wheel.len() == 0 && state.extra.is_empty()
    }

    /// Frees what the shard holds for its source, which has gone. What another thread is taking out
    /// just now stays.
    pub(crate) fn retire(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wheel.restart(idle_wheel());
        let context = state.context.take();
        let extra = if state.extra.is_empty() { mem::take(&mut state.extra) } else { X::default() };
        drop(state);
        drop((context, extra)); // Not under the lock: callers of old handles need not wait.
    }
}

/// Returns a wheel that takes next to no memory, for a shard that serves nobody.
fn idle_wheel<T>() -> TimingWheel<T> {
    TimingWheel::new(TickLength::new(1), 4, Tick(0), Nanos::NEVER)
}

impl<T, X> Shard<T, X> {
    /// Locks the shard. Whoever files something has to [release](Self::release) it.
    #[inline]
    pub(crate) fn lock(&self) -> ShardGuard<'_, T, X> {
        self.state.lock()
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<ShardGuard<'_, T, X>> {
        self.state.try_lock()
    }

    /// Takes the lock, unless another thread keeps it for longer than a call takes. In that case
    /// its holder waits for a core, and so would a thread that waited for the lock.
    fn try_lock_often(&self) -> Option<ShardGuard<'_, T, X>> {
        (0..TRIES).find_map(|_| {
            let state = self.try_lock();
            if state.is_none() {
                std::hint::spin_loop();
            }
            state
        })
    }

    /// Locks the shard without waiting in line: there, a thread that locks it again and again would
    /// overtake this one for seconds, because std's mutex is not fair.
    fn lock_by_trying(&self) -> ShardGuard<'_, T, X> {
        loop {
            match self.try_lock_often() {
                Some(state) => return state,
                None => nap(NAP),
            }
        }
    }

    /// Calls `act` under the lock, and releases the lock.
    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut ShardState<T, X>) -> R) -> R {
        let mut state = self.lock();
        let answer = act(&mut state);
        Self::release(state);
        answer
    }

    /// Releases the lock. If the first bucket has become earlier, it is offered to the delay queue
    /// before, and those are woken who wait longer.
    #[inline]
    pub(crate) fn release(state: ShardGuard<'_, T, X>) {
        if state.wheel.first().tick < state.offered.tick {
            Self::offer_and_release(state);
        }
    }

    /// Offers to the delay queue what comes first, if that has changed, and releases the lock.
    /// After that, wakes the listeners that wait longer.
    #[cold]
    fn offer_and_release(mut state: ShardGuard<'_, T, X>) {
        let first = state.wheel.first();
        let before = mem::replace(&mut state.offered, first);
        let mut listens = None;
        if let (Some(context), Some(id)) = (&state.context, state.id) {
            if first != before && context.delay_queue.offer(id, first) {
                listens = Some(Arc::clone(context));
            }
        }
        drop(state);
        if let Some(context) = listens {
            context.wake_listeners();
        }
    }

    /// Flushes a batch for a turn, and hands over what expired, as [`Source::flush`] does. `flush`
    /// adds that to a buffer, under the lock; `hand_over` takes it out of there, with no lock held,
    /// and returns how much it was.
    ///
    /// [`Source::flush`]: crate::engine::source::Source::flush
    pub(crate) fn flush_and_hand_over<E>(
        &self,
        turn: TurnStart,
        spare: &Spare<E>,
        flush: impl FnOnce(&mut ShardState<T, X>, Flush, &mut Vec<E>),
        hand_over: impl FnOnce(&mut Vec<E>) -> usize,
    ) -> Option<usize> {
        let mut expired = mem::take(&mut *spare.lock());
        let state = self.try_lock_often();
        let was_free = state.is_some();
        // What a source leaves behind as it goes is not flushed any more, but counted as cancelled.
        if let Some(mut state) = state.filter(|state| state.id.is_some()) {
            let TurnStart { tick: limit, number: turn } = turn;
            let present = now(&state.context);
            let before = state.wheel.len();
            flush(&mut state, Flush { limit, turn, present, batch: BATCH }, &mut expired);
            // Before it is handed over: who sees a task run finds it counted.
            if let Some(context) = &state.context {
                context.expired.fetch_add(expired.len() as u64, Ordering::Relaxed);
            }
            // Under the same lock: who finds an entry gone also finds its permit free.
            state.release_permits(before - state.wheel.len());
            Self::offer_and_release(state);
        }
        let count = hand_over(&mut expired);
        *spare.lock() = expired;
        was_free.then_some(count)
    }

    /// Closes the shard, and takes the pending entries out with their deadlines: one chunk of the
    /// slab at a time, so that no lock is held for long.
    pub(crate) fn drain(&self) -> impl Iterator<Item = (Nanos, T)> {
        self.close();
        let chunks = self.lock_by_trying().wheel.entries.chunks();
        (0..chunks).flat_map(|chunk| {
            let mut drained = Vec::new();
            let mut state = self.lock_by_trying();
            state.wheel.drain_chunk(chunk, |deadline, item| drained.push((deadline, item)));
            state.release_permits(drained.len());
            Self::offer_and_release(state);
            drained
        })
    }
}

impl<T, X> ShardState<T, X> {
    /// Returns the context of the timer that the shard serves, unless the shard is closed.
    #[inline]
    pub(crate) fn open_context(&self) -> Option<&Arc<TimerContext>> {
        if self.closed { None } else { self.context.as_ref() }
    }

    /// Takes a permit for another entry. Never goes above the limit if the entry can be refused,
    /// not even for a moment: otherwise one refused `add` could make another one fail that fits.
    ///
    /// Relaxed: the count publishes nothing; the entries lie behind their shard's lock.
    #[inline]
    pub(crate) fn admit(&self, limit: Limit) -> Result<(), Refusal> {
        let context = self.open_context().ok_or(Refusal::Closed)?;
        let Some(max) = context.max_pending else { return Ok(()) };
        let one_more = |pending| (pending < max || limit == Limit::Exceed).then_some(pending + 1);
        let taken = context.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.map(|_| ()).map_err(|_| Refusal::Full)
    }

    /// Adds an item that was admitted.
    ///
    /// Always inlined: with two kinds of callers it was called, at 10 % of W1.
    #[inline(always)]
    pub(crate) fn add(&mut self, due: Due, item: T) -> Key {
        let (key, reference) = self.wheel.insert(due, item);
        self.file_new(reference, due);
        key
    }

    /// Files an entry that was inserted.
    #[inline(always)]
    pub(crate) fn file_new(&mut self, reference: Reference, due: Due) {
        let ShardState { wheel, context, .. } = self;
        wheel.file_new(reference, due, || now(context));
    }

    /// Moves an entry, which must be present, to another deadline.
    #[inline]
    pub(crate) fn move_to(&mut self, index: u32, due: Due) {
        let ShardState { wheel, context, .. } = self;
        wheel.move_to(index, due, || now(context));
    }

    /// Moves an entry, which must be present, to an earlier deadline; a later one has no effect.
    pub(crate) fn hasten(&mut self, index: u32, due: Due) {
        if due.deadline < self.wheel.entries.at(index).deadline() {
            self.move_to(index, due);
        }
    }

    /// Takes an entry out before it expires, and returns its item.
    #[inline]
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let item = self.wheel.cancel(key)?;
        self.release_permits(1);
        Some(item)
    }

    /// Gives permits back, under the same lock under which their entries have gone.
    #[inline]
    pub(crate) fn release_permits(&self, permits: usize) {
        let Some(context) = &self.context else { return };
        if context.max_pending.is_some() {
            context.pending.fetch_sub(permits, Ordering::Relaxed);
        }
    }
}

#[inline]
fn now(context: &Option<Arc<TimerContext>>) -> Nanos {
    // Who adds or moves something has found the shard open.
    context.as_ref().map_or(Nanos::default(), |context| context.time.now())
}

/// A shard of any kind, as a source shows it.
pub(crate) trait AnyShard {
    /// Takes what was cancelled off the front of its buckets, so that no thread wakes up for it.
    /// Does bounded work. Returns whether something else comes first now, or may.
    fn trim(&self) -> bool;

    /// Closes the shard: nothing can be added any more.
    fn close(&self);

    /// Closes the shard, and has it offer last that nothing is pending. Adds what it has counted.
    /// What is still in it counts as cancelled: an operation that a thread is checking, which
    /// leaves after that.
    fn detach(&self, counters: &mut Counters);

    /// Drops all pending entries of a closed shard, in batches. Returns how many there were.
    fn drop_pending(&self) -> u64;

    fn len(&self) -> usize;

    /// Adds what the shard has counted. Returns how much is pending.
    fn count(&self, counters: &mut Counters) -> usize;

    fn snapshot(&self, snapshot: &mut Snapshot, now: Nanos);
}

impl<T, X> AnyShard for Shard<T, X> {
    fn trim(&self) -> bool {
        // If another thread is at work there, waiting for it does not pay.
        let Some(mut state) = self.try_lock_often() else { return false };
        let more = state.wheel.trim();
        Self::offer_and_release(state);
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
        counters.absorb(&state.wheel.counters);
        counters.cancelled += state.wheel.len() as u64;
    }

    fn drop_pending(&self) -> u64 {
        let mut count = 0;
        for (_, item) in self.drain() {
            // Contained, so that one that panics keeps none of the others from being dropped.
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
        counters.absorb(&state.wheel.counters);
        state.wheel.len()
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: Nanos) {
        snapshot.absorb(&self.lock().wheel, now);
    }
}
