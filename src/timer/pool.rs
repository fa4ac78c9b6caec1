//! The pool: shards without a timer, kept for the next timer with the same type of task.
//!
//! A timeout's handle refers to its shard by a plain reference. To count these references instead,
//! so that shards could be freed, would take two more locked instructions for each timer, a fifth
//! of the time that adding and cancelling it takes. So a shard lives for ever; without a timer it
//! holds about a kilobyte. There are never more of them than timers were alive at once had, but for
//! those that are worn: each shard of such a timer had used a place of its slab 2^31 times.

use crate::timer::shard::Shard;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;

/// Not from the lock facade: it guards no more than a push or a pop, and outlives any model.
static POOL: parking_lot::Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>> =
    parking_lot::Mutex::new(BTreeMap::new());

/// What the pool has for a type of tasks.
type Shards<T> = Vec<&'static Shard<T>>;

/// A shard that has no timer.
pub(crate) fn take<T: Send + 'static>() -> &'static Shard<T> {
    let pooled = with_shards(Vec::pop);
    pooled.unwrap_or_else(|| Box::leak(Box::new(Shard::new())))
}

/// Takes a shard back whose timer is gone, and which was drained.
pub(crate) fn put<T: Send + 'static>(shard: &'static Shard<T>) {
    // A model checker's locks belong to one schedule, and can't be used in the next.
    if shard.retire() && !cfg!(tickwheel_model) {
        with_shards(|shards| shards.push(shard));
    }
}

fn with_shards<T: Send + 'static, R>(change: impl FnOnce(&mut Shards<T>) -> R) -> R {
    let mut pool = POOL.lock();
    let shards = pool.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(Shards::<T>::new()));
    change(shards.downcast_mut().expect("a vector of the type that it is filed under"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_taken_again() {
        struct Task; // A type of its own: other tests use the pool, too.
        let shards: [&Shard<Task>; 2] = [take(), take()];
        assert!(!std::ptr::eq(shards[0], shards[1]));
        shards.iter().for_each(|shard| put(*shard));
        let again: [&Shard<Task>; 2] = [take(), take()];
        assert!(again.iter().all(|shard| shards.iter().any(|old| std::ptr::eq(*old, *shard))));
        assert!(std::mem::size_of::<Shard<Task>>() <= 1152, "what a shard without a timer takes");
    }
}
