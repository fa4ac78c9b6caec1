//! The local timer: one core and a bucket queue, driven by hand, without threads, locks or a clock.

use crate::store::key::Key;
use crate::wheel::bucket_queue::BucketQueue;
use crate::wheel::core::{Core, Trimmed};
use crate::wheel::ticks::{NEVER, Ticks};
use crate::wheel::wheels::Wheels;
use std::collections::VecDeque;

/// A single-threaded hierarchical timing wheel that does no input or output: no thread, no lock, no
/// clock, no `Send` needed. The code inside is the code of [`Timer`](crate::Timer)'s shards.
///
/// Time is a `u64` that the caller counts in ticks of any length; it ends at `u64::MAX - 1`, for
/// which `u64::MAX` counts as well. Use it in an event loop or a simulation that owns its time, or
/// where the timers must not be shared.
///
/// Nothing here blocks or panics. Adding, cancelling and rescheduling take constant time (and a
/// binary heap's logarithm of the armed buckets when a bucket is armed); expiring takes constant
/// time per task, plus one move per level that it was above the finest.
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
#[derive(Debug)]
pub struct LocalTimer<T> {
    core: Core<T>,
    queue: BucketQueue,
    now: u64,
    /// Expired tasks that were not handed out yet: empty between calls, unless a task's `expire`
    /// panicked; then the next `advance` goes on with them.
    expired: VecDeque<T>,
}

/// Names one timer of a [`LocalTimer`]. Harmless once that timer is gone: it never names another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey(Key);

impl<T> LocalTimer<T> {
    /// An empty timer at tick 0, with wheels of 512 slots.
    pub fn new() -> Self {
        Self::starting_at(0, 512)
    }

    /// An empty timer at tick `now`. `wheel_size`, the slots of each wheel, is rounded up to a
    /// power of two from 4 to 2^20.
    pub fn starting_at(now: u64, wheel_size: usize) -> Self {
        let wheel_size = crate::wheel::timing_wheel::round_size(wheel_size);
        LocalTimer {
            core: Core::new(Ticks::new(1), Wheels::new(0, wheel_size, now)),
            queue: BucketQueue::default(),
            now,
            expired: VecDeque::new(),
        }
    }

    /// Adds a task that expires at the tick `deadline`: at the next [`advance`](Self::advance) if
    /// that has passed.
    pub fn add(&mut self, deadline: u64, task: T) -> TimerKey {
        let deadline = deadline.min(NEVER);
        let (key, reference) = self.core.insert(deadline, deadline, task);
        self.core.wheels.file(reference, deadline, |expiration| self.queue.offer(expiration));
        TimerKey(key)
    }

    /// Takes a task out before it expires; `None` if it is gone already.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.core.cancel(key.0)
    }

    /// Moves a task to another deadline, earlier or later. Returns whether it was still pending.
    ///
    /// To a later one it costs a single write.
    pub fn reschedule(&mut self, key: TimerKey, deadline: u64) -> bool {
        let Some(old) = self.core.deadline(key.0) else {
            return false;
        };
        if deadline >= old {
            self.core.extend(key.0.index, deadline);
        } else {
            let reference = self.core.move_up(key.0.index, deadline, deadline);
            self.core.wheels.file(reference, deadline, |expiration| self.queue.offer(expiration));
        }
        true
    }

    /// The deadline of a task that is still pending.
    pub fn deadline(&self, key: TimerKey) -> Option<u64> {
        self.core.deadline(key.0)
    }

    /// The tick at which to call [`advance`](Self::advance) next, if nothing is added before: never
    /// after the first deadline; before it when timers have to be moved to a finer wheel first, or
    /// were rescheduled to later. `None` if nothing is pending.
    pub fn next_expiration(&mut self) -> Option<u64> {
        if !self.expired.is_empty() {
            return Some(self.now);
        }
        while let Some(first) = self.queue.first() {
            match self.core.trim(first.bucket) {
                Trimmed::Empty => {
                    self.queue.take(first);
                    self.core.wheels.disarm_if_empty(first.bucket);
                }
                Trimmed::Live => break,
                Trimmed::Unknown => {}
            }
        }
        self.queue.next_tick().map(|tick| tick.max(self.now))
    }

    /// Sets the time to `now` and hands every task whose deadline has come to `expire`, ordered by
    /// deadline; first those whose deadline had passed when they were added, in no promised order.
    /// A `now` before the last one counts as the last one. Returns how many expired.
    pub fn advance(&mut self, now: u64, mut expire: impl FnMut(T)) -> usize {
        self.now = self.now.max(now.min(NEVER));
        let now = self.now;
        let mut count = 0;
        self.queue.begin_turn();
        loop {
            while let Some(task) = self.expired.pop_front() {
                count += 1;
                expire(task);
            }
            let Some(expiration) = self.queue.poll(now, now) else {
                break;
            };
            let hand_out = |task| self.expired.push_back(task);
            let arm = |armed| self.queue.offer(armed);
            if let Some(left) = self.core.flush(expiration, now, arm, hand_out) {
                self.queue.resume(left);
            }
        }
        self.core.wheels.leap(now);
        count
    }

    /// How many tasks are pending.
    pub fn len(&self) -> usize {
        self.core.len()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks every structure inside and panics if one is broken: for tests. Takes time
    /// proportional to what is pending.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.core.assert_invariants(
            |_, id| self.queue.iter().filter(|expiration| expiration.bucket == id).count(),
            |_| true,
        );
    }
}

impl<T> Default for LocalTimer<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn churn(timer: &mut LocalTimer<u32>, deadline: u64, times: usize) {
        for _ in 0..times {
            let key = timer.add(deadline, 0);
            timer.cancel(key);
        }
    }

    /// The bucket that the sweep is at is flushed before all its references were looked at.
    #[test]
    fn the_sweep_goes_on_when_its_bucket_was_flushed() {
        let mut timer = LocalTimer::new();
        for _ in 0..1_000 {
            timer.add(1, 0);
        }
        let stale: Vec<_> = (0..1_000).map(|_| timer.add(2, 0)).collect();
        stale.into_iter().for_each(|key| assert_eq!(timer.cancel(key), Some(0)));
        churn(&mut timer, 300, 400); // Just enough for it to begin.
        timer.advance(2, |_| ());
        churn(&mut timer, 300, 10_000);
        let references = timer.core.wheels.len();
        assert!(references < 2_000, "{references} references to nothing");
        timer.assert_invariants();
    }
}
