//! The handle of a timer that was added.

use crate::engine::clock::When;
use crate::engine::shard::{Shard, ShardState};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::timer::entry::Task;
use crate::wheel::slab::Key;
use crate::wheel::tick::Due;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::time::Instant;

/// The handle of a timer that was added: cancels it, moves its deadline, tells whether it is
/// pending.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Cancel, Timer, TimerEntry};
///
/// let timer: Timer<&str> = Timer::builder().executor(|_| ()).build()?;
/// let timeout = timer.add(TimerEntry::after(Duration::from_secs(30), "request 7"))?;
/// assert!(timeout.is_pending());
/// assert_eq!(timeout.cancel(), Cancel::Cancelled("request 7"));
/// assert_eq!(timeout.cancel(), Cancel::AlreadyCancelled);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A timer is pending until it is cancelled or *expired*: handed to the executor, returned by
/// [`shutdown`](crate::Timer::shutdown), or dropped with the [last
/// clone](crate::Timer#the-last-clone) of its [`Timer`](crate::Timer). A timer has expired before
/// its task runs.
///
/// Dropping the handle changes nothing: the timer still expires. Use
/// [`cancel_on_drop`](Self::cancel_on_drop) to cancel it instead. A handle may outlive its `Timer`,
/// does not keep the `Timer` alive, and never affects another timer.
///
/// Each method takes constant time, and holds the lock of one shard for that time. A handle takes
/// 16 bytes; making and dropping it costs nothing.
pub struct Timeout<T: 'static = Task> {
    shard: &'static Shard<T>,
    /// The timer's key in 64 bits; [`CANCELLED`] once this handle has cancelled the timer. Relaxed:
    /// `cancel` writes it under the shard's lock, and what decides anything reads it there.
    key: AtomicU64,
}

/// No timer's key: generations end before.
const CANCELLED: u64 = u64::MAX;

/// The result of [`Timeout::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel<T> {
    /// This call cancelled the timer. Contains the task, which does not run.
    Cancelled(T),
    /// The timer had expired, was returned by `shutdown`, or was dropped with the last clone of its
    /// `Timer`. Its task may not have begun yet.
    Expired,
    /// An earlier call had cancelled the timer.
    AlreadyCancelled,
}

impl<T> Cancel<T> {
    /// Returns the task, if the call cancelled the timer.
    pub fn into_task(self) -> Option<T> {
        match self {
            Cancel::Cancelled(task) => Some(task),
            Cancel::Expired | Cancel::AlreadyCancelled => None,
        }
    }

    /// Returns whether the call cancelled the timer.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Cancel::Cancelled(_))
    }
}

