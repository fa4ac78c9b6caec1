//! The timer: the face of it all.

// In reading order, downwards: what makes it, its handles, the flow of a timer.
pub(crate) mod builder;
pub(crate) mod timeout;
pub(crate) mod base;
pub(crate) mod driver;
pub(crate) mod owner;
pub(crate) mod shards;
pub(crate) mod pool;
pub(crate) mod shard;
pub(crate) mod context;
pub(crate) mod delay_queue;
pub(crate) mod dispatcher;
pub(crate) mod executor;
pub(crate) mod reaper;
pub(crate) mod alarm;
pub(crate) mod entry;
pub(crate) mod clock;
pub(crate) mod limit;
pub(crate) mod stats;
pub(crate) mod error;
pub(crate) mod report;

use crate::timer::base::Base;
use crate::timer::context::TimerContext;
use crate::timer::driver::Driver;
use crate::timer::entry::{IntoTask, Task, TimerEntry, When};
use crate::timer::error::AddError;
use crate::timer::report::catch_panic;
use crate::timer::shard::{Added, Refusal, Shard};
use crate::timer::shards::Shards;
use crate::timer::stats::Stats;
use crate::timer::timeout::Timeout;
use crate::wheel::snapshot::Snapshot;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A timer for very many timeouts, from any number of threads: see the [crate's page](crate).
///
/// It is driven either by its own reaper thread
/// ([`TimerBuilder::start`](crate::TimerBuilder::start)) or by whoever calls
/// [`advance_clock`](Self::advance_clock) ([`TimerBuilder::build`](crate::TimerBuilder::build)).
///
/// # The last clone
/// Cloning shares it. When the last clone is dropped, the reaper stops, and pending tasks are
/// dropped, which is reported at the level `warn` with their number;
/// [`shutdown`](Self::shutdown) returns them instead. So keep a clone for as long as timeouts
/// matter. These have one themselves, and keep the timer alive:
/// [`KeyedTimer`](crate::keyed::KeyedTimer), [`Purgatory`](crate::purgatory::Purgatory),
/// [`Leases`](crate::lease::Leases), and the futures [`sleep`](Self::sleep),
/// [`timeout`](Self::timeout) and [`interval`](Self::interval). Handles do not: [`Timeout`],
/// [`Series`](crate::periodic::Series), [`Lease`](crate::lease::Lease),
/// [`Pending`](crate::purgatory::Pending), [`Wait`](crate::purgatory::Wait), [`WeakTimer`].
///
/// Nothing here panics, whatever it is given, and no method but `advance_clock` and `shutdown`
/// waits for anything but a lock that is held for a bounded time. To drop the last clone also waits
/// until the reaper has handed over what it is at: do not drop it under a lock that a task takes.
pub struct Timer<T: Send + 'static = Task> {
    base: Arc<Base>,
    shards: Arc<Shards<T>>,
}

