//! The delay queue: the bucket queue that all shards share, behind its lock, and the place where
//! those wait that advance the clock. As with Java's, a thread that takes from it waits until the
//! first bucket is due.
//!
//! # Who waits
//! Threads sleep here. *Listeners*, futures and loops that drive the timer, wait elsewhere, and
//! leave their wakers here. Waking them runs a user's code, so whoever offers a bucket is told to
//! do it once no lock is held. Threads that sleep are woken here.
//!
//! # Why no wake-up is lost
//! A thread that goes to sleep looks at the queue and at the clock, publishes the time until which
//! it sleeps (`told`) and waits, all under the one lock. A thread that offers an earlier bucket
//! does so under that lock. If it comes before the sleeper, the sleeper sees the bucket. If it
//! comes after, the offering thread sees `told` and wakes all that wait, and each looks again.
//! Moving a manual clock takes the lock between moving the clock and waking. So a sleeper never
//! sleeps beyond the first bucket of the queue. An offer that is not earlier than what all sleepers
//! sleep for wakes none, and costs no system call. The same holds for listeners, which look and
//! publish under the same lock.

use crate::engine::clock::Time;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::wheel::bucket_queue::{BucketQueue, Expiration};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long a thread waits on a clock of the user's before it looks again: nothing wakes it when
/// that clock leaps.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct DelayQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: BucketQueue,
    /// What stands for shards that were busy when it was their turn; only within a step of a turn.
    aside: Vec<Expiration>,
    sleepers: usize,
    /// Of the listeners, with their numbers.
    wakers: Wakers,
    /// How many listeners have been given a number.
    listeners: u64,
    /// None of those that wait does so beyond this tick.
    told: u64,
    /// Whether listeners are to be woken, by a thread that can't yet.
    owed: bool,
    stopped: bool,
    wakeups: u64,
}

/// Counted references: they are cloned and dropped under the lock, where no user code may run.
type Wakers = Vec<(u64, Arc<Waker>)>;

/// What a listener has to wait for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Due,
    /// Waits until then; without an instant, until it is woken.
    Until(Option<Instant>),
    Stopped,
}

impl State {
    /// Puts a bucket into the queue. Returns whether somebody may wait beyond it.
    fn offer(&mut self, expiration: Expiration) -> bool {
        self.queue.offer(expiration);
        self.is_earlier(expiration.tick)
    }

    /// Returns whether somebody may wait beyond `tick`, who is woken then.
    fn is_earlier(&mut self, tick: u64) -> bool {
        let is_earlier = tick < self.told;
        if is_earlier {
            self.told = tick;
        }
        is_earlier
    }

    /// Tells somebody who is about to wait which bucket comes first.
    fn tell(&mut self) -> Option<u64> {
        let next = self.next_tick();
        // While somebody is owed a wake-up, others may wait for more than this one is told.
        self.told = next.filter(|_| !self.owed).unwrap_or(u64::MAX);
        next
    }
}

impl State {
    fn next_tick(&self) -> Option<u64> {
        if self.aside.is_empty() { self.queue.next_tick() } else { Some(0) }
    }

    fn is_due(&self, now: u64) -> bool {
        self.next_tick().is_some_and(|tick| tick <= now)
    }
}

impl DelayQueue {
    /// Puts a newly armed bucket into the queue. The caller holds the lock of the bucket's shard,
    /// so no thread finds it armed and not queued. Returns whether listeners have to be woken.
    pub(crate) fn offer(&self, expiration: Expiration) -> bool {
        let mut state = self.state.lock();
        let is_earlier = state.offer(expiration);
        is_earlier && self.wake(state)
    }

    /// Wakes the threads that sleep. Returns whether there are listeners.
    fn wake(&self, state: MutexGuard<'_, State>) -> bool {
        let (sleepers, listens) = (state.sleepers, !state.wakers.is_empty());
        drop(state);
        if sleepers != 0 {
            self.changed.notify_all();
        }
        listens
    }

    /// Lets the beginning turn have the elapsed buckets. Returns whether there is anything to do at
    /// `now`. The caller holds the turn's lock, so no bucket is being flushed.
    pub(crate) fn begin_turn(&self, now: u64) -> bool {
        let mut state = self.state.lock();
        state.queue.begin_turn();
        !state.stopped && state.is_due(now)
    }

