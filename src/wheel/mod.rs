//! The wheel: a complete timer for one thread, driven by hand. Knows neither clocks nor locks.

// In reading order, downwards.
pub(crate) mod timing_wheel;
pub(crate) mod level;
pub(crate) mod slab;
pub(crate) mod bucket;
pub(crate) mod expirations;
pub(crate) mod tick;
pub(crate) mod counters;

use crate::wheel::bucket::Entry;
use crate::wheel::expirations::First;
use crate::wheel::level::round_size;
use crate::wheel::slab::Key;
use crate::wheel::tick::{Due, Nanos, Tick, TickLength};
use crate::wheel::timing_wheel::flush::Flush;
use crate::wheel::timing_wheel::{BATCH, TimingWheel};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

/// The timing wheel alone, for one thread: no dependencies, std, threads, locks, clock or `unsafe`.
/// Tasks need not be `Send`. [`Timer`](crate::Timer)'s shards run the same code.
///
/// ```
/// let mut timer = tickwheel::LocalTimer::new();
/// let ping = timer.add(10, "ping");
/// timer.add(20, "close");
/// assert_eq!(timer.next_expiration(), Some(10));
///
/// assert_eq!(timer.cancel(ping), Some("ping"));
/// let mut expired = Vec::new();
/// timer.advance(20, |task| expired.push(task));
/// assert_eq!(expired, ["close"]);
/// ```
///
/// Use this type in an event loop or a simulation that owns its time, or where timers need not be
/// shared. Time is a `u64` that you count in ticks of any length. It ends at `u64::MAX - 1`;
/// `u64::MAX` is treated as that.
///
/// To count a clock in ticks, round the present down and deadlines up, so that nothing expires
/// early. In ticks of a millisecond the present is `since_start.as_millis() as u64`, and a deadline
/// `u64::try_from(since_start.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)`. A task is then
/// up to a tick late. Nanoseconds are exact and last for 584 years, but move tasks through more
/// levels.
///
/// No method blocks, and none panics unless your code does. Adding, cancelling and rescheduling
/// take constant time, plus time logarithmic in the number of armed buckets when a bucket is armed.
/// Expiring takes constant time per task, plus one move for each level above the finest. Memory
/// grows in chunks of 256 tasks. Only the first chunk is copied as it grows, so there is no
/// capacity to reserve. A clone has the same pending tasks under the same keys.
#[derive(Clone)]
pub struct LocalTimer<T> {
    wheel: TimingWheel<T>,
    now: u64,
    /// Expired tasks to be handed out: empty between calls, unless `expire` panicked.
    expired: VecDeque<Popped<T>>,
}

/// The name of one task of a [`LocalTimer`]. Once that task is gone, the key names nothing. Use it
/// only with that timer, and with clones made after it was issued: another timer may issue an equal
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey(Key);