impl<T: Send + 'static> Timer<T> {
    pub(crate) fn new(base: Arc<Base>, shards: Arc<Shards<T>>) -> Self {
        Timer { base, shards }
    }

    /// Adds a timer, from any thread. Its task is handed to the executor by the next
    /// `advance_clock` after its deadline, never earlier: with a reaper, less than a tick and
    /// the time that waking takes later. Dropping the returned handle changes nothing.
    ///
    /// Costs constant time, and an allocation once in about a thousand times; a wake-up of the
    /// reaper if this is the earliest timer. No task runs inside.
    ///
    /// # Errors
    /// [`AddError::Full`] at `max_pending`, [`AddError::Shutdown`] after `shutdown`; the entry
    /// comes back in both.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Timer, TimerEntry};
    ///
    /// let timer = Timer::builder().start()?;
    /// let timeout = timer.add(TimerEntry::after(Duration::from_secs(30), || println!("late")))?;
    /// // The answer has come:
    /// assert!(timeout.cancel().is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn add(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        self.add_by(entry, Shard::add)
    }

    /// Adds a timer that expires `delay` from now: [`add`](Self::add) of a
    /// [`TimerEntry::after`].
    ///
    /// A zero delay expires at the next `advance_clock`; [`Duration::MAX`] never expires.
    ///
    /// # Errors
    /// [`AddError`], as for [`add`](Self::add); [`AddError::into_task`] returns the task.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    ///
    /// let timer = Timer::builder().start()?;
    /// let timeout = timer.after(Duration::from_secs(30), || println!("no answer"))?;
    /// assert!(timeout.cancel().is_cancelled());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A task is a closure that returns nothing. The compiler rejects one that returns a value,
    /// because nobody would look at the value:
    ///
    /// ```compile_fail,E0271
    /// # use std::{sync::mpsc, time::Duration};
    /// # let timer = tickwheel::Timer::builder().start().unwrap();
    /// # let (sender, receiver) = mpsc::channel();
    /// timer.after(Duration::from_secs(1), move || sender.send(1));
    /// ```
    ///
    /// Decide what becomes of the value, inside braces and with a semicolon:
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
    /// A future is no task either; nobody would poll it:
    ///
    /// ```compile_fail,E0277
    /// # use std::time::Duration;
    /// # let timer = tickwheel::Timer::builder().start().unwrap();
    /// timer.after(Duration::from_secs(1), async { println!("never") });
    /// ```
    ///
    /// In async code write `timer.sleep(delay).await`; from a closure, spawn the future on your
    /// runtime.
    #[inline]
    pub fn after(
        &self,
        delay: Duration,
        task: impl IntoTask<T>,
    ) -> Result<Timeout<T>, AddError<T>> {
        self.add(TimerEntry::after(delay, task))
    }

    /// Adds a timer that expires at `deadline`, a time of the timer's clock: [`add`](Self::add) of
    /// a [`TimerEntry::at`].
    ///
    /// A deadline that has passed expires at the next `advance_clock`.
    ///
    /// # Errors
    /// [`AddError`], as for [`add`](Self::add); [`AddError::into_task`] returns the task.
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
        self.add(TimerEntry::at(deadline, task))
    }

    /// `add` for somebody who cannot be refused: above `max_pending`, if need be. Fails after
    /// `shutdown` only.
    pub(crate) fn add_beyond_limit(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        self.add_by(entry, Shard::add_beyond_limit)
    }

    #[inline]
    fn add_by(
        &self,
        entry: TimerEntry<T>,
        add: impl FnOnce(&'static Shard<T>, &TimerContext, When, T) -> Added<T>,
    ) -> Result<Timeout<T>, AddError<T>> {
        let (when, task) = (entry.when(), entry.into_task());
        let shard = self.shards.home();
        match add(shard, &self.shards.context, when, task) {
            Ok((key, crowded)) => {
                let timeout = Timeout::new(shard, key);
                if crowded {
                    self.shards.leave_crowd();
                }
                Ok(timeout)
            }
            Err((refusal, task)) => Err(Self::refused(refusal, when, task)),
        }
    }

    #[cold]
    fn refused(refusal: Refusal, when: When, task: T) -> AddError<T> {
        let entry = TimerEntry::new(when, task);
        match refusal {
            Refusal::Full => AddError::Full(entry),
            Refusal::Closed => AddError::Shutdown(entry),
        }
    }

    /// Expires everything that is due, and returns how many tasks that were. If nothing is due it
    /// waits until something is, at most for `timeout`; on a [`ManualClock`](crate::ManualClock) it
    /// does not wait.
    ///
    /// Tasks are handed to the executor on this thread, ordered by the tick of their deadline; but
    /// first those whose deadline had passed when they were added, in no promised order. Where
    /// another thread holds a shard, its timers come after those of the others. What falls due
    /// while this runs is left to the next call, unless timers have to be moved to a finer wheel
    /// meanwhile: it may go along then.
    ///
    /// Any number of threads may call it at once, and a timer with a reaper may be advanced by hand
    /// as well. So may a task: what is due then expires inside of it. From the eighth call inside
    /// each other on it returns 0 at once, and leaves that to the calls outside, so that no number
    /// of timers needs a deep stack. Returns early when the timer is shut down.
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
        self.base.driver.advance(timeout)
    }

    /// When to call `advance_clock` next, if nothing is added before; the present if something is
    /// due. `None` if nothing is pending.
    ///
    /// Never later than the first deadline's tick. It is earlier when far timers have to be moved
    /// to a finer wheel first, or were extended. Takes constant time, and as much once for each
    /// timer that was cancelled and would have been first; never under a lock for more than 128 of
    /// them.
    #[must_use]
    pub fn next_expiration(&self) -> Option<Instant> {
        self.base.driver.next_expiration()
    }

    /// The time of the timer's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shards.context.time.clock.now()
    }

    /// How many timers are pending. Exact when nobody adds, cancels or advances meanwhile.
    #[must_use]
    pub fn len(&self) -> usize {
        self.base.driver.len()
    }

    /// Whether no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the timer has done so far. Looks at each shard once: cheap enough for every second.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.base.driver.stats()
    }

    /// How the timer stands, level by level. Looks at every bucket, not at every timer.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.base.driver.snapshot(self.shards.count())
    }

    /// Stops the reaper, refuses what is added from now on, and returns what had not expired,
    /// ordered by deadline, in entries that another timer would accept. A deadline from before this
    /// timer was built comes back as the moment at which it was built.
    ///
    /// Every timer that was added either was cancelled, or has been handed to the executor, or is
    /// in this list. What stands on the timer lets nothing in either, and expires no more: the keys
    /// of a [`KeyedTimer`](crate::keyed::KeyedTimer) and the operations of a
    /// [`Purgatory`](crate::purgatory::Purgatory) stay with them, and if this timer's tasks are
    /// not closures, so do those of [`closures`](Self::closures). Waits until the reaper has handed
    /// over what it is at, unless it is called by a task on the reaper itself. A thread that is
    /// inside [`advance_clock`](Self::advance_clock) at that moment is not waited for: it hands
    /// over what it has taken out, up to 128 tasks, also after this has returned. (Two tasks that
    /// shut the timer down on two such threads would wait for each other.) May be called again, and
    /// from several threads: then each pending timer is in one of the lists. The executor keeps the
    /// tasks that it has.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{AddError, Timer, TimerEntry};
    ///
    /// let timer = Timer::builder().start()?;
    /// timer.add(TimerEntry::after(Duration::from_secs(30), || ()))?;
    /// let pending = timer.shutdown();
    /// assert_eq!(pending.len(), 1);
    /// let late = timer.add(TimerEntry::after(Duration::from_secs(30), || ()));
    /// assert!(matches!(late, Err(AddError::Shutdown(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self) -> Vec<TimerEntry<T>> {
        self.base.stop();
        let mut pending = Vec::new();
        self.shards.drain(|deadline, task| pending.push((deadline, task)));
        pending.sort_by_key(|(deadline, _)| *deadline);
        let time = &self.shards.context.time;
        let entry = |(deadline, task)| TimerEntry::new(time.instant_of(deadline), task);
        pending.into_iter().map(entry).collect()
    }

    /// Calls the code of a user of what stands on the timer; counts its panic as a task's.
    pub(crate) fn catch_panic(&self, code: impl FnOnce()) {
        if catch_panic(code).is_none() {
            self.shards.context.count_panic();
        }
    }

    /// Returns the timer of closures and wakers that shares this one's clock, delay queue and
    /// reaper: this one itself, if its tasks are such; otherwise one whose tasks run in place, on
    /// the thread that advances the two.
    ///
    /// What stands on a timer uses it, so a service needs one reaper, whatever its own tasks are.
    /// Either timer keeps both alive, and `shutdown` of one ends both; it returns its own tasks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Timer, TimerEntry};
    ///
    /// let requests: Timer<u64> = Timer::builder().executor(|id| println!("{id}")).build()?;
    /// requests.add(TimerEntry::after(Duration::from_millis(1), 7_u64))?;
    /// let closures = requests.closures();
    /// closures.add(TimerEntry::after(Duration::from_millis(1), || println!("a closure")))?;
    /// assert_eq!(requests.advance_clock(Duration::from_secs(5)), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn closures(&self) -> Timer {
        let own = &self.shards as &dyn Any;
        let own = own.downcast_ref::<Arc<Shards<Task>>>().map(Arc::clone);
        Timer::new(Arc::clone(&self.base), own.unwrap_or_else(|| self.base.closures()))
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.base.driver
    }

    pub(crate) fn shards(&self) -> Arc<Shards<T>> {
        Arc::clone(&self.shards)
    }

    /// A reference to the timer that does not keep it alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakTimer<T> {
        WeakTimer { base: Arc::downgrade(&self.base), shards: Arc::downgrade(&self.shards) }
    }

    /// Checks every structure inside and panics if one is broken: for tests, while no other thread
    /// uses the timer. Takes time proportional to what is pending.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.base.driver.assert_invariants();
    }
}

