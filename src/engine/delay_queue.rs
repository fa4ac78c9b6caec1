//! The delay queue: the first bucket expiration of each shard, in binary heaps that all shards
//! share. Threads that advance the clock wait here until the first bucket is due, as with Java's.
//!
//! A change of a shard's first bucket is offered under the shard's lock, so a shard's last offer is
//! true. An earlier offer may be left in a heap, and is skipped when it comes first.
//!
//! # Who waits
//! Threads sleep here. *Listeners*, futures and loops that drive the timer, wait elsewhere and
//! leave their wakers here. Wakers are user code: none is cloned, woken or dropped under the
//! queue's lock. A thread that offers something earlier wakes sleeping threads here, and listeners
//! once it holds no lock.
//!
//! # Why no wake-up is lost
//! A thread that goes to sleep takes these steps under the one lock, and a listener the first two:
//! 1. it looks at the queue and at the clock;
//! 2. it publishes the tick until which it sleeps, in `sleeps_until`;
//! 3. it waits.
//!
//! An earlier offer takes that lock. If it comes before the sleeper, the sleeper sees the bucket.
//! If it comes after, it sees `sleeps_until`, and wakes all that wait. A manual clock takes the
//! lock between moving and waking. An offer that is not earlier than `sleeps_until` wakes nobody,
//! and costs no system call.

use crate::engine::clock::Time;
use crate::sync::atomic::{AtomicU64, Ordering};
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
    /// The tick in which a turn was last looked for. Relaxed: a time that has come, and no more.
    reached: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardId {
    pub(crate) source: u64,
    /// The shard's place in its source.
    pub(crate) ordinal: u32,
    /// Its place in the queue's `shards`.
    slot: u32,
}

#[derive(Default)]
struct State {
    /// By the tick at which a bucket expires.
    waiting: Offers,
    /// By the first tick of a bucket that is being cascaded.
    cascading: Offers,
    shards: Vec<ShardId>,
    free_slots: Vec<u32>,
    turns: u64,
    sleepers: usize,
    /// By number. In an `Arc`, because no user code may run under the lock.
    listeners: BTreeMap<u64, Arc<Waker>>,
    /// How many numbers were given.
    numbers: u64,
    /// No thread sleeps, and no listener waits, beyond this tick.
    sleeps_until: Tick,
    stopped: bool,
    wakeups: u64,
}

#[derive(Default)]
struct Offers {
    /// Everything in `last` that comes, and earlier offers.
    heap: BinaryHeap<Reverse<Offer>>,
    /// The last offer of each shard, by its slot.
    last: Vec<Offer>,
}

/// Orders buckets by their tick. Buckets whose tick was flushed in this turn come last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    tick: Tick,
    turn: u64,
    /// Short, because heaps move it about.
    slot: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// A bucket is due.
    Due,
    /// This instant; `None`: until it is woken.
    Until(Option<Instant>),
    Stopped,
}

/// A turn that has begun: the tick of the present, and the turn's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnStart {
    pub(crate) tick: Tick,
    pub(crate) number: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnAction {
    /// Flushes the shard's bucket of this tick, or first cascades what must be cascaded before.
    FlushDue(ShardId, Tick),
    /// Cascades a bucket that is not needed yet.
    CascadeEarly(ShardId),
    /// Other threads hold all shards with due buckets.
    WaitForBusy,
    End,
}

/// The longest wait on a user's clock, which may leap.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Offers {
    fn offer(&mut self, offer: Offer) {
        let before = mem::replace(&mut self.last[offer.slot as usize], offer);
        if offer.tick == Tick::NEVER || offer == before {
            return;
        }
        self.heap.push(Reverse(offer));
        // Rebuilt when most of it is stale: the time per shard is covered by as many offers.
        if self.heap.len() > 4 * self.last.len() + 64 {
            let last = self.last.iter().filter(|offer| offer.tick < Tick::NEVER);
            self.heap = last.copied().map(Reverse).collect();
        }
    }

    /// Returns the first offer of the shards that are not `busy`.
    fn first(&mut self, busy: &[ShardId]) -> Option<Offer> {
        let mut passed_over = Vec::new();
        let first = loop {
            let Some(&Reverse(offer)) = self.heap.peek() else {
                break None;
            };
            let is_last = self.last[offer.slot as usize] == offer;
            if is_last && !busy.iter().any(|shard| shard.slot == offer.slot) {
                break Some(offer);
            }
            self.heap.pop();
            if is_last {
                passed_over.push(Reverse(offer));
            }
        };
        // Tested, because extending by nothing takes as long as the rest.
        if !passed_over.is_empty() {
            self.heap.extend(passed_over);
        }
        first
    }
}

