//! The shard: a timing wheel behind a lock.
//!
//! The entries of a timer, keyed timers, purgatories and sleeping futures lie in shards. What they
//! keep in a shard beside its wheel, `X`, differs. Here is what they have in common: who may add,
//! how a shard is flushed, and what the delay queue is told.
//!
//! # Locks
//! Under a shard's lock the delay queue's lock may be taken, but never another shard's. No user
//! code runs under it, unless the documentation of what it serves says so.

use crate::engine::context::{Limit, Refusal, TimerContext, Wake};
use crate::engine::delay_queue::{ShardId, TurnStart};
use crate::engine::stats::Snapshot;
use crate::engine::stats::Stats;
use crate::engine::turn::Turn;
use crate::sync::{HotMutex, HotMutexGuard, Mutex, nap};
use crate::wheel::bucket::Reference;
use crate::wheel::expirations::{First, Flush};
use crate::wheel::level::round_size;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use crate::wheel::timing_wheel::{BATCH, TimingWheel};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

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
    context: Option<Arc<TimerContext>>,
    /// How it is named; `None` once it says nothing any more, because its source has gone.
    id: Option<ShardId>,
    /// What the delay queue was told.
    said: First,
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
            said: First::NEVER,
            closed: true,
        };
        Shard { state: HotMutex::new(state) }
    }

    /// Begins to serve a source; nothing is left of the former one.
    pub(crate) fn serve(&self, context: &Arc<TimerContext>, id: ShardId, wheel_size: usize) {
        let time = &context.time;
        let size = round_size(wheel_size);
        let wheel = TimingWheel::new(time.tick, size, time.present(), time.last());
        let mut state = self.lock();
        state.wheel.restart(wheel);
        (state.extra, state.context) = (X::default(), Some(Arc::clone(context)));
        (state.id, state.said, state.closed) = (Some(id), First::NEVER, false);
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

    /// Releases the lock. The delay queue is told before if the first bucket has become earlier,
    /// and those are woken who wait longer.
    #[inline]
    pub(crate) fn release(state: ShardGuard<'_, T, X>) {
        if state.has_become_earlier() {
            Self::say_and_release(state);
        }
    }

    #[cold]
    fn say_and_release(mut state: ShardGuard<'_, T, X>) {
        let wake = state.say();
        drop(state);
        drop(wake);
    }

    /// Flushes a batch for a turn, if the lock can be had. Calls `flush` with the state, under the
    /// lock. Returns whether it could.
    pub(crate) fn flush(
        &self,
        turn: &mut Turn<'_>,
        flush: impl FnOnce(&mut ShardState<T, X>, Flush),
    ) -> bool {
        let Some(mut state) = self.try_lock_often() else { return false };
        // What a source leaves behind as it goes is not flushed any more, but counted as cancelled.
        let (Some(context), Some(_)) = (state.context.clone(), state.id) else { return true };
        let TurnStart { tick: limit, number } = turn.start;
        let present = context.time.now();
        let before = state.wheel.len();
        flush(&mut state, Flush { limit, turn: number, present, batch: BATCH });
        // Under the lock under which they have gone: who finds one gone also finds its permit free.
        context.release_permits(before - state.wheel.len());
        let wake = state.say_change();
        drop(state);
        turn.released(wake);
        true
    }
}

/// A buffer for what the flushes of a source take out, unless a turn has it: thus most flushes
/// allocate nothing.
pub(crate) struct Spare<E>(Mutex<Vec<E>>);

impl<E> Spare<E> {
    pub(crate) fn new() -> Self {
        Spare(Mutex::new(Vec::new()))
    }

