//! The wheel: a complete timer for one thread, driven by hand. Knows neither clocks nor locks.

pub(crate) mod core;
pub(crate) mod wheels;
pub(crate) mod ticks;
pub(crate) mod bucket_queue;
pub(crate) mod bucket;
pub(crate) mod counters;
#[cfg(feature = "std")]
pub(crate) mod snapshot;

use crate::store::slab::Key;
use crate::wheel::core::{BATCH, Core, Trimmed};
use crate::wheel::ticks::{NEVER, Ticks, round_size};
use crate::wheel::wheels::Wheels;
use ::core::fmt;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A single-threaded hierarchical timing wheel that does no input or output: no thread, no lock, no
/// clock, no `Send` needed. The code inside is the code of [`Timer`](crate::Timer)'s shards.
///
/// Time is a `u64` that the caller counts in ticks of any length. It ends at `u64::MAX - 1`;
/// `u64::MAX` is treated as that. Use this type in an event loop or a simulation that owns its
/// time, or where timers need not be shared.
///
/// No method blocks, and none panics unless the caller's code does. Adding, cancelling and
/// rescheduling take constant time (plus time logarithmic in the number of armed buckets when a
/// bucket is armed). Expiring takes constant time per task, plus one move per level that the task
/// lay above the finest. A clone has the same pending tasks under the same keys.
///
/// ```
/// use tickwheel::LocalTimer;
///
/// let mut timer = LocalTimer::new();
/// let ping = timer.add(10, "ping");
/// timer.add(20, "close");
/// assert_eq!(timer.next_expiration(), Some(10));
///
/// assert_eq!(timer.cancel(ping), Some("ping"));
/// let mut expired = Vec::new();
/// timer.advance(20, |task| expired.push(task));
/// assert_eq!(expired, ["close"]);
/// ```
#[derive(Clone)]
pub struct LocalTimer<T> {
    core: Core<T>,
    now: u64,
    /// Expired tasks that were not handed out yet: empty between calls, unless `expire` panicked;
    /// then the next call goes on with them.
    expired: VecDeque<(TimerKey, T)>,
}

/// The name of one task of a [`LocalTimer`]. It stays harmless once that task is gone: there it
/// never names another one. Use it only with that timer, and with clones made after it was issued:
/// another timer may have issued an equal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey(Key);

