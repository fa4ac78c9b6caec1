//! The pool: sets of shards that are not in use, kept for the next source of the same types.
//!
//! A handle refers to its shard by a plain reference, so a shard is never freed. Counting these
//! references would take two more locked instructions for each timer: 19 % of the time of W1, 7 to
//! 16 % of W2, 13 % of W5_2. While a shard is in the pool it holds less than a kilobyte. There are
//! never more shards than were in use at once.
//!
//! A shard keeps its slab when it changes hands: generations go on by themselves, so a handle of a
//! former source finds nothing. A set is passed over until nothing is left in it: an operation that
//! a thread is checking or taking out keeps its record, and its keys, until then.

use crate::engine::shard::{AnyShard, Extra, Shard, TimerContext};
use crossbeam_utils::CachePadded;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All shards of a source; their number is a power of two. Padded, so that two shards' locks never
/// share a cache line.
type Set<T, X> = [CachePadded<Shard<T, X>>];

/// A set of shards that serves a source. When this is dropped, the set goes to the pool: it must be
/// empty then, and its source must not be registered any more.
pub(crate) struct Shards<T: Send + 'static, X: Extra + Send + 'static = ()> {
    /// A reference for handles that outlive the source.
    pub(crate) set: &'static Set<T, X>,
    pub(crate) context: Arc<TimerContext>,
}

/// By type and size: who looks for one of its size takes no others out meanwhile, which another
/// thread would miss, and replace by new ones.
///
/// Not from the lock facade: it protects no more than a few steps, and outlives any model.
static POOL: parking_lot::Mutex<BTreeMap<(TypeId, usize), Box<dyn Any + Send>>> =
    parking_lot::Mutex::new(BTreeMap::new());

impl<T: Send + 'static, X: Extra + Send + 'static> Shards<T, X> {
    /// Takes `count` shards, a power of two, with wheels of `wheel_size` slots, for the source of
    /// this number.
    pub(crate) fn new(
        context: &Arc<TimerContext>,
        source: u64,
        count: usize,
        wheel_size: usize,
    ) -> Self {
        let mut busy = Vec::new();
        let set: &'static Set<T, X> = loop {
            // Looked at outside of the pool's lock: that takes locks whose holders may want the
            // pool.
            match Self::with_pool(count, Vec::pop) {
                Some(pooled) if pooled.iter().all(|shard| shard.is_free()) => break pooled,
                Some(pooled) => busy.push(pooled),
                None => {
                    let shards = (0..count).map(|_| CachePadded::new(Shard::new()));
                    break Box::leak(shards.collect());
                }
            }
        };
        Self::with_pool(count, |pool| pool.extend(busy));
        for (ordinal, shard) in (0..).zip(set) {
            shard.serve(context, source, ordinal, wheel_size);
        }
        Shards { set, context: Arc::clone(context) }
    }

    /// Returns a shard as a source shows it.
    pub(crate) fn any(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.set.get(ordinal).map(|shard| &**shard as &dyn AnyShard)
    }

    fn with_pool<R>(count: usize, change: impl FnOnce(&mut Vec<&'static Set<T, X>>) -> R) -> R {
        let mut pool = POOL.lock();
        let pooled = pool.entry((TypeId::of::<Shard<T, X>>(), count));
        let pooled = pooled.or_insert_with(|| Box::new(Vec::<&'static Set<T, X>>::new()));
        change(pooled.downcast_mut().expect("a vector of the type that it is filed under"))
    }
}

impl<T: Send + 'static, X: Extra + Send + 'static> Drop for Shards<T, X> {
    fn drop(&mut self) {
        self.set.iter().for_each(|shard| shard.retire());
        // The locks of a model checker belong to one schedule, and can't be used in the next.
        if !cfg!(tickwheel_model) {
            Self::with_pool(self.set.len(), |pool| pool.push(self.set));
        }
    }
}
