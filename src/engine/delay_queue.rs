//! The delay queue: of each shard its first bucket expiration, in binary heaps that all shards
//! share; and the place where those wait that advance the clock. As with Java's, a thread that
//! takes from it waits until the first bucket is due.
//!
//! Whoever changes what is first in a shard offers that here, while the shard is locked. So what a
//! shard has offered last is true. What it has offered before may be left in a heap: it is skipped
//! when it comes first.
//!
//! # Who waits
//! Threads sleep here. *Listeners*, futures and loops that drive the timer, wait elsewhere, and
//! leave their wakers here. Waking them runs a user's code, so a thread that offers something
//! earlier is asked to do it once it holds no lock. Threads that sleep are woken here. No waker is
//! cloned, woken or dropped under the queue's lock.
//!
//! # Why no wake-up is lost
//! A thread that goes to sleep takes these steps under the one lock:
//! 1. it looks at the queue and at the clock;
//! 2. it publishes the tick until which it sleeps, in `sleeps_until`;
//! 3. it waits.
//!
//! A thread that offers something earlier does so under that lock. If it comes before the sleeper,
//! the sleeper sees the bucket. If it comes after, it sees `sleeps_until`, and wakes all that wait.
//! Moving a manual clock takes the lock between moving the clock and waking. So a sleeper never
//! sleeps beyond the first bucket. An offer that is not earlier than `sleeps_until` wakes nobody,
//! and costs no system call. The same holds for listeners, which look and publish under the same
//! lock.

use crate::engine::clock::Time;
use crate::sync::{Condvar, HotMutex, HotMutexGuard};
use crate::wheel::expirations::First;
use crate::wheel::tick::Tick;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct DelayQueue {
    state: HotMutex<State>,
    changed: Condvar,
}

/// A shard, as the delay queue and the turns name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardId {
    /// The number of its source.
    pub(crate) source: u64,
    /// Its place among the shards of its source.
    pub(crate) ordinal: u32,
    /// Its place among the shards of the queue.
    slot: u32,
}

#[derive(Default)]
struct State {
    /// By the tick at which a bucket expires.
    waiting: Offers,
    /// By the first tick of a bucket that is being cascaded.
    cascading: Offers,
    /// By their slots.
    shards: Vec<ShardId>,
    /// Slots of shards that were removed.
    free_slots: Vec<u32>,
    /// How many turns have begun.
    turns: u64,
    sleepers: usize,
    /// By number. Wakers are counted, because they are cloned and dropped under the lock, where no
    /// user code may run.
    listeners: BTreeMap<u64, Arc<Waker>>,
    /// How many listeners have been given a number.
    numbers: u64,
    /// No thread sleeps, and no listener waits, beyond this tick.
    sleeps_until: Tick,
    stopped: bool,
    wakeups: u64,
}

/// Of each shard at most one bucket.
#[derive(Default)]
struct Offers {
    /// Holds everything that is in `last` and comes, and what was offered before.
    heap: BinaryHeap<Reverse<Offer>>,
    /// What each shard has offered last, by its slot.
    last: Vec<Offer>,
}

/// Orders buckets by their tick. Those whose tick was flushed in this turn come behind the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    tick: Tick,
    turn: u64,
    /// The slot of the shard: short, because heaps move it about.
    slot: u32,
}

/// What a listener has to wait for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// For nothing: a bucket is due.
    Due,
    /// For this instant; without one, to be woken.
    Until(Option<Instant>),
    Stopped,
}

/// A turn that has begun: which tick the present was in, and the turn's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnStart {
    pub(crate) tick: Tick,
    pub(crate) number: u64,
}

/// What a turn does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnAction {
    /// Flushes the shard's bucket of this tick, or cascades what has to be cascaded before.
    FlushDue(ShardId, Tick),
    /// Cascades something that is not needed yet.
    CascadeEarly(ShardId),
    /// Waits: all that is due lies in shards that other threads hold.
    WaitForBusy,
    End,
}