/// A task taken out by [`LocalTimer::pop`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popped<T> {
    /// The key that the task had.
    pub key: TimerKey,
    /// The tick at which the task was due.
    pub deadline: u64,
    /// The task.
    pub task: T,
}

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
        let now = now.min(Nanos::NEVER.0);
        let wheel_size = round_size(wheel_size);
        // The caller counts in ticks, so a time and its tick are the same number.
        let wheel = TimingWheel::new(TickLength::new(1), wheel_size, Tick(now), Nanos::NEVER);
        LocalTimer {
            wheel,
            now,
            expired: VecDeque::new(),
        }
    }

    /// Adds a task that expires at the tick `deadline`, or at the next [`advance`](Self::advance)
    /// if that tick has passed.
    #[inline]
    pub fn add(&mut self, deadline: u64, task: T) -> TimerKey {
        let due = self.due(deadline);
        let (key, reference) = self.wheel.insert(due, task);
        // Nothing leaps: `advance` has moved the wheel's time to the present.
        self.wheel.push(reference, due.tick.max(Tick(self.now)));
        TimerKey(key)
    }

    fn due(&self, deadline: u64) -> Due {
        let deadline = Nanos(deadline).min(Nanos::NEVER);
        Due {
            deadline,
            tick: Tick(deadline.0),
            present: Some(Nanos(self.now)),
        }
    }

    /// Takes a task out before it expires. Returns `None` if the task is gone.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.wheel.cancel(key.0)
    }

    /// Moves a task to another deadline, earlier or later. Returns whether the task was pending. A
    /// later deadline costs a single write.
    pub fn reschedule(&mut self, key: TimerKey, deadline: u64) -> bool {
        let due = self.due(deadline);
        let now = Nanos(self.now);
        let is_pending = self.wheel.get(key.0).is_some();
        if is_pending {
            self.wheel.move_to(key.0.index, due, || now);
        }
        is_pending
    }

    /// Extends the deadline of a task; it never moves to an earlier one. Returns whether the task
    /// was pending. Costs a single write.
    pub fn touch(&mut self, key: TimerKey, deadline: u64) -> bool {
        let is_pending = self.wheel.get(key.0).is_some();
        if is_pending {
            // No deadline is beyond the last one here.
            self.wheel.extend(key.0.index, self.due(deadline).deadline);
        }
        is_pending
    }

    /// Brings the deadline of a task forward; it never moves to a later one. Returns whether the
    /// task was pending.
    pub fn hasten(&mut self, key: TimerKey, deadline: u64) -> bool {
        match self.deadline(key) {
            Some(former) => deadline >= former || self.reschedule(key, deadline),
            None => false,
        }
    }

    /// Returns a task, if it is pending.
    #[must_use]
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.wheel.get(key.0)
    }

    /// Returns a task to be changed, if it is pending.
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.wheel.get_mut(key.0)
    }

    /// Returns the deadline of a task, if it is pending.
    #[must_use]
    pub fn deadline(&self, key: TimerKey) -> Option<u64> {
        self.wheel.deadline(key.0).map(|deadline| deadline.0)
    }

    /// Returns the tick set by the last [`advance`](Self::advance) or [`pop`](Self::pop).
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns all pending tasks with their keys and deadlines, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (TimerKey, u64, &T)> {
        let entries = self.wheel.entries.iter();
        entries.map(|(key, entry)| (TimerKey(key), entry.deadline().0, &entry.item))
    }

    /// Returns the task with the first deadline, its key and that deadline. To put off a due task
    /// and keep its key, [`reschedule`](Self::reschedule) it instead of popping it.
    ///
    /// Allocates. Sorts the armed buckets, at most one for each slot, and looks at each task in
    /// those that begin by the deadline that it returns: usually one bucket.
    /// [`next_expiration`](Self::next_expiration) is cheaper.
    #[must_use]
    pub fn peek(&self) -> Option<(TimerKey, u64, &T)> {
        let mut armed: Vec<_> = self.wheel.armed().collect();
        armed.sort_unstable_by_key(|(expiration, _)| expiration.start);
        let mut first: Option<(u32, &Entry<T>)> = None;
        for (expiration, buckets) in armed {
            // A deadline that had passed is filed under a tick up to the present.
            let until = first.map_or(u64::MAX, |(_, entry)| entry.deadline().0.max(self.now));
            if expiration.start.0 > until {
                break;
            }
            let entries = buckets
                .into_iter()
                .flat_map(|bucket| self.wheel.entries_of(bucket));
            first = first
                .into_iter()
                .chain(entries)
                .min_by_key(|(_, entry)| entry.deadline());
        }
        let (index, entry) = first?;
        let key = TimerKey(self.wheel.entries.key_at(index)?);
        Some((key, entry.deadline().0, &entry.item))
    }

    /// Drops all pending tasks.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Returns the tick at which to call [`advance`](Self::advance) next if nothing is added or
    /// moved to an earlier deadline before, or `None` if nothing is pending.
    ///
    /// The tick is [`now`](Self::now) if a task is due. Otherwise it is never later than the first
    /// deadline. It is earlier if tasks must be moved to a finer wheel first, or were moved to a
    /// later deadline. Takes constant time, plus as much once for each cancelled task that would
    /// have been first.
    pub fn next_expiration(&mut self) -> Option<u64> {
        if !self.expired.is_empty() {
            return Some(self.now);
        }
        while self.wheel.trim() {}
        let First { tick, cascade, .. } = self.wheel.first();
        let next = if cascade < Tick::NEVER {
            self.now
        } else {
            tick.0.max(self.now)
        };
        (next < u64::MAX).then_some(next)
    }

    /// Sets the time to `now` and hands every due task to `expire`. Returns the number of expired
    /// tasks. [`pop`](Self::pop) also returns keys and deadlines.
    ///
    /// Tasks are ordered by deadline. A task whose deadline had passed when it was added or moved
    /// comes between its deadline and the tick in which that happened. Time never goes back: an
    /// earlier `now` is treated as the last one.
    ///
    /// If `expire` panics, the other tasks that were taken out are left to the next call of this or
    /// of [`pop`](Self::pop). Until then they count in [`len`](Self::len), but can't be looked up
    /// or cancelled.
    pub fn advance(&mut self, now: u64, mut expire: impl FnMut(T)) -> usize {
        self.set_time(now);
        let mut count = 0;
        loop {
            while let Some(popped) = self.expired.pop_front() {
                count += 1;
                expire(popped.task);
            }
            if !self.flush(BATCH) {
                return count;
            }
        }
    }

    /// Sets the time to `now`, as [`advance`](Self::advance) does, and takes out the first due
    /// task, with its key and its deadline; `None` if no task is due.
    ///
    /// Other due tasks stay pending: they can be cancelled and moved. A due task that is added
    /// meanwhile comes as well. For strict order by deadline, also of tasks added on the way, go
    /// from one [`next_expiration`](Self::next_expiration) to the next.
    ///
    /// ```
    /// use tickwheel::{LocalTimer, Popped};
    ///
    /// let mut timer = LocalTimer::new();
    /// let probe = timer.add(5, "probe");
    /// let close = timer.add(5, "close");
    /// assert_eq!(timer.pop(4), None);
    /// assert_eq!(timer.pop(6), Some(Popped { key: probe, deadline: 5, task: "probe" }));
    /// timer.cancel(close); // The peer has answered.
    /// assert_eq!(timer.pop(6), None);
    /// ```
    pub fn pop(&mut self, now: u64) -> Option<Popped<T>> {
        self.set_time(now);
        while self.expired.is_empty() && self.flush(1) {}
        self.expired.pop_front()
    }

    fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now.min(Nanos::NEVER.0));
    }

    /// Moves at most `batch` tasks out of the first bucket, if it is due. Otherwise returns false.
    fn flush(&mut self, batch: usize) -> bool {
        let limit = Tick(self.now);
        // Nothing is added while tasks are handed out, so one turn suffices.
        let flush = Flush {
            limit,
            turn: 0,
            present: Nanos(self.now),
            batch,
        };
        let hand_out = |key, entry: Entry<T>| {
            let deadline = entry.deadline().0;
            self.expired.push_back(Popped {
                key: TimerKey(key),
                deadline,
                task: entry.item,
            });
        };
        let was_due = self.wheel.flush(flush, hand_out);
        if !was_due {
            self.wheel.leap(limit);
        }
        was_due
    }

    /// Takes all pending tasks out, with and ordered by their deadlines. Tasks left by a panicking
    /// `expire` come with the present tick.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = (u64, T)> + use<T> {
        let left = self.expired.drain(..);
        let mut tasks: Vec<_> = left.map(|popped| (self.now, popped.task)).collect();
        // At least once: cancelled tasks leave references behind, and perhaps no chunk.
        for chunk in 0..self.wheel.chunks().max(1) {
            self.wheel
                .drain_chunk(chunk, |deadline, task| tasks.push((deadline.0, task)));
        }
        tasks.sort_by_key(|(deadline, _)| *deadline);
        tasks.into_iter()
    }

    /// Returns the number of pending tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wheel.len() + self.expired.len()
    }

    /// Returns whether no task is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks every internal structure and panics if one is broken: for tests. Takes time
    /// proportional to the pending tasks.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.wheel.assert_invariants(|_| true);
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
        timer
            .field("now", &self.now)
            .field("pending", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::bucket::Bucket;

    /// A stale reference that looks live must not expire an entry, or lose a bucket.
    #[test]
    fn a_number_of_a_filing_that_comes_again_costs_no_timer() {
        fastrand::seed(7);
        for _ in 0..2_000 {
            let mut timer = LocalTimer::starting_at(0, 4);
            let mut pending = Vec::new();
            let mut now = 0;
            for task in 0..60 {
                timer.wheel.filings = fastrand::u32(..3);
                let deadline = now + fastrand::u64(..40);
                match fastrand::usize(..2 + pending.len()) {
                    0 => pending.push((timer.add(deadline, task), task, deadline)),
                    1 => now += fastrand::u64(..20),
                    nth => {
                        assert!(timer.reschedule(pending[nth - 2].0, deadline));
                        pending[nth - 2].2 = deadline;
                    }
                }
                let mut expired = Vec::new();
                timer.advance(now, |task| expired.push(task));
                expired.sort_unstable();
                let (due, left): (Vec<_>, Vec<_>) = pending
                    .into_iter()
                    .partition(|(_, _, deadline)| *deadline <= now);
                pending = left;
                assert!(
                    expired
                        .into_iter()
                        .eq(due.into_iter().map(|(_, task, _)| task))
                );
                assert_eq!(timer.len(), pending.len());
            }
        }
    }

    /// Timers that are added again and again, and requests beside them whose deadlines are far and
    /// which are cancelled: nothing in it is random, so a sweep may keep step with it.
    #[derive(Debug)]
    struct Load {
        wheel_size: usize,
        /// In ticks: the time goes on by one step after the other.
        step: u64,
        /// In steps.
        periods: Vec<u64>,
        /// In steps.
        request_every: u64,
        /// How many requests wait for an answer.
        open: usize,
        deadline: fn(u64) -> u64,
    }

    impl Load {
        fn any() -> Self {
            let wheel_size = fastrand::choice([4, 8, 64, 512, 512]).expect("not empty");
            let steps = [1, 1, 1, 2, 5, wheel_size as u64 / 2];
            let timers = fastrand::choice([3, 5, 7]).expect("not empty");
            let most = fastrand::choice([3, 4, 6]).expect("not empty");
            let deadlines: [fn(u64) -> u64; 3] =
                [|_| 1 << 40, |now| now + (1 << 12), |now| now + (1 << 31)];
            Load {
                wheel_size,
                step: fastrand::choice(steps).expect("not empty"),
                periods: (0..timers).map(|_| fastrand::u64(1..=most)).collect(),
                request_every: fastrand::u64(1..=6),
                open: fastrand::choice([0, 0, 1, 30]).expect("not empty"),
                deadline: fastrand::choice(deadlines).expect("not empty"),
            }
        }

        /// Returns the most references that there were at once, and the most timers.
        fn run(&self, requests: usize) -> (usize, usize) {
            let mut timer = LocalTimer::starting_at(0, self.wheel_size);
            for period in &self.periods {
                timer.add(fastrand::u64(1..=*period) * self.step, *period);
            }
            let mut due = Vec::new();
            let mut open = VecDeque::new();
            let mut most = 0;
            let mut peak = 0;
            for number in 1..=requests as u64 * self.request_every {
                let now = number * self.step;
                timer.advance(now, |period| due.push(period));
                for period in due.drain(..).filter(|period| *period > 0) {
                    timer.add(now + period * self.step, period);
                }
                if number % self.request_every > 0 {
                    continue;
                }
                open.push_back(timer.add((self.deadline)(now), 0));
                peak = peak.max(timer.len());
                if open.len() > self.open {
                    open.pop_front().and_then(|request| timer.cancel(request));
                }
                let buckets = timer.wheel.armed().flat_map(|(_, buckets)| buckets);
                most = most.max(buckets.map(Bucket::len).sum());
            }
            (most, peak)
        }
    }

    /// Seen to fail: near buckets that came and went moved a far one, so that no step looked at it;
    /// and a step that ended at each bucket kept pace with the time.
    #[test]
    fn cancelled_timers_leave_little_behind_beside_periodic_ones() {
        fastrand::seed(1);
        for load in (0..120).map(|_| Load::any()) {
            let (references, peak) = load.run(700);
            // What the crate's page allows for each shard, besides the timers themselves.
            let allowed = 2 * peak + 500;
            assert!(
                references <= peak + allowed,
                "{references} for {peak} timers: {load:?}"
            );
        }
    }

    /// Seen to fail: the few references that were left lay in four times as many chunks as needed.
    #[test]
    fn a_burst_that_was_cancelled_leaves_its_memory() {
        fastrand::seed(1);
        let mut timer = LocalTimer::new();
        let mut add = |_| timer.add(fastrand::u64(30_000..60_000), ());
        (0..5_000).for_each(|number| _ = add(number));
        let burst: Vec<_> = (0..200_000).map(add).collect();
        assert!(burst.into_iter().all(|key| timer.cancel(key).is_some()));
        assert!(!timer.wheel.blocks.is_sparse());
    }

    /// Seen to fail: where nothing was pending, nothing was given back.
    #[test]
    fn a_timer_that_was_cleared_keeps_no_bucket_whatever_was_pending() {
        for cancelled in [0, 9_999, 10_000] {
            let mut timer = LocalTimer::new();
            let keys: Vec<_> = (0..10_000).map(|number| timer.add(number, ())).collect();
            for key in &keys[..cancelled] {
                assert!(timer.cancel(*key).is_some());
            }
            timer.clear();
            let left = (timer.wheel.depth(), timer.wheel.blocks.len());
            assert_eq!(left, (0, 0), "{cancelled} were cancelled");
            timer.assert_invariants();
        }
    }
}
