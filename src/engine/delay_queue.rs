//! The delay queue: of each shard its first bucket expiration, in heaps that all shards share; and
//! the place where those wait that advance the clock. As with Java's, a thread that takes from it
//! waits until the first bucket is due.
//!
//! Whoever changes what is first in a shard says so here, while the shard is locked. So what was
//! said last is true. Of what a shard has said before, something may be left in a heap: it is
//! skipped when it comes first.
//!
//! # Who waits
//! Threads sleep here. *Listeners*, futures and loops that drive the timer, wait elsewhere, and
//! leave their wakers here. Waking them runs a user's code, so whoever says something earlier is
//! told to do it once no lock is held. Threads that sleep are woken here. No waker is cloned, woken
//! or dropped under the queue's lock.
//!
//! # Why no wake-up is lost
//! A thread that goes to sleep takes these steps under the one lock:
//! 1. it looks at the queue and at the clock;
//! 2. it publishes the tick until which it sleeps, in `told`;
//! 3. it waits.
//!
//! A thread that says something earlier does so under that lock. If it comes before the sleeper,
//! the sleeper sees the bucket. If it comes after, it sees `told`, and wakes all that wait. Moving
//! a manual clock takes the lock between moving the clock and waking. So a sleeper never sleeps
//! beyond the first bucket. What is not earlier than `told` wakes nobody, and costs no system call.
//! The same holds for listeners, which look and publish under the same lock.

use crate::engine::clock::Time;
use crate::sync::{Condvar, HotMutex, HotMutexGuard};
use crate::wheel::expirations::First;
use crate::wheel::tick::Tick;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShardId {
    /// The number of its source.
    pub(crate) source: u32,
    /// Its place among the shards of its source.
    pub(crate) ordinal: u32,
}

/// Orders shards by the tick of their first bucket, and shards whose tick was flushed in this turn
/// behind the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    tick: Tick,
    turn: u64,
    shard: ShardId,
}

/// Orders shards by the bucket that they cascade.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cascading {
    start: Tick,
    shard: ShardId,
}

#[derive(Default)]
struct State {
    waiting: BinaryHeap<Reverse<Waiting>>,
    cascading: BinaryHeap<Reverse<Cascading>>,
    /// What each shard has said last, by source and ordinal.
    said: Vec<Box<[First]>>,
    /// How many shards there are.
    shards: usize,
    /// Shards that were busy when it was their turn; only within a step of a turn.
    aside: Vec<Aside>,
    /// How many turns have begun.
    turns: u64,
    sleepers: usize,
    listeners: Vec<Listening>,
    /// How many listeners have been given a number.
    numbers: u64,
    /// None of those that wait does so beyond this tick.
    told: Tick,
    stopped: bool,
    wakeups: u64,
}

/// A shard that takes no part for a moment, as if nothing were pending in it, and what it has said.
struct Aside {
    shard: ShardId,
    first: First,
}

/// A listener, and what wakes it: counted, because it is cloned and dropped under the lock, where
/// no user code may run.
struct Listening {
    number: u64,
    waker: Arc<Waker>,
}

/// What a listener has to wait for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Due,
    /// Waits until then; without an instant, until it is woken.
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
pub(crate) enum Next {
    /// Flushes the shard's bucket of this tick, or what has to be cascaded before.
    Flush(ShardId, Tick),
    /// Cascades something that is not needed yet.
    CascadeEarly(ShardId),
    /// Waits: all that is due lies in shards that other threads hold.
    Busy,
    /// Ends.
    Nothing,
}

