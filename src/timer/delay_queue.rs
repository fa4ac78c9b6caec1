//! The delay queue: the bucket queue that all shards share, behind its lock, and the place where
//! threads that advance the clock wait. As with Java's, a thread that takes from it waits until the
//! first bucket is due.
//!
//! # Why no wake-up is lost
//! A thread that goes to sleep looks at the queue and at the clock, publishes the time until which
//! it sleeps (`asleep_until`) and waits, all under the one lock. A thread that offers an earlier
//! bucket does so under that lock. If it comes before the sleeper, the sleeper sees the bucket. If
//! it comes after, the offering thread sees `asleep_until` and wakes all sleepers, and each looks
//! again. Moving a manual clock takes the lock between moving the clock and waking. So a sleeper
//! never sleeps beyond the first bucket of the queue. An offer that is not earlier than what all
//! sleepers sleep for wakes none, and costs no system call.

use crate::sync::{Condvar, Mutex};
use crate::timer::clock::{Time, Wake};
use crate::wheel::bucket_queue::{BucketQueue, Due, Expiration};
use crate::work;
use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct DelayQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: BucketQueue,
    sleepers: usize,
    /// No sleeper sleeps beyond this tick.
    asleep_until: u64,
    stopped: bool,
    wakeups: u64,
}

/// How a wait ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Due,
    TimedOut,
    Stopped,
}

/// The duty to call [`DelayQueue::wake`] once no lock is held: waking takes microseconds.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    Nobody,
    Sleepers,
}

impl State {
    fn offer(&mut self, expiration: Expiration) -> Wakes {
        self.queue.offer(expiration);
        self.wake_before(expiration.tick)
    }

    /// Ensures that no thread sleeps beyond `tick`.
    fn wake_before(&mut self, tick: u64) -> Wakes {
        if self.sleepers == 0 || tick >= self.asleep_until {
            return Wakes::Nobody;
        }
        self.asleep_until = tick;
        Wakes::Sleepers
    }
}

impl Wakes {
    /// Combines both duties into one.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Wakes::Sleepers { self } else { other }
    }
}

impl DelayQueue {
    /// Puts a newly armed bucket into the queue. The caller holds the lock of the bucket's shard,
    /// so no thread finds it armed and not queued.
    pub(crate) fn offer(&self, expiration: Expiration) -> Wakes {
        self.state.lock().offer(expiration)
    }

    /// Lets the beginning turn have the elapsed buckets. Returns whether there is anything to do at
    /// `now`. The caller holds the turn's lock, so no bucket is being flushed.
    pub(crate) fn begin_turn(&self, now: u64) -> bool {
        let mut state = self.state.lock();
        state.queue.begin_turn();
        state.queue.is_due(now)
    }

    /// Returns which shard's bucket is to be flushed next.
    pub(crate) fn next_due(&self, turn_start: u64, now: u64) -> Due {
        self.state.lock().queue.next_due(turn_start, now)
    }

    /// Takes the bucket to flush next, if it belongs to `shard`, whose lock the caller holds until
    /// it has called [`DelayQueue::flushed`]. So no other thread can file a reference there in
    /// between that should have been flushed before, and a thread that holds a shard's lock finds
    /// all armed buckets of the shard queued.
    pub(crate) fn poll(&self, shard: u32, turn_start: u64, now: u64) -> Option<Expiration> {
        self.state.lock().queue.poll_of(shard, turn_start, now)
    }

    /// Leaves out a shard that is busy, until [`DelayQueue::bring_back`].
    pub(crate) fn put_aside(&self, shard: u32, turn_start: u64, now: u64) {
        self.state.lock().queue.put_aside_of(shard, turn_start, now);
    }

    pub(crate) fn bring_back(&self) {
        self.state.lock().queue.bring_back();
    }

    /// Returns the bucket that comes first, so that the caller can look whether it is empty.
    pub(crate) fn first(&self) -> Option<Expiration> {
        self.state.lock().queue.first()
    }

    /// Takes a bucket out of the queue if it still comes first. Returns whether it did. The caller
    /// holds its shard's lock, and disarms it then.
    pub(crate) fn take(&self, expiration: Expiration) -> bool {
        self.state.lock().queue.take(expiration)
    }

    /// Takes out all buckets for which `is_gone` returns true. The caller holds the turn's lock.
    /// Looks at every bucket.
    pub(crate) fn forget(&self, is_gone: impl Fn(&Expiration) -> bool) {
        self.state.lock().queue.forget(is_gone);
    }

    /// Ends the flush of a bucket: offers the buckets that it armed, and the bucket itself if it is
    /// not empty. The latter also has to be compared with what sleepers sleep for, because a task
    /// may keep the flushing thread for any length of time.
    pub(crate) fn flushed(
        &self,
        armed: impl Iterator<Item = Expiration>,
        unfinished: Option<Expiration>,
    ) -> Wakes {
        let mut state = self.state.lock();
        let mut wakes = Wakes::Nobody;
        if let Some(expiration) = unfinished {
            state.queue.resume(expiration);
            wakes = wakes.or(state.wake_before(expiration.tick));
        }
        armed.fold(wakes, |wakes, expiration| {
            work::count(1);
            wakes.or(state.offer(expiration))
        })
    }

    /// Returns whether no bucket is due at `now`. If so, the time of a shard whose lock the caller
    /// holds may leap there.
    pub(crate) fn is_quiet(&self, now: u64) -> bool {
        !self.state.lock().queue.is_due(now)
    }

    /// Returns whether a bucket is due.
    pub(crate) fn is_due(&self, time: &Time) -> bool {
        !self.is_quiet(time.ticks.floor(time.now()))
    }

    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.state.lock().queue.next_tick()
    }

    /// Waits until a bucket is due, but not beyond `until`.
    ///
    /// With a manual clock only moving the clock, an offer or a stop ends the wait.
    pub(crate) fn wait(&self, time: &Time, until: Option<Instant>) -> Waited {
        let mut state = self.state.lock();
        loop {
            let next = state.queue.next_tick();
            if state.stopped {
                return Waited::Stopped;
            }
            if next.is_some_and(|tick| tick <= time.ticks.floor(time.now())) {
                return Waited::Due;
            }
            if until.is_some_and(|until| until <= time.clock.now()) {
                return Waited::TimedOut;
            }
            state.sleepers += 1;
            state.asleep_until = next.unwrap_or(u64::MAX);
            let due = next.map(|tick| time.instant_of_tick(tick));
            match due.into_iter().chain(until).min() {
                Some(instant) if time.clock.as_manual().is_none() => {
                    state = self.changed.wait_until(state, instant);
                }
                _ => state = self.changed.wait(state),
            }
            state.sleepers -= 1;
            state.wakeups += 1;
        }
    }

    /// Wakes all sleepers, if `wakes` says so.
    pub(crate) fn wake(&self, wakes: Wakes) {
        if wakes == Wakes::Sleepers {
            self.changed.notify_all();
        }
    }

    /// Ends all waits, now and later.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    pub(crate) fn wakeups(&self) -> u64 {
        self.state.lock().wakeups
    }

    /// Calls `see` with every queued bucket.
    pub(crate) fn for_each(&self, see: impl FnMut(&Expiration)) {
        self.state.lock().queue.iter().for_each(see);
    }
}

impl Wake for DelayQueue {
    fn wake(&self) {
        // The lock orders this after a sleeper's look at the clock.
        if self.state.lock().sleepers > 0 {
            self.changed.notify_all();
        }
    }
}
