//! The timer: the face of it all.

use crate::cell::{Cell, Refusal};
use crate::common::Common;
use crate::driver::Driver;
use crate::entry::{Task, TimerEntry, When};
use crate::error::AddError;
use crate::key::Key;
use crate::reaper::Reaper;
use crate::report::contain;
use crate::stats::{Snapshot, Stats};
use crate::timeout::Timeout;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A timer for very many timeouts, from any number of threads: see the [crate's page](crate).
///
/// It is driven either by its own reaper thread
/// ([`TimerBuilder::start`](crate::TimerBuilder::start)) or by whoever calls
/// [`advance_clock`](Self::advance_clock) ([`TimerBuilder::build`](crate::TimerBuilder::build)).
/// Cloning shares it. When the last clone is dropped, the reaper stops, and pending tasks are
/// dropped; [`shutdown`](Self::shutdown) returns them instead.
///
/// Nothing here panics, whatever it is given, and no method but `advance_clock` and `shutdown`
/// waits for anything but a lock that is held for a bounded time. To drop the last clone also waits
/// until the reaper has handed over what it is at: do not drop it under a lock that a task takes.
pub struct Timer<T: Send + 'static = Task> {
    shared: Arc<Shared<T>>,
}

/// Dropped with the last clone. The reaper has a reference to the driver only: so it does not keep
/// the timer alive.
struct Shared<T: Send + 'static> {
    driver: Arc<Driver<T>>,
    reaper: Option<Reaper>,
}

impl<T: Send + 'static> Timer<T> {
    pub(crate) fn new(driver: Arc<Driver<T>>, reaper: Option<Reaper>) -> Self {
        Timer { shared: Arc::new(Shared { driver, reaper }) }
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
        self.add_by(entry, Cell::add)
    }

    /// `add` for somebody who cannot be refused: above `max_pending`, if need be. Fails after
    /// `shutdown` only.
    pub(crate) fn add_beyond_limit(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        self.add_by(entry, Cell::add_beyond_limit)
    }

    #[inline]
    fn add_by(
        &self,
        entry: TimerEntry<T>,
        add: impl FnOnce(&'static Cell<T>, &Common, When, T) -> Result<(Key, bool), (Refusal, T)>,
    ) -> Result<Timeout<T>, AddError<T>> {
        let (when, task) = (entry.when(), entry.into_task());
        let driver = &*self.shared.driver;
        let cell = driver.home();
        match add(cell, &driver.common, when, task) {
            Ok((key, crowded)) => {
                let timeout = Timeout::new(cell, key);
                if crowded {
                    driver.leave_crowd();
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
    /// Tasks are handed to the executor on this thread, ordered by the tick of their deadline. What
    /// falls due while it runs is left to the next call. Any number of threads may call it at once,
    /// tasks too, and a timer with a reaper may be advanced by hand as well. Returns early when the
    /// timer is shut down.
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
        self.shared.driver.advance(timeout)
    }

    /// When to call `advance_clock` next, if nothing is added before; the present if something is
    /// due. `None` if nothing is pending.
    ///
    /// Never later than the first deadline's tick. It is earlier when far timers have to be moved
    /// to a finer wheel first, or were extended. Takes constant time.
    pub fn next_expiration(&self) -> Option<Instant> {
        self.shared.driver.next_expiration()
    }

    /// The time of the timer's clock.
    pub fn now(&self) -> Instant {
        self.shared.driver.common.time.clock.now()
    }

    /// How many timers are pending. Exact when nobody adds, cancels or advances meanwhile.
    pub fn len(&self) -> usize {
        self.shared.driver.len()
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the timer has done so far. Looks at each shard once: cheap enough for every second.
    pub fn stats(&self) -> Stats {
        self.shared.driver.stats()
    }

    /// How the timer stands, level by level. Looks at every bucket, not at every timer.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.driver.snapshot()
    }

    /// Stops the reaper, refuses what is added from now on, and returns what had not expired,
    /// ordered by deadline, in entries that another timer would accept.
    ///
    /// Every timer that was added either was cancelled, or has been handed to the executor, or is
    /// in this list. Waits until the reaper has handed over what it is at, unless it is called
    /// by a task on the reaper itself. May be called again, and from several threads: then each
    /// pending timer is in one of the lists. The executor keeps the tasks that it has.
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
        self.shared.stop();
        let mut pending = Vec::new();
        self.shared.driver.drain(|deadline, task| pending.push((deadline, task)));
        pending.sort_by_key(|(deadline, _)| *deadline);
        let time = &self.shared.driver.common.time;
        let entry = |(deadline, task)| TimerEntry::new(time.instant_of(deadline), task);
        pending.into_iter().map(entry).collect()
    }

    /// A reference to the timer that does not keep it alive.
    pub fn downgrade(&self) -> WeakTimer<T> {
        WeakTimer { shared: Arc::downgrade(&self.shared) }
    }

    /// Checks every structure inside and panics if one is broken: for tests, while no other thread
    /// uses the timer. Takes time proportional to what is pending.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.shared.driver.assert_invariants();
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
    shared: Weak<Shared<T>>,
}

impl<T: Send + 'static> WeakTimer<T> {
    /// The timer, unless its last clone was dropped.
    pub fn upgrade(&self) -> Option<Timer<T>> {
        self.shared.upgrade().map(|shared| Timer { shared })
    }
}

impl<T: Send + 'static> Shared<T> {
    fn stop(&self) {
        self.driver.stop();
        if let Some(reaper) = &self.reaper {
            reaper.join();
        }
    }
}

impl<T: Send + 'static> Drop for Shared<T> {
    fn drop(&mut self) {
        self.stop();
        // Handles may outlive the timer and keep its cells; they need not keep its tasks.
        self.driver.drain(|_, task| {
            contain(|| drop(task));
        });
    }
}

impl<T: Send + 'static> Clone for Timer<T> {
    fn clone(&self) -> Self {
        Timer { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Send + 'static> Clone for WeakTimer<T> {
    fn clone(&self) -> Self {
        WeakTimer { shared: Weak::clone(&self.shared) }
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