impl State {
    /// Returns the first tick with something to do. Cascades are done at once.
    fn next_tick(&mut self) -> Tick {
        if self.cascading.first(&[]).is_some() {
            return Tick(0);
        }
        self.waiting
            .first(&[])
            .map_or(Tick::NEVER, |first| first.tick)
    }

    fn is_due(&mut self, present: Tick) -> bool {
        self.next_tick() <= present
    }

    /// Publishes that somebody is about to wait until the first bucket is due. Returns that time.
    fn sleep(&mut self, time: &Time) -> Option<Instant> {
        self.sleeps_until = self.next_tick();
        (self.sleeps_until < Tick::NEVER).then(|| time.instant_of_tick(self.sleeps_until))
    }
}

impl DelayQueue {
    pub(crate) fn add_shard(&self, source: u64, ordinal: u32) -> ShardId {
        let mut state = self.state.lock();
        let free = state.free_slots.pop();
        let slot = free.unwrap_or(state.shards.len() as u32);
        let shard = ShardId {
            source,
            ordinal,
            slot,
        };
        if free.is_some() {
            state.shards[slot as usize] = shard;
            return shard;
        }
        let never = Offer {
            tick: Tick::NEVER,
            turn: 0,
            slot,
        };
        state.waiting.last.push(never);
        state.cascading.last.push(never);
        state.shards.push(shard);
        shard
    }

    pub(crate) fn remove_shard(&self, shard: ShardId) {
        self.offer(shard, First::NEVER);
        self.state.lock().free_slots.push(shard.slot);
    }

    /// Notes the first bucket of a shard that the caller holds. Wakes the threads that sleep
    /// longer. Returns whether anybody waits: listeners have to be woken.
    pub(crate) fn offer(&self, shard: ShardId, first: First) -> bool {
        let First {
            tick,
            turn,
            cascade,
        } = first;
        let slot = shard.slot;
        let mut state = self.state.lock();
        state.waiting.offer(Offer { tick, turn, slot });
        state.cascading.offer(Offer {
            tick: cascade,
            turn: 0,
            slot,
        });
        // mutants(>): only the pace. What is not cascaded early is cascaded before its flush.
        let tick = if cascade < Tick::NEVER { Tick(0) } else { tick };
        if tick >= state.sleeps_until {
            return false;
        }
        state.sleeps_until = tick;
        self.wake(state)
    }

    /// Wakes the threads that sleep. Returns whether there are any, or listeners.
    fn wake(&self, state: HotMutexGuard<'_, State>) -> bool {
        let sleepers = state.sleepers;
        let listens = !state.listeners.is_empty();
        drop(state);
        if sleepers != 0 {
            self.changed.notify_all();
        }
        sleepers != 0 || listens
    }

