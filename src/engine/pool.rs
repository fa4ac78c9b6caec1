//! The pool: unused sets of shards, kept for the next source of the same types.
//!
//! A handle refers to its shard by a plain reference, so a shard is never freed. Counting
//! references would take two more locked instructions for each timer: 19 % of the time of W1, 7 to
//! 16 % of W2, 13 % of W5_2. A shard in the pool holds less than a kilobyte. There are never more
//! shards than were in use at once.
//!
//! A shard keeps its slab and its generations, so a handle of a former source finds nothing. A set
//! is passed over until it is empty: an operation that a thread is checking or taking out stays
//! until then.

use crate::engine::shard::{AnyShard, Extra, Shard, TimerContext};
use crossbeam_utils::CachePadded;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All shards of a source, a power of two. Padded, so that two locks never share a cache line.
type Set<T, X> = [CachePadded<Shard<T, X>>];

/// A set of shards that serves a source. When dropped, the set goes to the pool: it must be empty,
/// and its source removed.
pub(crate) struct Shards<T: 'static, X: 'static = ()> {
    /// Handles outlive the source.
    pub(crate) set: &'static Set<T, X>,
    pub(crate) context: Arc<TimerContext>,
    /// [`Shards::give_back`], for the drop. Called there by its name, it would demand its bounds of
    /// every struct around this, the user's included.
    give_back: fn(&'static Set<T, X>),
}

/// By type and size: a thread that looks for one size takes no others out, which another thread
/// would miss and replace. Not from the lock facade: it outlives any model.
static POOL: parking_lot::Mutex<BTreeMap<(TypeId, usize), Box<dyn Any + Send>>> =
    parking_lot::Mutex::new(BTreeMap::new());

impl<T: Send + 'static, X: Extra + Send + 'static> Shards<T, X> {
    /// Takes `count` shards, a power of two, with wheels of `wheel_size` slots, for this source.
    pub(crate) fn new(
        context: &Arc<TimerContext>,
        source: u64,
        count: usize,
        wheel_size: usize,
    ) -> Self {
        let mut busy = Vec::new();
        let set: &'static Set<T, X> = loop {
            // Looked at without the pool's lock, because holders of the shards' locks may want the
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
        Shards {
            set,
            context: Arc::clone(context),
            give_back: Self::give_back,
        }
    }

    pub(crate) fn any(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.set.get(ordinal).map(|shard| &**shard as &dyn AnyShard)
    }

    fn give_back(set: &'static Set<T, X>) {
        set.iter().for_each(|shard| shard.retire());
        // A model checker's locks belong to one schedule.
        if !cfg!(tickwheel_model) {
            Self::with_pool(set.len(), |pool| pool.push(set));
        }
    }

    fn with_pool<R>(count: usize, change: impl FnOnce(&mut Vec<&'static Set<T, X>>) -> R) -> R {
        let mut pool = POOL.lock();
        let pooled = pool.entry((TypeId::of::<Shard<T, X>>(), count));
        let pooled = pooled.or_insert_with(|| Box::new(Vec::<&'static Set<T, X>>::new()));
        change(
            pooled
                .downcast_mut()
                .expect("a vector of the type that it is filed under"),
        )
    }
}

impl<T, X> Drop for Shards<T, X> {
    fn drop(&mut self) {
        (self.give_back)(self.set);
    }
}