    /// Flushes a batch of a shard, as [`Source::flush`] does. `flush` adds what expires to the
    /// buffer, under the shard's lock; `hand_over` takes it out of there, with no lock held, and
    /// returns how much that was.
    ///
    /// [`Source::flush`]: crate::engine::source::Source::flush
    pub(crate) fn flush<T, X>(
        &self,
        shard: &Shard<T, X>,
        turn: &mut Turn<'_>,
        flush: impl FnOnce(&mut ShardState<T, X>, Flush, &mut Vec<E>),
        hand_over: impl FnOnce(&mut Turn<'_>, &mut Vec<E>) -> usize,
    ) -> Option<usize> {
        let mut expired = mem::take(&mut *self.0.lock());
        let flushed = shard.flush(turn, |state, what| flush(state, what, &mut expired));
        let count = hand_over(turn, &mut expired);
        *self.0.lock() = expired;
        flushed.then_some(count)
    }
}

impl<T, X> ShardState<T, X> {
    /// Returns the context of the timer that the shard serves.
    #[inline]
    pub(crate) fn context(&self) -> Option<&Arc<TimerContext>> {
        self.context.as_ref()
    }

    /// Returns the context, unless the shard is closed.
    #[inline]
    pub(crate) fn open_context(&self) -> Option<&Arc<TimerContext>> {
        if self.closed { None } else { self.context.as_ref() }
    }

    /// Takes a permit for another entry.
    #[inline]
    pub(crate) fn admit(&self, limit: Limit) -> Result<(), Refusal> {
        let context = self.open_context().ok_or(Refusal::Closed)?;
        context.take_permit(limit)
    }

    /// Adds an item that was admitted.
    ///
    /// Always inlined: with two kinds of callers it was called, at 10 % of W1.
    #[inline(always)]
    pub(crate) fn add(&mut self, due: Due, item: T) -> Key {
        let ShardState { wheel, context, .. } = self;
        wheel.add(due, item, || now(context))
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
        if let Some(context) = &self.context {
            context.release_permits(permits);
        }
    }

    /// Returns whether the first bucket has become earlier than the delay queue was told.
    #[inline]
    pub(crate) fn has_become_earlier(&self) -> bool {
        self.wheel.first().tick < self.said.tick
    }

    /// Tells the delay queue what comes first. Returns the duty to wake listeners.
    pub(crate) fn say(&mut self) -> Wake {
        self.said = self.wheel.first();
        let (Some(context), Some(id)) = (&self.context, self.id) else { return Wake::default() };
        let listens = context.delay_queue.say(id, self.said);
        if listens { Wake::of(context) } else { Wake::default() }
    }

    /// Tells the delay queue what comes first, if that has changed.
    fn say_change(&mut self) -> Wake {
        if self.wheel.first() == self.said { Wake::default() } else { self.say() }
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

    /// Closes the shard, and has it say last that nothing is pending.
    fn detach(&self);

    /// Drops all pending entries of a closed shard, in batches. Returns how many there were.
    fn drop_pending(&self) -> u64;

    fn len(&self) -> usize;

    fn count(&self, stats: &mut Stats);

    fn snapshot(&self, snapshot: &mut Snapshot, now: Nanos);
}

impl<T, X> AnyShard for Shard<T, X> {
    fn trim(&self) -> bool {
        // If another thread is at work there, waiting for it does not pay.
        let Some(mut state) = self.try_lock_often() else { return false };
        let more = state.wheel.trim();
        let wake = state.say_change();
        drop(state);
        drop(wake);
        more
    }

    fn close(&self) {
        self.lock_by_trying().closed = true;
    }

    fn detach(&self) {
        let mut state = self.lock_by_trying();
        state.closed = true;
        let id = state.id.take();
        if let (Some(context), Some(id)) = (&state.context, id) {
            // So no turn finds it any more, or brings it back that has put it aside.
            context.delay_queue.say(id, First::NEVER);
        }
    }

    fn drop_pending(&self) -> u64 {
        self.drain().map(drop).count() as u64
    }

    fn len(&self) -> usize {
        self.lock().wheel.len()
    }

    fn count(&self, stats: &mut Stats) {
        let state = self.lock();
        stats.absorb(&state.wheel.counters, state.wheel.len());
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: Nanos) {
        snapshot.absorb(&self.lock().wheel, now);
    }
}

impl<T, X> Shard<T, X> {
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
            let wake = state.say_change();
            drop(state);
            drop(wake);
            drained
        })
    }
}
