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
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{HotMutex, thread_local};
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
        let seeded = context
            .time
            .clock
            .as_manual()
            .filter(|clock| clock.is_seeded());
        Some(Turn {
            start,
            has_cascaded: false,
            seeded,
            deferred: Vec::new(),
            tick: start.tick,
        })
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
        let Some(clock) = self.seeded.filter(|_| self.tick != next) else {
            return false;
        };
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

/// The list of a timer's sources.
///
/// Each step of a turn looks its source up under the list's lock, and callers may ask for `len` and
/// `stats` without a pause. So the lock never yields, and is held for a look-up or a change only:
/// whoever visits all sources does so without it, in a copy of the list.
///
/// A turn keeps no copy: a source that registers during the turn may be due in it, and one that was
/// removed must not be kept alive until the turn ends.
#[derive(Default)]
pub(crate) struct Sources {
    list: HotMutex<List>,
    /// Whether sources that register from now on are closed at once. Changed under the list's lock,
    /// and read without it: a loop that asks `is_shutdown` makes no turn wait.
    closed: AtomicBool,
}

/// Sources by number. No number is given twice.
type ByNumber = BTreeMap<u64, Arc<dyn Source>>;

#[derive(Default)]
struct List {
    /// Shared with those who visit all sources; copied before a change only if somebody does.
    sources: Arc<ByNumber>,
    numbers: u64,
    /// The counts of sources that have gone.
    departed: Counters,
}

impl Sources {
    pub(crate) fn register<S: Source + 'static>(
        &self,
        make: impl FnOnce(u64) -> Arc<S>,
    ) -> (u64, Arc<S>) {
        let mut list = self.list.lock();
        list.numbers += 1;
        let number = list.numbers;
        drop(list);
        let source = make(number);
        let registered: Arc<dyn Source> = Arc::clone(&source) as _;
        let mut list = self.list.lock();
        Arc::make_mut(&mut list.sources).insert(number, Arc::clone(&registered));
        // Asked under the lock: a thread that closes the sources has set this before, or finds this
        // source in the list.
        let is_closed = self.is_closed();
        drop(list);
        if is_closed {
            registered.shards().for_each(AnyShard::close);
        }
        (number, source)
    }

    /// Removes a source, and drops what is left in it. In its shards only what somebody still holds
    /// may be left.
    pub(crate) fn remove(&self, number: u64) {
        let Some(source) = self.get(number) else {
            return;
        };
        let mut counters = Counters::default();
        source
            .shards()
            .for_each(|shard| shard.detach(&mut counters));
        let mut list = self.list.lock();
        list.departed.absorb(&counters);
        Arc::make_mut(&mut list.sources).remove(&number);
        drop(list);
        source.clear();
    }

    /// Always inlined: each step of a turn looks its source up, and the call cost 0.3 % of K3.
    #[inline(always)]
    pub(crate) fn get(&self, number: u64) -> Option<Arc<dyn Source>> {
        self.list.lock().sources.get(&number).cloned()
    }

    pub(crate) fn all(&self) -> Arc<ByNumber> {
        Arc::clone(&self.list.lock().sources)
    }

    /// Returns the counts of all sources, also of those that have gone.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let mut counted = Vec::new();
        for (number, source) in &*self.all() {
            let mut counters = Counters::default();
            let pending = source
                .shards()
                .map(|shard| shard.count(&mut counters))
                .sum();
            source.count(&mut stats);
            counted.push((*number, counters, pending));
        }
        let list = self.list.lock();
        // A source that left meanwhile was counted as it left.
        counted.retain(|(number, ..)| list.sources.contains_key(number));
        stats.absorb(&list.departed, 0);
        drop(list);
        for (_, counters, pending) in counted {
            stats.absorb(&counters, pending);
        }
        stats
    }

    pub(crate) fn close(&self) {
        let list = self.list.lock();
        // Release: a thread that sees the end also sees that the reaper has stopped.
        self.closed.store(true, Ordering::Release);
        drop(list);
        for source in self.all().values() {
            source.shards().for_each(AnyShard::close);
        }
    }

    /// Takes no lock. Acquire: see [`close`](Self::close).
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Forgets the sources: a listener may keep the engine for longer, but not the user's code.
    pub(crate) fn forget(&self) {
        let sources = mem::take(&mut self.list.lock().sources);
        drop(sources);
    }
}