    /// Begins a turn, unless nothing is to be done in the present tick.
    pub(crate) fn begin_turn(&self, tick: Tick) -> Option<TurnStart> {
        self.reached.store(tick.0, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.stopped || !state.is_due(tick) {
            return None;
        }
        state.turns += 1;
        Some(TurnStart {
            tick,
            number: state.turns,
        })
    }

    /// Returns the number of the last turn that has begun.
    pub(crate) fn turns(&self) -> u64 {
        self.state.lock().turns
    }

    /// Returns a tick that has come: that of the present when a turn was last looked for.
    #[inline]
    pub(crate) fn reached(&self) -> Tick {
        Tick(self.reached.load(Ordering::Relaxed))
    }

    /// Returns the next step of a turn. The turn has found these shards `busy`: other threads hold
    /// their locks.
    ///
    /// A turn flushes earlier ticks as often as they hold something, and its own tick once in each
    /// shard: it ends, whatever its tasks add. After that it `cascades_early`, or ends.
    ///
    /// The digits in the body are those of turn 5, which begins at 71.6 ms. A tick is a
    /// millisecond, so this is the turn of tick 71.
    pub(crate) fn next(
        &self,
        turn: TurnStart,
        cascades_early: bool,
        busy: &[ShardId],
    ) -> TurnAction {
        let mut state = self.state.lock();
        // Even if something is due: a shutdown waits for one batch only.
        if state.stopped {
            return TurnAction::End;
        }
        // A busy shard is never named. It still comes first, so the turn would be given the same
        // shard again and again while its holder waits for a core, and no other shard.
        let cascading = state.cascading.first(busy);
        // By the tick alone, a task that adds itself again without a delay would keep the turn
        // from ending:
        // 1. A shard offers (71, 0). Turn 5 flushes the bucket, and the task runs. What is added
        //    late is filed under the present tick, so the bucket of tick 71 is armed again.
        // 2. The shard offers (71, 5): this tick was flushed in turn 5. That is not before
        //    (71, 5), so it is left to turn 6.
        // Nor is (71, 6) in turn 5: it was flushed in a turn of another thread, which began later.
        // No task adds anything under an earlier tick, so (70, 0) is flushed until it is empty.
        let is_in_turn = |first: &Offer| (first.tick, first.turn) < (turn.tick, turn.number);
        let waiting = state.waiting.first(busy).filter(is_in_turn);
        // A cascade must be over before its first tick is flushed. The one that begins with tick 72
        // is needed in turn 5 as well, because it may hold a timer that is due:
        // 1. The bucket of the ticks 72 to 75 waits in an overflow wheel. Nothing was flushed since
        //    tick 60.
        // 2. At 71.6 ms a thread adds a timer for 71.4 ms. Rounded up, that is tick 72. The bucket
        //    is armed, so the timer joins it, and no clock is read that would tell that the time is
        //    up.
        // 3. In turn 5 the cascade compares the deadline with the clock, and files the timer under
        //    tick 71.
        // Without that, the turn could end while a timer is pending that was due when it began.
        let needed = cascading.filter(|first| first.tick <= turn.tick.next());
        // `min_by_key` returns the first of two with the same tick: the cascade. If tick 71 were
        // flushed before a cascade that begins with it, the shard would offer (71, 5), and the
        // timers that the cascade files under tick 71 would wait for turn 6. If one shard has both,
        // its flush begins with the cascade, whichever of the two it was named for.
        let due = needed
            .into_iter()
            .chain(waiting)
            .min_by_key(|first| first.tick);
        if let Some(first) = due {
            return TurnAction::FlushDue(state.shards[first.slot as usize], first.tick);
        }
        // Nothing is due any more, but where other threads are at work. A cascade that begins with
        // tick 96, say, is not needed yet. It is not named if tick 71 of its shard is armed again,
        // because a flush of that shard takes tick 71 first:
        // 1. The turn asks for the cascade. The flush takes the task of tick 71, which runs, and
        //    adds itself without a delay.
        // 2. Nothing was cascaded, and the next step is 1 again: on a clock that stands still, the
        //    turn never ends.
        // The cascade is left to later turns: at the latest, that of tick 95 needs it. Cascades of
        // other shards are left as well, because they begin later and are needed later.
        let comes_first = |offer: &Offer| state.waiting.last[offer.slot as usize].tick > turn.tick;
        match cascading.filter(comes_first) {
            Some(first) if cascades_early => {
                TurnAction::CascadeEarly(state.shards[first.slot as usize])
            }
            // No shard was passed over, so nothing of this turn is left.
            _ if busy.is_empty() => TurnAction::End,
            // Each busy shard was named to this turn before it was found busy, so it may hold what
            // is due: the turn tries again once it has slept for a moment.
            _ => TurnAction::WaitForBusy,
        }
    }

    /// Returns the shard whose bucket comes first, due or not.
    pub(crate) fn first(&self) -> Option<ShardId> {
        let mut state = self.state.lock();
        let first = state
            .cascading
            .first(&[])
            .or_else(|| state.waiting.first(&[]));
        first.map(|first| state.shards[first.slot as usize])
    }

    pub(crate) fn is_due(&self, present: Tick) -> bool {
        self.state.lock().is_due(present)
    }

    /// Returns when the first bucket has to be flushed; `None` after a stop.
    pub(crate) fn next_tick(&self) -> Option<Tick> {
        let mut state = self.state.lock();
        if state.stopped {
            return None;
        }
        let next = state.next_tick();
        (next < Tick::NEVER).then_some(next)
    }

    /// Waits until a bucket is due, but not beyond `until`. Returns whether one is due; false once
    /// the timer was stopped. On a manual clock, waits until the clock moves, an earlier bucket or
    /// a stop.
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
            let due = state.sleep(time).filter(|_| !time.clock.is_manual());
            let due = due.map(|due| time.clock.system_time_of(due, LOOK_AGAIN));
            // After a user's clock was read, which may panic. The lock was not released since the
            // look at the queue, and whoever reads this takes it.
            state.sleepers += 1;
            state = self.changed.wait(state, due.into_iter().chain(until).min());
            state.sleepers -= 1;
            state.wakeups += 1;
        }
    }

    pub(crate) fn number_of_listener(&self) -> u64 {
        let mut state = self.state.lock();
        state.numbers += 1;
        state.numbers
    }

    /// Returns what a listener waits for, and lets `waker` wake it. Also returns the waker to be
    /// dropped where no lock is held.
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
        // The waker is kept even if the queue is stopped: `Engine::close` wakes the listeners once
        // more when the sources are closed. A listener that looked before that must learn of it.
        (awaited, state.listeners.insert(number, waker))
    }

    pub(crate) fn forget_listener(&self, number: u64) -> Option<Arc<Waker>> {
        self.state.lock().listeners.remove(&number)
    }

    /// Returns the wakers of the listeners. They stay until the timer is stopped: a thread that
    /// loses its core before it wakes them must not keep the next thread from doing so.
    pub(crate) fn wakers(&self) -> Vec<Arc<Waker>> {
        let mut state = self.state.lock();
        if state.stopped {
            return mem::take(&mut state.listeners).into_values().collect();
        }
        state.listeners.values().cloned().collect()
    }

    /// Ends all waits of threads, now and later. Listeners still have to be woken.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.wake(state);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Wakes the threads that sleep, because a manual clock has moved. The lock orders this after
    /// the look at the clock of a thread that then waits. Returns whether listeners have to be
    /// woken.
    pub(crate) fn clock_moved(&self) -> bool {
        self.wake(self.state.lock())
    }

    pub(crate) fn wakeups(&self) -> u64 {
        self.state.lock().wakeups
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use crate::engine::clock::Clock;
    use crate::engine::report::catch_panic;
    use crate::wheel::tick::TickLength;
    use std::sync::atomic::AtomicU32;

    /// Seen to fail: the last reading is made after the look at the queue, and left a sleeper.
    #[test]
    fn nobody_sleeps_whose_clock_has_panicked() {
        for panics_at in 1..4 {
            let readings = Arc::new(AtomicU32::new(0));
            let start = Instant::now();
            let own = Arc::clone(&readings);
            let read = move || {
                let reading = own.fetch_add(1, Ordering::Relaxed);
                assert!(reading != panics_at, "which is what the test is about");
                start
            };
            let time = Time::new(Clock::reading(read), TickLength::new(1_000_000));
            let queue = DelayQueue::default();
            let shard = queue.add_shard(1, 0);
            let first = First {
                tick: Tick(5),
                turn: 0,
                cascade: Tick::NEVER,
            };
            queue.offer(shard, first);
            let waited = catch_panic(|| queue.wait(&time, None));
            assert!(waited.is_none(), "{panics_at}");
            assert_eq!(queue.state.lock().sleepers, 0, "{panics_at}");
        }
    }
}