impl<T> LocalTimer<T> {
    /// Creates an empty timer at tick 0, with wheels of 512 slots.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(0, 512)
    }

    /// Creates an empty timer at tick `now`. `wheel_size`, the number of slots of each wheel, is
    /// rounded up to a power of two from 4 to 2^20.
    #[must_use]
    pub fn starting_at(now: u64, wheel_size: usize) -> Self {
        let (now, wheel_size) = (now.min(NEVER), round_size(wheel_size));
        LocalTimer {
            core: Core::new(Ticks::new(1), Wheels::new(0, wheel_size, now)),
            now,
            expired: VecDeque::new(),
        }
    }

    /// Adds a task that expires at the tick `deadline`. If that tick has passed, it expires at the
    /// next [`advance`](Self::advance).
    pub fn add(&mut self, deadline: u64, task: T) -> TimerKey {
        let deadline = deadline.min(NEVER);
        let (key, reference) = self.core.insert(deadline, deadline, task);
        self.core.wheels.file(reference, deadline);
        TimerKey(key)
    }

    /// Takes a task out before it expires. Returns `None` if it is gone already.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.core.cancel(key.0)
    }

    /// Moves a task to another deadline, earlier or later. Returns whether it was still pending.
    ///
    /// Moving a task to a later deadline costs a single write.
    pub fn reschedule(&mut self, key: TimerKey, deadline: u64) -> bool {
        let Some(old) = self.core.deadline(key.0) else {
            return false;
        };
        if deadline >= old {
            self.core.extend(key.0.index, deadline);
        } else {
            let reference = self.core.move_up(key.0.index, deadline, deadline);
            self.core.wheels.file(reference, deadline);
        }
        true
    }

    /// Returns a task, if it is still pending.
    #[must_use]
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.core.item(key.0)
    }

    /// Returns a task to be changed, if it is still pending.
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.core.item_mut(key.0)
    }

    /// Returns the deadline of a task, if it is still pending.
    #[must_use]
    pub fn deadline(&self, key: TimerKey) -> Option<u64> {
        self.core.deadline(key.0)
    }

    /// Returns the tick at which to call [`advance`](Self::advance) next if nothing is added
    /// before, or `None` if nothing is pending. The tick is never later than the first deadline. It
    /// may be earlier, when timers have to be moved to a finer wheel first, or were rescheduled to
    /// a later tick.
    pub fn next_expiration(&mut self) -> Option<u64> {
        if !self.expired.is_empty() {
            return Some(self.now);
        }
        while matches!(self.core.trim_first(), Trimmed::Empty | Trimmed::Unknown) {}
        self.core.wheels.queue.next_tick().map(|tick| tick.max(self.now))
    }

    /// Sets the time to `now` and hands every task whose deadline has come to `expire`. Returns how
    /// many expired. They are ordered by deadline, but for tasks whose deadline had passed when
    /// they were added or last moved: those come in no particular order, mostly first. Time never
    /// goes back: a `now` before the last one is treated as the last one.
    ///
    /// If `expire` panics, the tasks that were taken out beside that one are left to the next call
    /// of this or of [`pop`](Self::pop). Until then they count in [`len`](Self::len), but can't be
    /// looked up or cancelled any more.
    pub fn advance(&mut self, now: u64, mut expire: impl FnMut(T)) -> usize {
        self.set_time(now);
        let mut count = 0;
        loop {
            while let Some((_, task)) = self.expired.pop_front() {
                count += 1;
                expire(task);
            }
            if !self.flush(BATCH) {
                return count;
            }
        }
    }

    /// Sets the time to `now`, as [`advance`](Self::advance) does, and takes out the first task
    /// that is due, with its key; `None` if none is. The others that are due stay pending, so they
    /// can still be cancelled and moved, and come with the next calls. One that is added meanwhile
    /// and is due comes as well. To have all in the order of their deadlines, also those that are
    /// added on the way, go from one [`next_expiration`](Self::next_expiration) to the next.
    ///
    /// ```
    /// use tickwheel::LocalTimer;
    ///
    /// let mut timer = LocalTimer::new();
    /// let (probe, close) = (timer.add(5, "probe"), timer.add(5, "close"));
    /// assert_eq!(timer.pop(4), None);
    /// assert_eq!(timer.pop(5), Some((probe, "probe")));
    /// timer.cancel(close); // The peer has answered.
    /// assert_eq!(timer.pop(5), None);
    /// ```
    pub fn pop(&mut self, now: u64) -> Option<(TimerKey, T)> {
        self.set_time(now);
        while self.expired.is_empty() && self.flush(1) {}
        self.expired.pop_front()
    }

    fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now.min(NEVER));
        self.core.wheels.queue.begin_turn();
    }

    /// Moves at most so many tasks out of the bucket that comes first, if it is due. Otherwise
    /// returns false.
    fn flush(&mut self, limit: usize) -> bool {
        let now = self.now;
        let Some(expiration) = self.core.wheels.queue.poll(now, now) else {
            self.core.wheels.leap(now);
            return false;
        };
        let hand_out = |key, task| self.expired.push_back((TimerKey(key), task));
        self.core.flush(expiration, (now, limit), hand_out);
        true
    }

    /// Takes all pending tasks out, with their deadlines, and ordered by them. Those that a
    /// panicking `expire` has left come with the present tick.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = (u64, T)> + use<T> {
        let mut tasks: Vec<_> = self.expired.drain(..).map(|(_, task)| (self.now, task)).collect();
        let mut cursor = 0;
        while self.core.drain(&mut cursor, |deadline, task| tasks.push((deadline, task))) {}
        tasks.sort_by_key(|(deadline, _)| *deadline);
        tasks.into_iter()
    }

    /// Returns how many tasks are pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.core.len() + self.expired.len()
    }

    /// Returns whether no task is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks every internal structure and panics if one is broken: for tests. Takes time
    /// proportional to what is pending.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.core.assert_invariants(|_| true);
    }
}

impl<T> Default for LocalTimer<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for LocalTimer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut timer = f.debug_struct("LocalTimer");
        timer.field("now", &self.now).field("pending", &self.len()).finish_non_exhaustive()
    }
}
