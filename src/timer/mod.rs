//! The timer that users call.

use crate::engine::clock::{Clock, When};
use crate::engine::reaper::{Engine, Reaper};
use crate::engine::report;
use crate::engine::shard::{AnyShard, Limit};
use crate::engine::stats::{Snapshot, Stats};
use crate::timer::entry::{IntoTask, Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::sleep::Sleeps;
use crate::timer::tasks::Tasks;
use crate::timer::timeout::Timeout;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

// In reading order: what makes it, its handles, the flow of a timer.
pub(crate) mod builder;
pub(crate) mod timeout;
pub(crate) mod tasks;
pub(crate) mod registered;
pub(crate) mod sleep;
pub(crate) mod executor;
pub(crate) mod entry;
pub(crate) mod error;

/// A timer for very many timeouts from any number of threads; see the [crate's page](crate).
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Timer;
///
/// let timer = Timer::builder().start()?;
/// let request = timer.after(Duration::from_secs(30), || println!("no answer"))?;
/// assert!(request.cancel().is_cancelled()); // It was answered.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A reaper thread drives the timer ([`TimerBuilder::start`](crate::TimerBuilder::start)), or you
/// call [`advance_clock`](Self::advance_clock) after
/// [`TimerBuilder::build`](crate::TimerBuilder::build).
///
/// # The last clone
/// Clones share the same timer. Keep a clone for as long as the timeouts matter. Dropping the last
/// clone stops the reaper, and drops the executor, `on_refused` and the pending tasks; a warning
/// reports their number. [`shutdown`](Self::shutdown) returns the tasks instead, and
/// [`warn_on_drop(false)`](crate::TimerBuilder::warn_on_drop) silences the warning.
///
/// These own a clone: [`KeyedTimer`](crate::keyed::KeyedTimer),
/// [`Purgatory`](crate::purgatory::Purgatory), and a pending closure or series that owns one of
/// these or the timer. Handles and futures do not: [`Timeout`],
/// [`Series`](crate::periodic::Series), [`Pending`](crate::purgatory::Pending),
/// [`Wait`](crate::purgatory::Wait), [`WeakTimer`], [`Sleep`](crate::future::Sleep). A future that
/// waits when its timer goes ends with an error.
///
/// # Panics and blocking
/// No method panics, whatever its arguments, with two exceptions:
/// - In debug builds, `advance_clock` panics on a thread that holds an
///   [`Entry`](crate::keyed::Entry). In release builds that call may wait for its own thread
///   forever.
/// - A panic of [your own clock](crate::Clock::reading) passes to the caller.
///
/// A method waits at most for a lock that is held for a bounded time, with these exceptions:
/// - `advance_clock` waits for its `timeout`, and `shutdown` for the reaper.
/// - `len`, `stats` and the like look at all shards, and wait for an [`Entry`](crate::keyed::Entry)
///   that another thread holds.
/// - Dropping the last clone blocks until the reaper has handed over its current batch, except on a
///   reaper's thread. Never drop it while holding a lock that a task needs.
pub struct Timer<T: 'static = Task> {
    pub(crate) base: Arc<Base>,
    tasks: Arc<Tasks<T>>,
}

/// What the clones share, whatever the type of their tasks; the drop of the last one ends the
/// timer. The reaper refers only to the engine, so it does not keep the timer alive.
pub(crate) struct Base {
    pub(crate) engine: Arc<Engine>,
    pub(crate) reaper: Option<Reaper>,
    pub(crate) warn_on_drop: bool,
    /// The timer's own tasks if they are closures; otherwise closures that run in place.
    pub(crate) closures: Arc<Tasks<Task>>,
    pub(crate) sleeps: Arc<Sleeps>,
}

impl Base {
    /// Ends the reaper and all waits; nothing can be added any more.
    fn stop(&self) {
        self.engine.context.stop();
        if let Some(reaper) = &self.reaper {
            reaper.join();
        }
        self.engine.close();
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.stop();
        let mut dropped = self.sleeps.wake_all();
        // Handles and futures may outlive the timer, but not keep its tasks and executor.
        for source in self.engine.sources.all().values() {
            dropped += source.shards().map(AnyShard::drop_pending).sum::<u64>();
        }
        self.engine.sources.forget();
        if dropped > 0 && self.warn_on_drop {
            report::event!(
                warn,
                timer = &*self.engine.context.name,
                tasks = dropped,
                "pending tasks were dropped with their timer; `warn_on_drop(false)` silences this"
            );
        }
    }
}