/// A [`Timer`] that it does not keep alive: for a task that adds itself again, and would otherwise
/// hold its own timer for ever. [`Timer::downgrade`] makes it.
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
pub struct WeakTimer<T: Send + 'static = Task> {
    base: Weak<Base>,
    shards: Weak<Shards<T>>,
}

impl<T: Send + 'static> WeakTimer<T> {
    /// The timer, unless its last clone was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Timer<T>> {
        let base = self.base.upgrade()?;
        Some(Timer { base, shards: self.shards.upgrade()? })
    }

    /// [`Timer::catch_panic`]; but if the timer has gone, there is nothing to count in.
    pub(crate) fn catch_panic(&self, code: impl FnOnce()) {
        if catch_panic(code).is_none() {
            self.upgrade().iter().for_each(|timer| timer.shards.context.count_panic());
        }
    }
}

impl<T: Send + 'static> Clone for Timer<T> {
    fn clone(&self) -> Self {
        Timer { base: Arc::clone(&self.base), shards: Arc::clone(&self.shards) }
    }
}

impl<T: Send + 'static> Clone for WeakTimer<T> {
    fn clone(&self) -> Self {
        WeakTimer { base: Weak::clone(&self.base), shards: Weak::clone(&self.shards) }
    }
}

impl<T: Send + 'static> fmt::Debug for WeakTimer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTimer").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> fmt::Debug for Timer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("pending", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Nobody outside can hold a shard; so it is tried here.
    #[test]
    fn what_falls_due_during_a_turn_need_not_wait_for_a_busy_shard() {
        let (sender, expired) = mpsc::channel();
        let timer = Timer::builder().shards(1024);
        let timer = timer.executor(move |task: u32| sender.send(task).expect("it waits"));
        let timer = timer.build().expect("the settings are right");
        let add = |delay, task| assert!(timer.add(TimerEntry::after(delay, task)).is_ok());
        let next = || expired.recv_timeout(Duration::from_secs(10));
        thread::scope(|scope| {
            add(Duration::ZERO, 1);
            let held = timer.shards.home().lock();
            scope.spawn(|| timer.advance_clock(Duration::ZERO));
            thread::sleep(Duration::from_millis(30)); // Until the turn has begun.
            // A thread of another number, which has other shards.
            scope.spawn(|| (add(Duration::ZERO, 2), add(Duration::from_millis(1), 3)));
            let others = [next(), next()];
            drop(held);
            assert_eq!((others, next()), ([Ok(2), Ok(3)], Ok(1)));
        });
    }
}
