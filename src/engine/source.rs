//! The source: shards of one kind, and what becomes of the entries that expire in them.
//!
//! A timer's entries, keyed timers, purgatories and sleeping futures are sources. A turn only says
//! which shard comes first.
//!
//! On a seeded clock, a turn collects what expires in the same tick, and hands it over one by one
//! in an order that the seed decides.

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

/// Shards of one kind.
pub(crate) trait Source: Send + Sync {
    /// Flushes a batch of a shard's first bucket, and hands over what expired with no lock held.
    /// Returns the number; `None` if another thread holds the shard.
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize>;

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard>;

    /// Adds the counts from outside the shards. A source that has such counts is never removed.
    fn count(&self, _: &mut Stats) {}

    /// Drops what is left when the source was removed.
    fn clear(&self) {}

    fn assert_invariants(&self);
}

impl dyn Source {
    pub(crate) fn shards(&self) -> impl Iterator<Item = &dyn AnyShard> {
        (0..).map_while(|ordinal| self.shard(ordinal))
    }
}

/// The maximum nesting of turns on one thread, where tasks advance the clock. Bounds the stack.
const MAX_NESTED: u32 = 8;

thread_local! {
    static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// A turn that is under way, as sources see it.
pub(crate) struct Turn<'a> {
    pub(crate) start: TurnStart,
    /// Whether a bucket was cascaded early.
    pub(crate) has_cascaded: bool,
    seeded: Option<&'a ManualClock>,
    /// What expired in `tick` and waits to be handed over; only on a seeded clock.
    deferred: Vec<Box<dyn FnOnce()>>,
    tick: Tick,
}

impl<'a> Turn<'a> {
    pub(crate) fn begin(context: &'a TimerContext) -> Option<Self> {
        let start = context.delay_queue.begin_turn(context.time.present())?;
        TURNS.with(|turns| turns.set(turns.get() + 1));
        let seeded = context.time.clock.as_manual().filter(|clock| clock.is_seeded());
        let (deferred, tick) = (Vec::new(), start.tick);
        Some(Turn { start, has_cascaded: false, seeded, deferred, tick })
    }

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

    /// Hands over what was deferred, in the order of the seed, unless the `next` flush is of the
    /// same tick. Returns whether there was anything.
    pub(crate) fn hand_over_deferred(&mut self, next: Tick) -> bool {
        let Some(clock) = self.seeded.filter(|_| self.tick != next) else { return false };
        self.tick = next;
        let mut deferred = mem::take(&mut self.deferred);
        let was_any = !deferred.is_empty();
        // Each of the rest has the same chance.
        while !deferred.is_empty() {
            let nth = clock.below(deferred.len());
            // The executor's panics are contained; this is the drop of a refused task.
            catch_panic(deferred.swap_remove(nth));
        }
        was_any
    }
}

impl Drop for Turn<'_> {
    /// Also after a panic.
    fn drop(&mut self) {
        TURNS.with(|turns| turns.set(turns.get() - 1));
    }
}

#[derive(Default)]
pub(crate) struct Sources(Mutex<State>);

#[derive(Default)]
struct State {
    /// By number; no number is given twice.
    sources: BTreeMap<u64, Arc<dyn Source>>,
    numbers: u64,
    /// The counts of sources that have gone.
    departed: Counters,
    /// Whether sources that register from now on are closed at once.
    closed: bool,
}

impl Sources {
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
        // A thread that closes the sources after this finds this one.
        if self.is_closed() {
            registered.shards().for_each(AnyShard::close);
        }
        (number, source)
    }

    /// Removes a source, in whose shards only what somebody still holds may be left.
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

    pub(crate) fn all(&self) -> BTreeMap<u64, Arc<dyn Source>> {
        self.0.lock().sources.clone()
    }

    /// Returns the counts of all sources, also of those that have gone.
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
        // A source that left meanwhile was counted as it left.
        counted.retain(|(number, ..)| state.sources.contains_key(number));
        stats.absorb(&state.departed, 0);
        drop(state);
        for (_, counters, pending) in counted {
            stats.absorb(&counters, pending);
        }
        stats
    }

    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        for source in self.all().values() {
            source.shards().for_each(AnyShard::close);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Forgets the sources: a listener may keep the engine for longer, but not the user's code.
    pub(crate) fn forget(&self) {
        let sources = mem::take(&mut self.0.lock().sources);
        drop(sources);
    }
}
