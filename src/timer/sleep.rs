//! The sleep: a future that waits for its deadline, and the source of the wakers of all sleeps.

use crate::engine::clock::When;
use crate::engine::context::{Limit, Refusal, TimerContext};
use crate::engine::delay_queue::ShardId;
use crate::engine::reaper::Engine;
use crate::engine::report::catch_panic;
use crate::engine::shard::{AnyShard, Shard, ShardState, Spare};
use crate::engine::source::Source;
use crate::engine::turn::Turn;
use crate::sync::home;
use crate::timer::error::SleepError;
use crate::timer::tasks::Layout;
use crate::wheel::slab::Key;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A future that completes at its deadline, never before; created by [`Timer::sleep`].
///
/// A sleep allocates nothing: its waker lies in the timer. The first poll that finds the sleep not
/// ready adds it; dropping the future cancels it. It counts as one of the timer's pending timers.
///
/// A sleep does not keep its timer alive. It ends with [`SleepError::Shutdown`] when the timer is
/// shut down or its last clone is dropped, unless its time is up.
///
/// [`Timer::sleep`]: crate::Timer::sleep
#[must_use = "a future does nothing unless it is polled"]
pub struct Sleep {
    home: Home,
    /// `None`: so far away that no `Instant` can tell. An `Instant`, because the system's clock
    /// tells one, and whether it has come is seen without a subtraction.
    deadline: Option<Instant>,
    waiting: Option<Waiting>,
}

/// A sleep that was added.
struct Waiting {
    key: Key,
    /// The waker in the shard: the clone, which keeps its data alive while the sleep is pending. It
    /// is not the waker that was cloned: that one may have other data, whose address another waker
    /// may have once it is gone.
    wakes: WakerId,
}

/// Identifies a waker among those that exist at the same time, as [`Waker::will_wake`] does.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WakerId {
    data: usize,
    vtable: usize,
}

impl WakerId {
    fn of(waker: &Waker) -> Self {
        WakerId { data: waker.data().addr(), vtable: std::ptr::from_ref(waker.vtable()).addr() }
    }
}

/// The waker of a future that sleeps. It is woken even if it is dropped, with its timer: no future
/// sleeps for ever.
struct Sleeper(Option<Waker>);

impl Sleeper {
    fn wake(mut self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }

    /// Drops the waker without waking it.
    fn discard(mut self) {
        self.0 = None;
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            catch_panic(|| waker.wake());
        }
    }
}

/// A shard of sleepers. It is counted, and not leaked as those of a timer's tasks are: a sleep adds
/// at its first poll, which may come after the end of its timer.
type Home = Arc<CachePadded<SleepShard>>;

struct SleepShard {
    context: Arc<TimerContext>,
    shard: Shard<Sleeper>,
}

/// The sleeps of a timer.
pub(crate) struct Sleeps {
    shards: Box<[Home]>,
    spare: Spare<Sleeper>,
}

impl Sleeps {
    pub(crate) fn register(engine: &Engine, layout: Layout) -> Arc<Self> {
        let context = &engine.context;
        let make = |source| {
            let shard = |ordinal| {
                let shard = Shard::new();
                shard.serve(context, ShardId { source, ordinal }, layout.wheel_size);
                Arc::new(CachePadded::new(SleepShard { context: Arc::clone(context), shard }))
            };
            let shards = (0..layout.shards as u32).map(shard).collect();
            Arc::new(Sleeps { shards, spare: Spare::new() })
        };
        engine.sources.register(context, layout.shards, make).1
    }

    /// Returns a sleep until `when`.
    pub(crate) fn sleep(&self, when: When) -> Sleep {
        let home = &self.shards[home() & (self.shards.len() - 1)];
        let deadline = home.context.time.clock.deadline_of(when);
        Sleep { home: Arc::clone(home), deadline, waiting: None }
    }

    /// Wakes all that sleep, once the shards are closed.
    pub(crate) fn wake_all(&self) {
        self.shards.iter().for_each(|home| _ = home.shard.drop_pending());
    }
}