/// How long a wait on a clock of the user's may be, which may leap.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl State {
    fn said(&self, shard: ShardId) -> First {
        let source = self.said.get(shard.source as usize);
        source.and_then(|of| of.get(shard.ordinal as usize)).copied().unwrap_or(First::NEVER)
    }

    /// Returns the shard whose bucket comes first.
    fn waiting(&mut self) -> Option<Waiting> {
        loop {
            let Reverse(first) = *self.waiting.peek()?;
            let said = self.said(first.shard);
            if (said.tick, said.turn) == (first.tick, first.turn) {
                return Some(first);
            }
            self.waiting.pop();
        }
    }

    /// Returns the shard that cascades the bucket that comes first.
    fn cascading(&mut self) -> Option<Cascading> {
        loop {
            let Reverse(first) = *self.cascading.peek()?;
            if self.said(first.shard).cascade == first.start {
                return Some(first);
            }
            self.cascading.pop();
        }
    }

    /// Returns the first tick at which there is something to do; what cascades is done at once.
    fn next_tick(&mut self) -> Tick {
        if !self.aside.is_empty() || self.cascading().is_some() {
            return Tick(0);
        }
        self.waiting().map_or(Tick::NEVER, |first| first.tick)
    }

    fn is_due(&mut self, present: Tick) -> bool {
        self.next_tick() <= present
    }

    /// Notes what is first in a shard. Returns what was before.
    fn replace(&mut self, shard: ShardId, first: First) -> First {
        let source = self.said.get_mut(shard.source as usize);
        let Some(said) = source.and_then(|of| of.get_mut(shard.ordinal as usize)) else {
            return First::NEVER; // The source has gone.
        };
        let before = mem::replace(said, first);
        self.push(shard, first, before);
        before
    }

    /// Notes what is first in a shard. Returns whether somebody may wait beyond it.
    fn say(&mut self, shard: ShardId, first: First) -> bool {
        if !self.aside.is_empty() {
            self.aside.retain(|aside| aside.shard != shard);
        }
        self.replace(shard, first);
        // What was said before stays in the heaps until it comes first, or there is much of it.
        if self.waiting.len() + self.cascading.len() > 4 * self.shards + 64 {
            self.forget_stale();
        }
        let tick = if first.cascade < Tick::NEVER { Tick(0) } else { first.tick };
        let is_earlier = tick < self.told;
        if is_earlier {
            self.told = tick;
        }
        is_earlier
    }

    /// Puts what is first in a shard into the heaps, as far as it differs from what was before.
    fn push(&mut self, shard: ShardId, first: First, before: First) {
        let First { tick, turn, cascade: start } = first;
        if tick < Tick::NEVER && (tick, turn) != (before.tick, before.turn) {
            self.waiting.push(Reverse(Waiting { tick, turn, shard }));
        }
        if start < Tick::NEVER && start != before.cascade {
            self.cascading.push(Reverse(Cascading { start, shard }));
        }
    }

    /// Makes the heaps anew of what is true. This takes time for each shard, but it is done only
    /// after as much was said.
    #[cold]
    fn forget_stale(&mut self) {
        self.waiting = BinaryHeap::new();
        self.cascading = BinaryHeap::new();
        let said = mem::take(&mut self.said);
        for (source, firsts) in (0..).zip(&said) {
            for (ordinal, first) in (0..).zip(firsts) {
                self.push(ShardId { source, ordinal }, *first, First::NEVER);
            }
        }
        self.said = said;
    }

    /// Tells somebody who is about to wait when the first bucket is due.
    fn tell(&mut self, time: &Time) -> Option<Instant> {
        self.told = self.next_tick();
        (self.told < Tick::NEVER).then(|| time.instant_of_tick(self.told))
    }
}

impl DelayQueue {
    /// Has a source take part, with so many shards in which nothing is pending.
    pub(crate) fn add_source(&self, source: u32, shards: usize) {
        let mut state = self.state.lock();
        let sources = state.said.len().max(source as usize + 1);
        state.said.resize(sources, Box::default());
        state.said[source as usize] = vec![First::NEVER; shards].into();
        state.shards += shards;
    }

    /// Forgets a source, whose shards have said that nothing is pending. Its number may be given to
    /// another one.
    pub(crate) fn remove_source(&self, source: u32) {
        let mut state = self.state.lock();
        let shards = state.said.get_mut(source as usize).map(mem::take);
        state.shards -= shards.map_or(0, |shards| shards.len());
    }