impl<T: 'static> Timer<T> {
    /// Adds a timer, from any thread. It expires never early and [in time](crate#guarantees).
    /// Dropping the returned handle changes nothing.
    ///
    /// Takes constant time and never runs a task. Wakes the reaper if this is the earliest timer.
    ///
    /// Allocates about once in a thousand calls, or up to twenty times that often where most timers
    /// have a tick to themselves. What becomes empty is given back, so bursts allocate again: up to
    /// twenty times for the first thousand timers if the shard was empty, else about once.
    ///
    /// # Errors
    /// [`AddError::Full`] at [`max_pending`](crate::TimerBuilder::max_pending), and
    /// [`AddError::Shutdown`] after [`shutdown`](Self::shutdown). Both contain the entry.
    #[inline]
    pub fn add(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        self.tasks.add(entry.when(), entry.into_task(), Limit::Keep)
    }

    /// Adds a timer that expires `delay` from now: [`add`](Self::add) of a [`TimerEntry::after`].
    ///
    /// A zero delay expires at the next `advance_clock`; [`Duration::MAX`] never expires. A closure
    /// costs an allocation. [`Task::shared`] and a task type of your own cost none.
    ///
    /// # Errors
    /// As for [`add`](Self::add). [`AddError::into_task`] returns the task.
    ///
    /// # Tasks
    /// A task is a closure that returns nothing. The compiler rejects one that returns a value:
    ///
    /// ```compile_fail,E0271
    /// # use std::{sync::mpsc, time::Duration};
    /// # let timer = tickwheel::Timer::builder().start().unwrap();
    /// # let (sender, receiver) = mpsc::channel();
    /// timer.after(Duration::from_secs(1), move || sender.send(1));
    /// ```
    ///
    /// Handle the value inside braces, and end with a semicolon:
    ///
    /// ```
    /// # use std::{sync::mpsc, time::Duration};
    /// # let timer = tickwheel::Timer::builder().start()?;
    /// # let (sender, receiver) = mpsc::channel();
    /// timer.after(Duration::from_millis(1), move || {
    ///     let _ = sender.send(1); // Fails if the receiver is gone, and then nobody is waiting.
    /// })?;
    /// # assert_eq!(receiver.recv(), Ok(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The compiler also rejects a future, because the timer does not poll futures:
    ///
    /// ```compile_fail,E0277
    /// # use std::time::Duration;
    /// # let timer = tickwheel::Timer::builder().start().unwrap();
    /// timer.after(Duration::from_secs(1), async { println!("never") });
    /// ```
    ///
    /// In async code write `timer.sleep(delay).await`. In a closure, spawn the future on your
    /// runtime.
    #[inline]
    pub fn after(
        &self,
        delay: Duration,
        task: impl IntoTask<T>,
    ) -> Result<Timeout<T>, AddError<T>> {
        self.tasks
            .add(When::After(delay), task.into_task(), Limit::Keep)
    }

    /// Adds a timer that expires at `deadline`, a time of the timer's clock: [`add`](Self::add) of
    /// a [`TimerEntry::at`]. A deadline that has passed expires at the next `advance_clock`.
    ///
    /// # Errors
    /// As for [`after`](Self::after).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    ///
    /// let timer: Timer<u64> = Timer::builder().executor(|id| println!("request {id}")).build()?;
    /// let deadline = timer.now() + Duration::from_secs(30);
    /// let timeout = timer.at(deadline, 7_u64)?;
    /// assert_eq!(timeout.deadline(), Some(deadline));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn at(&self, deadline: Instant, task: impl IntoTask<T>) -> Result<Timeout<T>, AddError<T>> {
        self.tasks
            .add(When::At(deadline), task.into_task(), Limit::Keep)
    }

    /// Expires all due timers, and returns the number of expired tasks. If no timer is due, waits
    /// for the first one, but at most for `timeout`. Never waits on a
    /// [`ManualClock`](crate::ManualClock). Returns early when the timer is shut down.
    ///
    /// The number counts what was taken out: tasks, expired keys, futures that were woken, and the
    /// tasks of a purgatory. An operation may still complete or be cancelled before its task runs.
    ///
    /// # Order
    /// Hands tasks to the executor on this thread, ordered by the tick of their deadline.
    /// Exceptions:
    /// - A task whose deadline had passed when it was added, or moved to a finer wheel, comes
    ///   between that tick and the tick in which this happened.
    /// - A task that was moved to the next tick comes among those of its former tick, if the call
    ///   comes after the new deadline and before the next tick begins.
    /// - On a real clock, the timers of a shard that another thread is using come last.
    ///
    /// # End
    /// If no timer is due and `timeout` is [`Duration::MAX`], the call waits without a limit. If
    /// another thread holds an [`Entry`](crate::keyed::Entry), the call waits for the due timers of
    /// the entry's shard, whatever the `timeout`.
    ///
    /// The call ends, whatever its tasks add. Timers that become due during the call are left to
    /// the next one, unless a busy shard is waited for. A timer that is added for now is left to
    /// the next call too, with two exceptions: the task that added it belongs to a tick that was
    /// over when the call began, or the call has yet to flush the timer's shard.
    ///
    /// # Concurrent and nested calls
    /// Any number of threads may call this at once, also on a timer with a reaper. In a task, the
    /// due timers expire inside that task. Calls nest at most seven deep, counting all timers on a
    /// thread. A deeper call returns 0 at once, and leaves what is due to an outer or the next
    /// call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Timer, TimerEntry};
    ///
    /// let timer: Timer<u64> = Timer::builder().executor(|id| println!("{id}")).build()?;
    /// timer.add(TimerEntry::after(Duration::from_millis(5), 1_u64))?;
    /// assert_eq!(timer.advance_clock(Duration::from_secs(5)), 1); // After 5 ms.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advance_clock(&self, timeout: Duration) -> usize {
        self.advance_clock_up_to(timeout, usize::MAX)
    }

    /// Expires due timers, as [`advance_clock`](Self::advance_clock) does, until at least `limit`
    /// tasks have expired: for a loop that has other work. At most 127 tasks more expire. The other
    /// timers stay due. A `limit` of 0 counts as 1. A clock's seed orders only the tasks that one
    /// call takes out of a tick.
    pub fn advance_clock_up_to(&self, timeout: Duration, limit: usize) -> usize {
        // On a manual clock no time passes.
        let timeout = if self.clock().is_manual() {
            Duration::ZERO
        } else {
            timeout
        };
        self.base.engine.advance_clock(timeout, limit.max(1))
    }

    /// Returns when to call `advance_clock` next if no timer is added before: the present if a
    /// timer is due, `None` after a shutdown, or if no pending timer ever expires.
    ///
    /// Never later than the tick of the first deadline. Earlier if far timers must be moved to a
    /// finer wheel first, or were extended. Takes constant time, plus as much once for each
    /// cancelled timer that would have been first. Holds a lock for at most 128 of those.
    #[must_use]
    pub fn next_expiration(&self) -> Option<Instant> {
        self.base.engine.next_expiration()
    }

    /// Returns the present time of the timer's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock().now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.base.engine.context.time.clock
    }

    /// Returns the name set by [`TimerBuilder::name`](crate::TimerBuilder::name).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.base.engine.context.name
    }

    /// Returns the number of pending timers: exact unless a thread adds, cancels or advances
    /// meanwhile. Keys, operations, series and waiting futures on this timer count too. Locks each
    /// shard once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.base.engine.len()
    }

    /// Returns whether no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the timer has done so far. Visits each shard once, which is cheap enough for
    /// every second.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.base.engine.stats()
    }

    /// Returns the state of the timer's wheels, level by level, with those of everything built on
    /// the timer. Visits every armed bucket, but no timer. Holds a shard's lock while it visits the
    /// armed buckets of that shard.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.base.engine.snapshot(self.tasks.shards.set.len())
    }

    /// Stops the reaper, refuses new timers, and returns the pending ones, ordered by deadline, as
    /// entries that another timer accepts. The executor keeps the tasks that it already has. A
    /// deadline before this timer was built is returned as the moment at which it was built.
    ///
    /// From now on, everything built on this timer refuses new work and expires nothing:
    /// - Waiting futures are woken, and end with an error.
    /// - A [series](crate::periodic) ends when its task in the list is dropped or run.
    /// - The keys of a [`KeyedTimer`](crate::keyed::KeyedTimer) and the operations of a
    ///   [`Purgatory`](crate::purgatory::Purgatory) stay until you take them back. Operations can
    ///   still be completed.
    /// - If this timer has its own type of task, the pending [`closures`](Self::closures) are
    ///   dropped, which ends their series. Call `closures().shutdown()` before to get them back.
    ///
    /// May be called repeatedly and from several threads: each pending timer is in one of the
    /// lists.
    ///
    /// Blocks until the reaper has handed over its current batch, but not on the thread of any
    /// reaper: two tasks that shut each other's timer down would deadlock. Does not wait for
    /// another thread inside [`advance_clock`](Self::advance_clock). That call may hand over up to
    /// 128 tasks after this returns, or on a seeded clock all that it has taken out of its tick.
    pub fn shutdown(&self) -> Vec<TimerEntry<T>> {
        self.base.stop();
        let pending = self.tasks.drain();
        self.base.sleeps.wake_all();
        // Ends the series among the closures of a timer with its own type of task.
        let dropped = self.base.closures.drop_pending();
        if dropped > 0 {
            report::event!(
                debug,
                timer = self.name(),
                tasks = dropped,
                "pending closures were dropped by a shutdown"
            );
        }
        pending
    }

    /// Returns whether [`shutdown`](Self::shutdown) was called and has stopped the reaper: false
    /// while `shutdown` waits for the reaper's batch. An `add` that begins after this has returned
    /// true is accepted only while that `shutdown` is still running, which then returns its entry.
    /// Takes no lock: a loop may ask this without a pause.
    #[must_use]
    pub fn is_shutdown(&self) -> bool {
        self.base.engine.sources.is_closed()
    }

    /// Returns a timer of closures and wakers that shares this timer's clock, delay queue and
    /// reaper.
    ///
    /// It is this timer itself if its tasks are closures. Otherwise the closures run in place, on
    /// the thread that advances both. Keyed timers, purgatories and periodic tasks use it, so a
    /// service needs one reaper. Futures do not: the thread that advances the timer wakes them
    /// itself, whatever the executor.
    ///
    /// Either timer keeps both alive. `shutdown` of one ends both, but returns only its own tasks:
    /// `shutdown` of the timer drops the closures. `shutdown` of the closures leaves the timer's
    /// tasks for the timer's own `shutdown`.
    pub fn closures(&self) -> Timer {
        Timer {
            base: Arc::clone(&self.base),
            tasks: Arc::clone(&self.base.closures),
        }
    }

    /// Returns a reference to the timer that does not keep it alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakTimer<T> {
        WeakTimer {
            base: Arc::downgrade(&self.base),
            tasks: Arc::downgrade(&self.tasks),
        }
    }

    /// Checks every internal structure and panics if one is broken: for tests in which no other
    /// thread uses the timer. Takes time proportional to the number of pending timers.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.base.engine.assert_invariants();
    }
}