impl Source for Sleeps {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        let Some(home) = self.shards.get(ordinal) else { return Some(0) };
        let flush = |state: &mut ShardState<Sleeper, ()>, flush, sleepers: &mut Vec<Sleeper>| {
            state.wheel.flush(flush, |_, sleeper| sleepers.push(sleeper));
        };
        self.spare.flush(&home.shard, turn, flush, |turn, sleepers| {
            let count = sleepers.len();
            let later = |sleeper: Sleeper| -> Box<dyn FnOnce()> { Box::new(move || drop(sleeper)) };
            if !turn.shuffle(sleepers, later) {
                let wake = |sleeper: Sleeper| _ = home.context.catch_panic(|| sleeper.wake());
                sleepers.drain(..).for_each(wake);
            }
            count
        })
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.get(ordinal).map(|home| &home.shard as &dyn AnyShard)
    }

    fn assert_invariants(&self) {
        let shards = self.shards.iter().map(|home| &home.shard);
        shards.for_each(|shard| shard.lock().wheel.assert_invariants(|_| true));
    }
}

impl Sleep {
    /// Returns the deadline, or `None` if it never comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether the deadline has passed.
    pub fn is_elapsed(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= self.now())
    }

    /// Returns the time of the timer's clock.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.home.context.time.clock.now()
    }

    /// Returns the name of the timer.
    #[cfg(feature = "hyper")]
    pub(crate) fn timer_name(&self) -> &str {
        &self.home.context.name
    }

    /// Moves the deadline, even if the old one has passed. Costs as much as
    /// [`Timeout::reschedule`](crate::Timeout::reschedule).
    pub fn reset(&mut self, when: impl Into<When>) {
        let time = &self.home.context.time;
        self.deadline = time.clock.deadline_of(when.into());
        let Some(Waiting { key, .. }) = &self.waiting else { return };
        let due = time.due(When::at_or_never(self.deadline));
        let mut state = self.home.shard.lock();
        if state.wheel.entries.get(*key).is_some() && !state.closed {
            state.move_to(key.index, due);
            Shard::release(state);
        } else {
            drop(state);
            self.waiting = None;
        }
    }

    /// Polls the sleep, which may be `limit`ed by what is pending already.
    pub(crate) fn poll_by(
        &mut self,
        context: &Context<'_>,
        limit: Limit,
    ) -> Poll<Result<(), SleepError>> {
        if self.is_elapsed() {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        let waker = context.waker();
        if self.waits_for(waker) {
            return Poll::Pending;
        }
        let sleeper = Sleeper(Some(waker.clone()));
        let wakes = sleeper.0.as_ref().map(WakerId::of);
        let due = self.home.context.time.due(When::at_or_never(self.deadline));
        let mut state = self.home.shard.lock();
        let refusal = match state.admit(limit) {
            Ok(()) => {
                let key = state.add(due, sleeper);
                Shard::release(state);
                self.waiting = wakes.map(|wakes| Waiting { key, wakes });
                return Poll::Pending;
            }
            Err(refusal) => refusal,
        };
        drop(state);
        sleeper.discard();
        Poll::Ready(Err(match refusal {
            Refusal::Full => SleepError::Full,
            Refusal::Closed => SleepError::Shutdown,
        }))
    }

    /// Returns whether the sleep is pending and wakes this waker, from now on if not before. So it
    /// keeps its place, even in a full timer.
    fn waits_for(&mut self, waker: &Waker) -> bool {
        let Some(Waiting { key, wakes }) = &mut self.waiting else { return false };
        if *wakes == WakerId::of(waker) {
            return self.home.shard.lock().wheel.entries.get(*key).is_some();
        }
        let mut sleeper = Sleeper(Some(waker.clone()));
        let own = sleeper.0.as_ref().map(WakerId::of);
        let mut state = self.home.shard.lock();
        let is_pending = match state.wheel.entries.get_mut(*key) {
            Some(entry) => {
                mem::swap(&mut entry.item, &mut sleeper);
                *wakes = own.unwrap_or(*wakes);
                true
            }
            None => false,
        };
        drop(state);
        sleeper.discard(); // Nobody is woken by the waker that is not needed.
        is_pending
    }

    pub(crate) fn cancel(&mut self) {
        if let Some(Waiting { key, .. }) = self.waiting.take() {
            let cancelled = self.home.shard.lock().cancel(key);
            cancelled.into_iter().for_each(Sleeper::discard);
        }
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_by(context, Limit::Keep)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_waiting = self.waiting.is_some();
        let mut sleep = f.debug_struct("Sleep");
        sleep.field("deadline", &self.deadline).field("waiting", &is_waiting).finish()
    }
}