/// How long a wait on a clock of the user's may be, which may leap.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Offers {
    /// Notes what comes first in a shard.
    fn offer(&mut self, offer: Offer) {
        let before = mem::replace(&mut self.last[offer.slot as usize], offer);
        if offer.tick == Tick::NEVER || offer == before {
            return;
        }
        self.heap.push(Reverse(offer));
        // What was offered before stays in the heap until it comes first, or there is much of it.
        // To make the heap anew takes time for each shard, but as much was offered before.
        if self.heap.len() > 4 * self.last.len() + 64 {
            let last = self.last.iter().filter(|offer| offer.tick < Tick::NEVER);
            self.heap = last.copied().map(Reverse).collect();
        }
    }

    /// Returns what comes first, but for shards that are `busy`.
    fn first(&mut self, busy: &[ShardId]) -> Option<Offer> {
        let mut passed_over = Vec::new();
        let first = loop {
            let Some(&Reverse(offer)) = self.heap.peek() else { break None };
            let is_last = self.last[offer.slot as usize] == offer;
            if is_last && !busy.iter().any(|shard| shard.slot == offer.slot) {
                break Some(offer);
            }
            self.heap.pop();
            if is_last {
                passed_over.push(Reverse(offer));
            }
        };
        // Seldom: extending by nothing takes as long as the rest.
        if !passed_over.is_empty() {
            self.heap.extend(passed_over);
        }
        first
    }
}

impl State {
    /// Returns the first tick at which there is something to do; what cascades is done at once.
    fn next_tick(&mut self) -> Tick {
        if self.cascading.first(&[]).is_some() {
            return Tick(0);
        }
        self.waiting.first(&[]).map_or(Tick::NEVER, |first| first.tick)
    }

    fn is_due(&mut self, present: Tick) -> bool {
        self.next_tick() <= present
    }

    /// Publishes how long somebody waits who is about to: until the first bucket is due. Returns
    /// that.
    fn sleep(&mut self, time: &Time) -> Option<Instant> {
        self.sleeps_until = self.next_tick();
        (self.sleeps_until < Tick::NEVER).then(|| time.instant_of_tick(self.sleeps_until))
    }
}

impl DelayQueue {
    /// Adds a shard, in which nothing is pending.
    pub(crate) fn add_shard(&self, source: u64, ordinal: u32) -> ShardId {
        let mut state = self.state.lock();
        if let Some(slot) = state.free_slots.pop() {
            let shard = ShardId { source, ordinal, slot };
            state.shards[slot as usize] = shard;
            return shard;
        }
        let slot = state.shards.len() as u32;
        let never = Offer { tick: Tick::NEVER, turn: 0, slot };
        state.waiting.last.push(never);
        state.cascading.last.push(never);
        state.shards.push(ShardId { source, ordinal, slot });
        ShardId { source, ordinal, slot }
    }

    /// Removes a shard: no turn finds it any more.
    pub(crate) fn remove_shard(&self, shard: ShardId) {
        self.offer(shard, First::NEVER);
        self.state.lock().free_slots.push(shard.slot);
    }

    /// Notes what comes first in a shard, which the caller holds. Wakes the threads that sleep
    /// longer. Returns whether listeners have to be woken.
    pub(crate) fn offer(&self, shard: ShardId, first: First) -> bool {
        let (First { tick, turn, cascade }, slot) = (first, shard.slot);
        let mut state = self.state.lock();
        state.waiting.offer(Offer { tick, turn, slot });
        state.cascading.offer(Offer { tick: cascade, turn: 0, slot });
        let tick = if cascade < Tick::NEVER { Tick(0) } else { tick };
        if tick >= state.sleeps_until {
            return false;
        }
        state.sleeps_until = tick;
        self.wake(state)
    }

    /// Wakes the threads that sleep. Returns whether there are listeners.
    fn wake(&self, state: HotMutexGuard<'_, State>) -> bool {
        let (sleepers, listens) = (state.sleepers, !state.listeners.is_empty());
        drop(state);
        if sleepers != 0 {
            self.changed.notify_all();
        }
        listens
    }

    /// Begins a turn, unless there is nothing to do in the present tick.
    pub(crate) fn begin_turn(&self, tick: Tick) -> Option<TurnStart> {
        let mut state = self.state.lock();
        if state.stopped || !state.is_due(tick) {
            return None;
        }
        state.turns += 1;
        Some(TurnStart { tick, number: state.turns })
    }