/// A reference to a [`Timer`] that does not keep it alive, created by [`Timer::downgrade`]: for a
/// task that adds itself again.
///
/// ```
/// use tickwheel::Timer;
///
/// let timer = Timer::builder().start()?;
/// let weak = timer.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(timer); // The reaper stops.
/// assert!(weak.upgrade().is_none());
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
pub struct WeakTimer<T: 'static = Task> {
    base: Weak<Base>,
    tasks: Weak<Tasks<T>>,
}

impl<T: 'static> WeakTimer<T> {
    /// Returns the timer, unless its last clone was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Timer<T>> {
        Some(Timer {
            base: self.base.upgrade()?,
            tasks: self.tasks.upgrade()?,
        })
    }
}

impl<T> Clone for Timer<T> {
    fn clone(&self) -> Self {
        Timer {
            base: Arc::clone(&self.base),
            tasks: Arc::clone(&self.tasks),
        }
    }
}

impl<T> Clone for WeakTimer<T> {
    fn clone(&self) -> Self {
        WeakTimer {
            base: Weak::clone(&self.base),
            tasks: Weak::clone(&self.tasks),
        }
    }
}

impl<T> fmt::Debug for WeakTimer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTimer").finish_non_exhaustive()
    }
}

/// Prints no count: counting takes the lock of every shard, and would wait for ever under an
/// [`Entry`](crate::keyed::Entry) that the same thread holds.
impl<T> fmt::Debug for Timer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
