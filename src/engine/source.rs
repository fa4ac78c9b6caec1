//! The source: shards of one kind, and what becomes of the entries that expire in them.
//!
//! A timer's entries, keyed timers, purgatories and sleeping futures are sources. A turn knows
//! neither what lies in their shards nor where it goes: it only says which shard comes first.
//!
//! On a seeded clock, what expires in the same tick is handed over one by one, in an order that the
//! seed decides, once all of it was taken out. So sources leave that to the turn.

use crate::engine::delay_queue::TurnStart;
use crate::engine::manual_clock::ManualClock;
use crate::engine::report::catch_panic;
use crate::engine::shard::{AnyShard, TimerContext};
use crate::engine::stats::Stats;
use crate::sync::{Mutex, thread_local};
use crate::wheel::counters::Counters;
use crate::wheel::tick::Tick;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

/// Shards of one kind; see the [module](self).
pub(crate) trait Source: Send + Sync {
    /// Flushes a batch of a shard's bucket that comes first, and hands over what expired, with no
    /// lock held. Returns how much that was; `None` if another thread holds the shard.
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize>;

    /// Returns a shard; `None` from the number of shards on.
    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard>;

    /// Adds what was counted outside of the shards; by default, nothing is. A source that counts
    /// there is never removed.
    fn count(&self, _: &mut Stats) {}

    /// Drops what is left when the source was removed; by default, nothing is.
    fn clear(&self) {}

    /// Checks every shard, and panics if one is broken.
    fn assert_invariants(&self);
}

impl dyn Source {
    /// Returns all shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &dyn AnyShard> {
        (0..).map_while(|ordinal| self.shard(ordinal))
    }
}

/// The maximum nesting of turns on one thread: a task may advance the clock, whose tasks may do the
/// same, and so on. It bounds the stack that this takes, however much is due.
const MAX_NESTED: u32 = 8;

thread_local! {
    /// The nesting depth of turns on this thread.
    static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// A turn that is under way, as far as the sources take part in it.
pub(crate) struct Turn<'a> {
    pub(crate) start: TurnStart,
    /// Whether something was cascaded before it had to be.
    pub(crate) has_cascaded: bool,
    /// The clock, if it is seeded.
    seeded: Option<&'a ManualClock>,
    /// What expired in `tick` and was not handed over yet; only on a seeded clock.
    deferred: Vec<Box<dyn FnOnce()>>,
    tick: Tick,
}

impl<'a> Turn<'a> {
    /// Begins a turn, unless there is nothing to do.
    pub(crate) fn begin(context: &'a TimerContext) -> Option<Self> {
        let start = context.delay_queue.begin_turn(context.time.present())?;
        TURNS.with(|turns| turns.set(turns.get() + 1));
        let seeded = context.time.clock.as_manual().filter(|clock| clock.is_seeded());
        let (deferred, tick) = (Vec::new(), start.tick);
        Some(Turn { start, has_cascaded: false, seeded, deferred, tick })
    }

    /// Returns whether this thread may not begin another turn.
    pub(crate) fn is_nested_too_deep() -> bool {
        TURNS.with(Cell::get) >= MAX_NESTED
    }

    /// On a seeded clock, keeps what has expired for the end of its tick, and returns true.
    pub(crate) fn defer<T>(
        &mut self,
        expired: &mut Vec<T>,
        hand_over: impl FnMut(T) -> Box<dyn FnOnce()>,
    ) -> bool {
        if self.seeded.is_some() {
            self.deferred.extend(expired.drain(..).map(hand_over));
        }
        self.seeded.is_some()
    }

    /// Hands over what was deferred, in the order of the seed, unless the `next` flush is one of
    /// the same tick. Returns whether there was anything.
    pub(crate) fn hand_over_deferred(&mut self, next: Tick) -> bool {
        let Some(clock) = self.seeded.filter(|_| self.tick != next) else { return false };
        self.tick = next;
        let mut deferred = mem::take(&mut self.deferred);
        let was_any = !deferred.is_empty();
        // Each time any of those that are left, all with the same chance.
        while !deferred.is_empty() {
            let nth = clock.below(deferred.len());
            // What the executor does is contained; here is the drop of what it has refused.
            catch_panic(deferred.swap_remove(nth));
        }
        was_any
    }
}

impl Drop for Turn<'_> {
    /// Also where what was handed over panics.
    fn drop(&mut self) {
        TURNS.with(|turns| turns.set(turns.get() - 1));
    }
}

/// The sources of a timer.
#[derive(Default)]
pub(crate) struct Sources(Mutex<State>);

#[derive(Default)]
struct State {
    /// By number; no number is given twice.
    sources: BTreeMap<u64, Arc<dyn Source>>,
    /// How many numbers were given.
    numbers: u64,
    /// What those have counted that have gone.
    departed: Counters,
    /// Whether sources that register from now on have to be closed as well.
    closed: bool,
}

impl Sources {
    /// Registers a source, which `make` creates from its number.
    pub(crate) fn register<S: Source + 'static>(
        &self,
        make: impl FnOnce(u64) -> Arc<S>,
    ) -> (u64, Arc<S>) {
        let mut state = self.0.lock();
        state.numbers += 1;
        let number = state.numbers;
        drop(state);
        let source = make(number);
        let registered: Arc<dyn Source> = Arc::clone(&source) as _;
        self.0.lock().sources.insert(number, Arc::clone(&registered));
        // A thread that closes the sources from here on finds this one.
        if self.is_closed() {
            registered.shards().for_each(AnyShard::close);
        }
        (number, source)
    }

    /// Removes a source. Nothing may be left in its shards but what somebody still holds.
    pub(crate) fn remove(&self, number: u64) {
        let Some(source) = self.get(number) else { return };
        let mut counters = Counters::default();
        source.shards().for_each(|shard| shard.detach(&mut counters));
        let mut state = self.0.lock();
        state.departed.absorb(&counters);
        state.sources.remove(&number);
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<dyn Source>> {
        self.0.lock().sources.get(&number).cloned()
    }

    /// Returns the sources by number, to be used without the lock.
    pub(crate) fn all(&self) -> BTreeMap<u64, Arc<dyn Source>> {
        self.0.lock().sources.clone()
    }

    /// Returns what all sources have counted together, and those that have gone.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let mut counted = Vec::new();
        for (number, source) in self.all() {
            let mut counters = Counters::default();
            let pending = source.shards().map(|shard| shard.count(&mut counters)).sum();
            source.count(&mut stats);
            counted.push((number, counters, pending));
        }
        let state = self.0.lock();
        // One that has left meanwhile may have been counted in part, and was counted as it left.
        counted.retain(|(number, ..)| state.sources.contains_key(number));
        stats.absorb(&state.departed, 0);
        drop(state);
        for (_, counters, pending) in counted {
            stats.absorb(&counters, pending);
        }
        stats
    }

    /// Closes all sources: nothing can be added any more.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        for source in self.all().values() {
            source.shards().for_each(AnyShard::close);
        }
    }

    /// Returns whether `close` was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Forgets the sources. A listener may keep the engine for longer, but not the user's code.
    pub(crate) fn forget(&self) {
        let sources = mem::take(&mut self.0.lock().sources);
        drop(sources);
    }
}