    /// Returns what a turn does next, which has found these shards `busy`. It ends once the timer
    /// was stopped, so that whoever stops it waits for one batch and not for the turn.
    ///
    /// The turn flushes all ticks before its own as often as there is something in them, and its
    /// own once in each shard. So it ends whatever its tasks add. After that it `cascades_early`,
    /// or ends.
    pub(crate) fn next(
        &self,
        turn: TurnStart,
        cascades_early: bool,
        busy: &[ShardId],
    ) -> TurnAction {
        let mut state = self.state.lock();
        if state.stopped {
            return TurnAction::End;
        }
        let cascading = state.cascading.first(busy);
        let is_in_turn = |first: &Offer| (first.tick, first.turn) < (turn.tick, turn.number);
        let waiting = state.waiting.first(busy).filter(is_in_turn);
        // What joined the bucket of the next tick may be due by now.
        let needed = cascading.filter(|first| first.tick <= turn.tick.next());
        // Of two with the same tick, what cascades comes first: it may hold what is due then.
        let due = needed.into_iter().chain(waiting).min_by_key(|first| first.tick);
        if let Some(first) = due {
            return TurnAction::FlushDue(state.shards[first.slot as usize], first.tick);
        }
        match cascading {
            Some(first) if cascades_early => {
                TurnAction::CascadeEarly(state.shards[first.slot as usize])
            }
            _ if busy.is_empty() => TurnAction::End,
            _ => TurnAction::WaitForBusy,
        }
    }

    /// Returns the shard whose bucket comes first, due or not.
    pub(crate) fn first(&self) -> Option<ShardId> {
        let mut state = self.state.lock();
        let first = state.cascading.first(&[]).or_else(|| state.waiting.first(&[]));
        first.map(|first| state.shards[first.slot as usize])
    }

    pub(crate) fn is_due(&self, present: Tick) -> bool {
        self.state.lock().is_due(present)
    }

    /// Returns when the bucket that comes first has to be flushed; after a stop none is.
    pub(crate) fn next_tick(&self) -> Option<Tick> {
        let mut state = self.state.lock();
        let next = if state.stopped { Tick::NEVER } else { state.next_tick() };
        (next < Tick::NEVER).then_some(next)
    }

    /// Waits until a bucket is due, but not beyond `until`. Returns whether one is; false as soon
    /// as the timer was stopped.
    ///
    /// With a manual clock only moving the clock, an earlier bucket or a stop ends the wait.
    pub(crate) fn wait(&self, time: &Time, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return false;
            }
            if state.is_due(time.present()) {
                return true;
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return false;
            }
            state.sleepers += 1;
            let due = state.sleep(time).filter(|_| time.clock.as_manual().is_none());
            let due = due.map(|due| time.clock.system_time_of(due, LOOK_AGAIN));
            state = self.changed.wait(state, due.into_iter().chain(until).min());
            state.sleepers -= 1;
            state.wakeups += 1;
        }
    }

    /// Returns the number of a listener.
    pub(crate) fn number_of_listener(&self) -> u64 {
        let mut state = self.state.lock();
        state.numbers += 1;
        state.numbers
    }

    /// Returns what a listener has to wait for, and lets `waker` wake it if that changes. Also
    /// returns the waker that is not needed: it is dropped where no lock is held.
    pub(crate) fn listen(
        &self,
        time: &Time,
        number: u64,
        waker: Arc<Waker>,
    ) -> (Awaited, Option<Arc<Waker>>) {
        let mut state = self.state.lock();
        let awaited = if state.stopped {
            Awaited::Stopped
        } else if state.is_due(time.present()) {
            return (Awaited::Due, Some(waker));
        } else {
            Awaited::Until(state.sleep(time))
        };
        (awaited, state.listeners.insert(number, waker))
    }

    /// Takes out the waker of a listener that waits no more.
    pub(crate) fn forget_listener(&self, number: u64) -> Option<Arc<Waker>> {
        self.state.lock().listeners.remove(&number)
    }

    /// Returns the wakers of the listeners. They stay until the timer is stopped: a thread that
    /// loses its core before it wakes them must not keep the next one from doing so.
    pub(crate) fn wakers(&self) -> Vec<Arc<Waker>> {
        let mut state = self.state.lock();
        if state.stopped {
            return mem::take(&mut state.listeners).into_values().collect();
        }
        state.listeners.values().cloned().collect()
    }

    /// Ends the waits of threads, and all waits from now on. Listeners still have to be woken.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.wake(state);
    }

    /// Returns whether turns have ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
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