    /// Takes out what stands for the shard whose bucket is to be flushed next: none once the timer
    /// was stopped, so that whoever stops it waits for one batch and not for the turn. Returns it
    /// with the start of the next one.
    pub(crate) fn poll(&self, turn_start: u64, now: u64) -> Result<(Expiration, u64), bool> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(false);
        }
        let Some(first) = state.queue.poll(turn_start, now) else {
            return Err(!state.aside.is_empty());
        };
        let others = state.queue.peek_due(turn_start, now).map_or(u64::MAX, |next| next.start);
        Ok((first, others))
    }

    /// Leaves out a shard that is busy, until [`DelayQueue::bring_back`].
    pub(crate) fn put_aside(&self, named: Expiration) {
        self.state.lock().aside.push(named);
    }

    pub(crate) fn bring_back(&self) {
        let mut state = self.state.lock();
        let State { aside, queue, .. } = &mut *state;
        aside.drain(..).for_each(|named| queue.resume(named));
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

    /// Returns how many buckets are queued.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Returns whether a bucket is due.
    pub(crate) fn is_due(&self, time: &Time) -> bool {
        self.state.lock().is_due(time.ticks.floor(time.now()))
    }

    /// Returns when the bucket that comes first has to be flushed; after a stop none is.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        let state = self.state.lock();
        if state.stopped { None } else { state.next_tick() }
    }

    /// Waits until a bucket is due, but not beyond `until`, a time of the system's clock. Returns
    /// whether one is; false as soon as the timer was stopped.
    ///
    /// With a manual clock only moving the clock, an offer or a stop ends the wait. On a clock of
    /// the user's the thread looks again after at most [`LOOK`].
    pub(crate) fn wait(&self, time: &Time, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return false;
            }
            if state.is_due(time.ticks.floor(time.now())) {
                return true;
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return false;
            }
            state.sleepers += 1;
            let due = state.tell().map(|tick| time.instant_of_tick(tick));
            let due = due.map(|due| time.clock.system_time_of(due, LOOK));
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

    /// Returns the number of a listener.
    pub(crate) fn number_of_listener(&self) -> u64 {
        let mut state = self.state.lock();
        state.listeners += 1;
        state.listeners
    }

    /// Returns what a listener has to wait for, and lets `waker` wake it if that changes. Also
    /// returns the waker that is not needed: it is dropped where no lock is held.
    pub(crate) fn tell(
        &self,
        time: &Time,
        number: u64,
        waker: Arc<Waker>,
    ) -> (Told, Option<Arc<Waker>>) {
        let mut state = self.state.lock();
        let told = if state.stopped {
            Told::Stopped
        } else if state.is_due(time.ticks.floor(time.now())) {
            return (Told::Due, Some(waker));
        } else {
            Told::Until(state.tell().map(|tick| time.instant_of_tick(tick)))
        };
        let former = match state.wakers.iter_mut().find(|(own, _)| *own == number) {
            Some((_, former)) => Some(mem::replace(former, waker)),
            None => {
                state.wakers.push((number, waker));
                None
            }
        };
        (told, former)
    }

    /// Takes out the waker of a listener that waits no more.
    pub(crate) fn forget_listener(&self, number: u64) -> Option<Arc<Waker>> {
        let mut state = self.state.lock();
        let at = state.wakers.iter().position(|(own, _)| *own == number)?;
        Some(state.wakers.swap_remove(at).1)
    }

    /// Notes that listeners are to be woken, but not yet: whoever offers a bucket until then wakes
    /// them, though it may come later than what they are owed for.
    pub(crate) fn owe(&self) {
        let mut state = self.state.lock();
        (state.told, state.owed) = (u64::MAX, true);
    }

    /// Returns the wakers of the listeners. They stay until the timer is stopped: a thread that
    /// loses its core before it wakes them must not keep the next one from doing so.
    pub(crate) fn wakers(&self) -> Wakers {
        let mut state = self.state.lock();
        state.owed = false;
        if state.stopped { mem::take(&mut state.wakers) } else { state.wakers.clone() }
    }

    /// Ends the waits of threads, and all waits from now on. Listeners still have to be woken.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.wake(state);
    }

    /// Wakes the threads that sleep, because a manual clock has moved; the lock orders this after a
    /// look at the clock by somebody who then waits. Returns whether listeners have to be woken.
    pub(crate) fn clock_moved(&self) -> bool {
        self.wake(self.state.lock())
    }

    pub(crate) fn wakeups(&self) -> u64 {
        self.state.lock().wakeups
    }
}