    /// Notes what is first in a shard, which the caller holds. Wakes the threads that sleep longer.
    /// Returns whether listeners have to be woken.
    pub(crate) fn say(&self, shard: ShardId, first: First) -> bool {
        let mut state = self.state.lock();
        state.say(shard, first) && self.wake(state)
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

    /// Returns what a turn does next: nothing once the timer was stopped, so that whoever stops it
    /// waits for one batch and not for the turn.
    ///
    /// The turn flushes all ticks before its own as often as there is something in them, and its
    /// own once in each shard. So it ends whatever its tasks add. After that it `cascades_early`,
    /// or ends.
    pub(crate) fn next(&self, turn: TurnStart, cascades_early: bool) -> Next {
        let mut state = self.state.lock();
        if state.stopped {
            return Next::Nothing;
        }
        let cascading = state.cascading();
        let is_in_turn = |first: &Waiting| (first.tick, first.turn) < (turn.tick, turn.number);
        let waiting = state.waiting().filter(is_in_turn);
        match (waiting, cascading) {
            (Some(first), cascading)
                if cascading.is_none_or(|cascading| first.tick < cascading.start) =>
            {
                Next::Flush(first.shard, first.tick)
            }
            // What joined the bucket of the next tick may be due by now.
            (_, Some(Cascading { start, shard })) if start <= turn.tick.next() => {
                Next::Flush(shard, start)
            }
            (_, Some(Cascading { shard, .. })) if cascades_early => Next::CascadeEarly(shard),
            _ if state.aside.is_empty() => Next::Nothing,
            _ => Next::Busy,
        }
    }

    /// Leaves a shard out that is busy, until [`DelayQueue::bring_back`].
    pub(crate) fn put_aside(&self, shard: ShardId) {
        let mut state = self.state.lock();
        let first = state.replace(shard, First::NEVER);
        // Another turn may have left it out just now.
        if first != First::NEVER {
            state.aside.push(Aside { shard, first });
        }
    }

    /// Lets shards take part again that were left out, unless they have said something since.
    pub(crate) fn bring_back(&self) {
        let mut state = self.state.lock();
        for Aside { shard, first } in mem::take(&mut state.aside) {
            state.replace(shard, first);
        }
    }

    /// Returns the shard whose bucket comes first, due or not.
    pub(crate) fn first(&self) -> Option<ShardId> {
        let mut state = self.state.lock();
        let cascading = state.cascading().map(|first| first.shard);
        cascading.or_else(|| state.waiting().map(|first| first.shard))
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
            let due = state.tell(time).filter(|_| time.clock.as_manual().is_none());
            let due = due.map(|due| time.clock.system_time_of(due, LOOK_AGAIN));
            state = match due.into_iter().chain(until).min() {
                Some(instant) => self.changed.wait_until(state, instant),
                None => self.changed.wait(state),
            };
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
    pub(crate) fn tell(
        &self,
        time: &Time,
        number: u64,
        waker: Arc<Waker>,
    ) -> (Told, Option<Arc<Waker>>) {
        let mut state = self.state.lock();
        let told = if state.stopped {
            Told::Stopped
        } else if state.is_due(time.present()) {
            return (Told::Due, Some(waker));
        } else {
            Told::Until(state.tell(time))
        };
        let own = state.listeners.iter_mut().find(|listening| listening.number == number);
        let former = match own {
            Some(own) => Some(mem::replace(&mut own.waker, waker)),
            None => {
                state.listeners.push(Listening { number, waker });
                None
            }
        };
        (told, former)
    }

    /// Takes out the waker of a listener that waits no more.
    pub(crate) fn forget_listener(&self, number: u64) -> Option<Arc<Waker>> {
        let mut state = self.state.lock();
        let at = state.listeners.iter().position(|listening| listening.number == number)?;
        Some(state.listeners.swap_remove(at).waker)
    }

    /// Returns the wakers of the listeners. They stay until the timer is stopped: a thread that
    /// loses its core before it wakes them must not keep the next one from doing so.
    pub(crate) fn wakers(&self) -> Vec<Arc<Waker>> {
        let mut state = self.state.lock();
        if state.stopped {
            let listeners = mem::take(&mut state.listeners);
            return listeners.into_iter().map(|listening| listening.waker).collect();
        }
        state.listeners.iter().map(|listening| Arc::clone(&listening.waker)).collect()
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
