//! The sleep: a future that waits for its deadline, and the source of all sleeps' wakers.

use crate::engine::clock::When;
use crate::engine::reaper::Engine;
use crate::engine::shard::{AnyShard, Limit, Shard, ShardState, Spare, TimerContext};
use crate::engine::source::{Source, Turn};
use crate::sync::home;
use crate::timer::error::SleepError;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Due, Nanos};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A future that completes at its deadline, never before; created by [`Timer::sleep`].
///
/// A sleep allocates nothing. The first poll that finds the sleep not ready adds it; dropping the
/// future cancels it. It counts as a pending timer.
///
/// A sleep with a delay reads the clock when it is created, and not again at its first poll. If
/// that poll comes after the deadline, the sleep completes at once if `advance_clock` has looked
/// for due timers since the deadline. Otherwise it completes with the next
/// [`advance_clock`](crate::Timer::advance_clock), for which the poll wakes the reaper.
///
/// A sleep does not keep its timer alive. It ends with [`SleepError::Shutdown`] when the timer is
/// shut down or its last clone is dropped, unless its time is up while it waits.
///
/// A loop over sleeps whose time is up, such as those of a late interval, lets the other tasks of
/// its thread run. Of the sleeps that are over at their first poll, every 64th on a thread wakes
/// its task, and completes with the next poll.
///
/// [`Timer::sleep`]: crate::Timer::sleep
#[must_use = "a future does nothing unless it is polled"]
pub struct Sleep {
    home: Arc<CachePadded<Home>>,
    deadline: Nanos,
    stage: Stage,
}

enum Stage {
    /// Not added. The deadline counts from this time: the first poll need not read the clock.
    Delayed(Nanos),
    /// Not added, with a deadline that may have passed.
    Until,
    /// Added: the key of the waker in the shard. A turn may have taken the waker out since.
    Added(Key),
}

crate::sync::thread_local! {
    /// How many sleeps have ended on this thread without a wait, since one let others run. Those
    /// that wait do not set it back: a `select!` of a late interval and a fresh sleep adds one each
    /// time, and never ends its turn.
    static READY: Cell<u32> = const { Cell::new(0) };
}

/// After this many, a task lets others run.
const MAX_READY: u32 = 64;

/// A shard of wakers. Counted, because a sleep may add after the end of its timer, at its first
/// poll.
struct Home {
    context: Arc<TimerContext>,
    shard: Shard<Waker>,
}

impl Home {
    fn wake(&self, waker: Waker) {
        self.context.catch_panic(|| waker.wake());
    }
}

pub(crate) struct Sleeps {
    homes: Box<[Arc<CachePadded<Home>>]>,
    spare: Spare<Waker>,
}

impl Sleeps {
    pub(crate) fn register(engine: &Engine, shards: usize, wheel_size: usize) -> Arc<Self> {
        let context = &engine.context;
        let make = |source| {
            let home = |ordinal| {
                let shard = Shard::new();
                shard.serve(context, source, ordinal, wheel_size);
                Arc::new(CachePadded::new(Home {
                    context: Arc::clone(context),
                    shard,
                }))
            };
            let homes = (0..shards as u32).map(home).collect();
            Arc::new(Sleeps {
                homes,
                spare: Spare::default(),
            })
        };
        engine.sources.register(make).1
    }

    pub(crate) fn sleep(&self, when: When) -> Sleep {
        let home = &self.homes[home() & (self.homes.len() - 1)];
        let due = home.context.time.due(when);
        Sleep {
            home: Arc::clone(home),
            deadline: due.deadline,
            stage: Stage::of(when, due),
        }
    }

    /// Wakes all sleeps, once the shards are closed. Returns their number.
    pub(crate) fn wake_all(&self) -> u64 {
        let mut count = 0;
        for home in &self.homes {
            for (_, waker) in home.shard.drain() {
                home.wake(waker);
                count += 1;
            }
        }
        count
    }
}

impl Source for Sleeps {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        let home = &self.homes[ordinal];
        let flush = |state: &mut ShardState<Waker, ()>, flush, wakers: &mut Vec<Waker>| {
            state.flush(flush, |_, _, waker| wakers.push(waker));
        };
        home.shard
            .flush_and_hand_over(turn.start, &self.spare, flush, |wakers| {
                let count = wakers.len();
                let later = |waker| -> Box<dyn FnOnce()> {
                    let home = Arc::clone(home);
                    Box::new(move || home.wake(waker))
                };
                if !turn.defer(wakers, later) {
                    wakers.drain(..).for_each(|waker| home.wake(waker));
                }
                count
            })
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.homes
            .get(ordinal)
            .map(|home| &home.shard as &dyn AnyShard)
    }

    fn assert_invariants(&self) {
        let shards = self.homes.iter().map(|home| &home.shard);
        shards.for_each(|shard| shard.lock().assert_invariants(|_| true));
    }
}