impl<T: 'static> Timeout<T> {
    pub(crate) fn new(shard: &'static Shard<T>, key: Key) -> Self {
        Timeout {
            shard,
            key: AtomicU64::new(key.to_bits()),
        }
    }

    /// Returns another handle of the timer. Each tells only whether it has cancelled it itself.
    pub(crate) fn duplicate(&self) -> Self {
        Timeout::new(self.shard, self.key())
    }

    /// Cancels the timer and takes its task back, if the timer is still pending. The timer's place
    /// and its share of `max_pending` are free at once; [a few bytes](crate#guarantees) are swept
    /// out later.
    ///
    /// Of all calls and the expiry, exactly one wins. Never blocks on a running task.
    pub fn cancel(&self) -> Cancel<T> {
        let mut state = self.shard.lock();
        match state.cancel(self.key()) {
            Some(task) => {
                // Guarded by the shard's lock.
                self.key.store(CANCELLED, Ordering::Relaxed);
                Cancel::Cancelled(task)
            }
            None if self.is_cancelled() => Cancel::AlreadyCancelled,
            None => Cancel::Expired,
        }
    }

    /// Gives a pending timer another task, and returns the former one. The deadline stays.
    ///
    /// # Errors
    /// Returns the new task, if the timer was cancelled or has expired.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer: Timer<&str> = Timer::builder().executor(|_| ()).build()?;
    /// let timeout = timer.add(TimerEntry::after(Duration::from_secs(30), "first"))?;
    /// assert_eq!(timeout.replace("second"), Ok("first"));
    /// assert_eq!(timeout.cancel().into_task(), Some("second"));
    /// assert_eq!(timeout.replace("third"), Err("third"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(&self, task: T) -> Result<T, T> {
        let mut state = self.shard.lock();
        match state.get_mut(self.key()) {
            Some(former) => Ok(mem::replace(former, task)),
            None => Err(task),
        }
    }

    /// Moves the deadline of a pending timer, earlier or later. Returns whether the timer was
    /// pending.
    ///
    /// Moving to a later deadline writes one word. Moving to an earlier one costs as much as an
    /// `add`. With a delay of zero the timer expires at the next `advance_clock`.
    ///
    /// Once `shutdown` has stopped the reaper, this changes nothing and returns false. While
    /// `shutdown` waits for the reaper's batch, it moves the deadline and returns true.
    pub fn reschedule(&self, when: impl Into<When>) -> bool {
        self.moved(when.into(), ShardState::move_to)
    }

    /// Extends the deadline of a pending timer; never moves it earlier. Returns whether the timer
    /// was pending. A due timer is pending until a turn takes it out, and may be extended until
    /// then.
    ///
    /// Cheap enough for every sign of life: it writes one word. The timer is filed anew only at its
    /// old deadline. With an [`Instant`] it need not read the clock. Beside a `shutdown` it answers
    /// as [`reschedule`](Self::reschedule) does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{ManualClock, Timer, TimerEntry};
    /// # let clock = ManualClock::new();
    /// # let timer: Timer<&str> = Timer::builder().clock(clock.clone()).executor(|_| ()).build()?;
    /// let idle = timer.add(TimerEntry::after(Duration::from_secs(30), "session 1"))?;
    /// clock.advance(Duration::from_secs(20));
    /// assert!(idle.touch(Duration::from_secs(30)));
    /// clock.advance(Duration::from_secs(29));
    /// assert_eq!(timer.advance_clock(Duration::ZERO), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch(&self, when: impl Into<When>) -> bool {
        self.moved(when.into(), ShardState::extend)
    }

    /// Brings the deadline of a pending timer forward; never moves it later. Returns whether the
    /// timer was pending. Costs as much as [`reschedule`](Self::reschedule).
    ///
    /// Use it for several callers with different time limits: in any order of calls, the earliest
    /// counts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer: Timer<&str> = Timer::builder().executor(|_| ()).build()?;
    /// let flush = timer.add(TimerEntry::after(Duration::from_secs(30), "flush"))?;
    /// let soon = timer.now() + Duration::from_secs(5);
    /// assert!(flush.hasten(soon) && flush.hasten(Duration::from_secs(60)));
    /// assert_eq!(flush.deadline(), Some(soon));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hasten(&self, when: impl Into<When>) -> bool {
        self.moved(when.into(), ShardState::hasten)
    }

    /// Returns whether the timer is waiting for its deadline.
    pub fn is_pending(&self) -> bool {
        self.shard.lock().get(self.key()).is_some()
    }

    /// Returns whether the timer has [expired](Self).
    pub fn is_expired(&self) -> bool {
        !self.is_pending() && !self.is_cancelled()
    }

    /// Returns whether the timer was cancelled through this handle.
    pub fn is_cancelled(&self) -> bool {
        self.key.load(Ordering::Relaxed) == CANCELLED
    }

    /// Returns the deadline exactly as it was given, but not before the moment at which the
    /// [`Timer`](crate::Timer) was built. Returns `None` if the timer is not pending, or never
    /// expires.
    pub fn deadline(&self) -> Option<Instant> {
        let state = self.shard.lock();
        let key = self.key();
        state.get(key)?;
        state.instant_of(state.deadline_at(key.index))
    }

    /// Returns a guard whose drop cancels the timer and drops its task.
    pub fn cancel_on_drop(self) -> CancelOnDrop<T> {
        CancelOnDrop(self)
    }

    fn key(&self) -> Key {
        Key::from_bits(self.key.load(Ordering::Relaxed))
    }

    /// Calls `change` with the timer's place in the slab and its new deadline. Returns whether the
    /// timer is pending and its shard open.
    fn moved(&self, when: When, change: impl FnOnce(&mut ShardState<T, ()>, u32, Due)) -> bool {
        let mut state = self.shard.lock();
        // Read under the lock, under which `cancel` changes it.
        let key = self.key();
        let Some(context) = state.open_context() else {
            return false;
        };
        if state.get(key).is_none() {
            return false;
        }
        let due = context.time.due(when);
        change(&mut state, key.index, due);
        Shard::unlock(state);
        true
    }
}

impl<T> fmt::Debug for Timeout<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cancelled = self.is_cancelled();
        f.debug_struct("Timeout")
            .field("key", &self.key())
            .field("cancelled", &cancelled)
            .finish()
    }
}

/// A [`Timeout`] that cancels its timer when it is dropped.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry};
///
/// let timer: Timer = Timer::builder().build()?;
/// {
///     let timeout = timer.add(TimerEntry::after(Duration::from_secs(30), || ()))?;
///     let guard = timeout.cancel_on_drop();
///     assert!(guard.touch(Duration::from_secs(60)));
/// }
/// assert!(timer.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once, it cancels at once"]
pub struct CancelOnDrop<T: 'static = Task>(Timeout<T>);

impl<T: 'static> CancelOnDrop<T> {
    /// Returns the timer's handle: dropping it cancels nothing.
    pub fn disarm(self) -> Timeout<T> {
        let timeout = self.0.duplicate();
        mem::forget(self); // A handle owns nothing.
        timeout
    }
}

/// A guard has the handle's methods.
impl<T: 'static> Deref for CancelOnDrop<T> {
    type Target = Timeout<T>;

    fn deref(&self) -> &Timeout<T> {
        &self.0
    }
}

impl<T: 'static> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        drop(self.cancel());
    }
}

impl<T> fmt::Debug for CancelOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelOnDrop").field(&self.0).finish()
    }
}
