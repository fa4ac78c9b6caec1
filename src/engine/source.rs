//! The source: shards of one kind, and what becomes of the entries that expire in them.
//!
//! A timer's entries, keyed timers, purgatories and sleeping futures are sources. A turn knows
//! neither what lies in their shards nor where it goes: it only says which shard comes first.

use crate::engine::context::TimerContext;
use crate::engine::shard::AnyShard;
use crate::engine::stats::Stats;
use crate::engine::turn::Turn;
use crate::sync::Mutex;
use crate::wheel::slab::{Key, Slab};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Shards of one kind; see the [module](self).
pub(crate) trait Source: Send + Sync {
    /// Flushes a batch of a shard's bucket that comes first, and hands over what expired, with no
    /// lock held. Returns how much that was; `None` if another thread holds the shard.
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize>;

    /// Returns a shard; `None` from the number of shards on.
    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard>;

    /// Adds what was counted outside of the shards; by default, nothing is.
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

    /// Returns what was counted in the shards and outside.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.shards().for_each(|shard| shard.count(&mut stats));
        self.count(&mut stats);
        stats
    }
}

/// The sources of a timer.
pub(crate) struct Sources {
    state: Mutex<State>,
}

// What it refers to is changed under locks, and no user code that runs under them leaves anything
// half changed. So a timer can be used in and after a `catch_unwind`.
impl UnwindSafe for Sources {}
impl RefUnwindSafe for Sources {}

struct State {
    /// By number; `None` for a source that is being made.
    sources: Slab<Option<Arc<dyn Source>>>,
    /// What those have counted that have gone.
    departed: Stats,
    /// Whether sources that register from now on have to be closed as well.
    closed: bool,
}

impl Sources {
    pub(crate) fn new() -> Self {
        let state = State { sources: Slab::new(), departed: Stats::default(), closed: false };
        Sources { state: Mutex::new(state) }
    }

    /// Registers a source of so many shards, which `make` creates from its number.
    pub(crate) fn register<S: Source + 'static>(
        &self,
        context: &TimerContext,
        shards: usize,
        make: impl FnOnce(u32) -> Arc<S>,
    ) -> (u32, Arc<S>) {
        let number = self.state.lock().sources.insert(None, 0).index;
        context.delay_queue.add_source(number, shards);
        let source = make(number);
        let registered: Arc<dyn Source> = Arc::clone(&source) as _;
        let mut state = self.state.lock();
        let closed = state.closed;
        *state.sources.at_mut(number) = Some(Arc::clone(&registered));
        drop(state);
        if closed {
            registered.shards().for_each(AnyShard::close);
        }
        (number, source)
    }

    /// Removes a source. Nothing may be left in its shards but what somebody still holds.
    pub(crate) fn remove(&self, context: &TimerContext, number: u32) {
        let Some(source) = self.get(number) else { return };
        // From here on its shards do not name its number, which may be given to another source.
        source.shards().for_each(AnyShard::detach);
        let mut counted = source.stats();
        // An operation that a thread is checking: it is cancelled, and leaves after that.
        counted.cancelled += std::mem::take(&mut counted.pending) as u64;
        context.delay_queue.remove_source(number);
        let mut state = self.state.lock();
        state.departed.add(&counted);
        state.sources.release(number);
        drop(state);
    }

    pub(crate) fn get(&self, number: u32) -> Option<Arc<dyn Source>> {
        let state = self.state.lock();
        let key = state.sources.key_at(number)?;
        state.sources.get(key)?.clone()
    }

    /// Returns the sources, to be used without the lock.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<dyn Source>> {
        self.by_key().into_iter().map(|(_, source)| source)
    }

    fn by_key(&self) -> Vec<(Key, Arc<dyn Source>)> {
        let state = self.state.lock();
        state.sources.iter().filter_map(|(key, source)| Some((key, source.clone()?))).collect()
    }

    /// Returns what all sources have counted together, and those that have gone.
    pub(crate) fn stats(&self) -> Stats {
        let count = |(key, source): (Key, Arc<dyn Source>)| (key, source.stats());
        let mut counted: Vec<_> = self.by_key().into_iter().map(count).collect();
        let state = self.state.lock();
        // One that has left meanwhile may have been counted in part, and was counted as it left.
        counted.retain(|(key, _)| state.sources.get(*key).is_some());
        let mut stats = state.departed.clone();
        drop(state);
        counted.iter().for_each(|(_, source)| stats.add(source));
        stats
    }

    /// Closes all sources: nothing can be added any more.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        for source in self.all() {
            source.shards().for_each(AnyShard::close);
        }
    }

    /// Returns whether `close` was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Forgets the sources. A listener may keep the engine for longer, but not the user's code.
    pub(crate) fn forget(&self) {
        let sources = std::mem::replace(&mut self.state.lock().sources, Slab::new());
        drop(sources);
    }
}