impl Sleep {
    /// Returns the deadline, but not before the moment at which the [`Timer`](crate::Timer) was
    /// built; `None` if it never comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.home.context.time.instant_or_never(self.deadline)
    }

    /// Returns whether the deadline has passed.
    pub fn is_elapsed(&self) -> bool {
        self.deadline <= self.home.context.time.now()
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.home.context.time.clock.now()
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn timer_name(&self) -> &str {
        &self.home.context.name
    }

    /// Moves the deadline, even if the old one has passed. Costs as much as
    /// [`Timeout::reschedule`](crate::Timeout::reschedule).
    pub fn reset(&mut self, when: impl Into<When>) {
        let when = when.into();
        let due = self.home.context.time.due(when);
        self.deadline = due.deadline;
        let Stage::Added(key) = self.stage else {
            self.stage = Stage::of(when, due);
            return;
        };
        let mut state = self.home.shard.lock();
        if state.get(key).is_some() && !state.is_closed() {
            state.move_to(key.index, due);
            Shard::unlock(state);
        }
    }

    /// Polls the sleep. `limit` says whether a full timer refuses it.
    pub(crate) fn poll_by(
        &mut self,
        context: &Context<'_>,
        limit: Limit,
    ) -> Poll<Result<(), SleepError>> {
        let TimerContext {
            time, delay_queue, ..
        } = &*self.home.context;
        let deadline = self.deadline;
        let now = match self.stage {
            // The clock was read when the sleep was made, mostly a moment ago. Reading it again
            // would cost a fifth of what a sleep costs that does not end. Two times are known to
            // have come: the start, and the tick in which somebody last looked for a turn. That
            // tick may be an old one, but is never ahead of the clock, so no sleep is early. A
            // sleep of 5 ms is made at 70 ms, and polled first at 90 ms:
            // - If a turn was looked for in tick 80, 75 ms have passed: the sleep ends.
            // - If the last one was in tick 60, the sleep is added for 75 ms. That is earlier than
            //   whatever the reaper sleeps until, so it wakes up and finds the sleep due.
            Stage::Delayed(start) => start.max(time.tick.start_of(delay_queue.reached())),
            Stage::Until | Stage::Added(_) => time.now(),
        };
        if deadline <= now {
            return self.ends(context, limit);
        }
        if self.wakes(context.waker()) {
            return Poll::Pending;
        }
        // A turn may have taken the entry out since the clock was read above. The time is up then,
        // and a timer that was filled meanwhile must not refuse a sleep that has waited in it.
        if matches!(self.stage, Stage::Added(_)) && deadline <= time.now() {
            return self.ends(context, limit);
        }
        // Before the lock is taken: see `wakes`.
        let waker = context.waker().clone();
        let due = Due {
            deadline,
            tick: time.tick.ceil(deadline),
            present: Some(now),
        };
        // Declared after the waker, so released before it: a refused waker is dropped without the
        // lock.
        let mut state = self.home.shard.lock();
        match state.admit(limit) {
            Ok(()) => {
                self.stage = Stage::Added(state.add(due, waker));
                Shard::unlock(state);
                Poll::Pending
            }
            Err(refusal) => Poll::Ready(Err(SleepError::of(refusal))),
        }
    }

    /// Ends the sleep, whose time is up; with an error if it was never added, and could not be now.
    fn ends(&mut self, context: &Context<'_>, limit: Limit) -> Poll<Result<(), SleepError>> {
        if let Stage::Added(_) = self.stage {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        // Nothing is added, but a full or closed timer refuses the sleep all the same. Otherwise
        // chance would decide: of two sleeps of 5 ms, one polled first after 4.9 ms would fail, one
        // after 5.1 ms would not. And an interval that catches up, an hour late, would yield an
        // hour's ticks on a timer that was shut down before it tells of the end.
        let state = self.home.shard.lock();
        if let Err(refusal) = state.admit(limit) {
            return Poll::Ready(Err(SleepError::of(refusal)));
        }
        state.return_permits(1);
        drop(state);
        // A task that loops over such sleeps never waits, and would keep all other tasks from its
        // thread, among them perhaps the one that advances the timer. So the 64th returns
        // `Pending`, once: the count goes on at 0, so the next poll of the same sleep is the first
        // of the next 64. A count that stayed at 64 would let each poll return `Pending`.
        let before = READY.with(|ready| ready.replace((ready.get() + 1) % MAX_READY));
        if before + 1 == MAX_READY {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns whether the sleep is pending and wakes this waker, from now on if not before: it
    /// keeps its place, even in a full timer.
    fn wakes(&self, waker: &Waker) -> bool {
        let Stage::Added(key) = self.stage else {
            return false;
        };
        match self.home.shard.lock().get(key) {
            Some(former) if !former.will_wake(waker) => {}
            // The entry is gone: a turn took it out, or the timer has ended. The caller ends the
            // sleep or adds it anew.
            former => return former.is_some(),
        }
        // The lock is released in between, because the clone and the drop of a waker are user code.
        // A waker may own a task that waits for another sleep of this shard:
        // 1. T1 replaces the former waker under the lock, and drops it there.
        // 2. It was the last owner of its task. The task is dropped, and with it the other sleep.
        // 3. That sleep cancels its entry: T1 waits for the lock that it holds itself.
        let mut waker = waker.clone();
        let mut state = self.home.shard.lock();
        // A turn of T2 may have taken the entry out since T1 has looked. T2 wakes the former waker,
        // whose task may not poll this sleep any more. If T1 returned true, nobody would wake the
        // present task.
        let Some(former) = state.get_mut(key) else {
            return false;
        };
        mem::swap(former, &mut waker);
        // The state is released first, then the former waker is dropped.
        true
    }

    pub(crate) fn cancel(&mut self) {
        if let Stage::Added(key) = mem::replace(&mut self.stage, Stage::Until) {
            let waker = self.home.shard.lock().cancel(key);
            drop(waker); // Without the lock.
        }
    }
}

impl Stage {
    fn of(when: When, due: Due) -> Self {
        match (when, due.present) {
            (When::After(_), Some(now)) => Stage::Delayed(now),
            _ => Stage::Until,
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
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline())
            .field("waiting", &matches!(self.stage, Stage::Added(_)))
            .finish()
    }
}
