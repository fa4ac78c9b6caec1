//! The pool: shards that are not in use, kept for the next timer or purgatory of the same types.
//!
//! A handle refers to its shard by a plain reference. Counting these references, so that shards
//! could be freed, would take two more locked instructions for each timer, which is a fifth of the
//! time that adding and cancelling it takes. So a shard lives forever. While it is not in use it
//! holds about a kilobyte. There are never more shards than were in use at once, except for worn
//! ones: each of them had used a place of its slab 2^31 times.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;

/// Not from the lock facade: it protects no more than a few steps, and outlives any model.
static POOL: parking_lot::Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>> =
    parking_lot::Mutex::new(BTreeMap::new());

/// Returns an item that is not in use: from the pool if it contains one that `is_free`, otherwise a
/// new one.
pub(crate) fn take<S: Sync + 'static>(
    is_free: impl Fn(&S) -> bool,
    make: impl FnOnce() -> S,
) -> &'static S {
    let (mut free, mut busy) = (None, Vec::new());
    // Checked outside of the pool's lock: the check takes locks whose holders may want the pool.
    while let Some(pooled) = with_pool(Vec::pop) {
        if is_free(pooled) {
            free = Some(pooled);
            break;
        }
        busy.push(pooled);
    }
    busy.into_iter().for_each(put);
    free.unwrap_or_else(|| Box::leak(Box::new(make())))
}

/// Takes back an item that is no longer in use, or soon will not be.
pub(crate) fn put<S: Sync + 'static>(retired: &'static S) {
    // The locks of a model checker belong to one schedule, and can't be used in the next.
    if !cfg!(tickwheel_model) {
        with_pool(|pool| pool.push(retired));
    }
}

fn with_pool<S: Sync + 'static, R>(change: impl FnOnce(&mut Vec<&'static S>) -> R) -> R {
    let mut pool = POOL.lock();
    let pooled =
        pool.entry(TypeId::of::<S>()).or_insert_with(|| Box::new(Vec::<&'static S>::new()));
    change(pooled.downcast_mut().expect("a vector of the type that it is filed under"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_taken_again() {
        struct Pooled(u8); // A type of its own: other tests use the pool, too.
        let all = |_: &Pooled| true;
        let made = [1, 2].map(|number| take(all, || Pooled(number)));
        made.into_iter().for_each(put);
        let first = take(|pooled: &Pooled| pooled.0 == 1, || Pooled(3));
        let others = [take(|pooled: &Pooled| pooled.0 == 1, || Pooled(4)), take(all, || Pooled(5))];
        assert!(std::ptr::eq(first, made[0]) && std::ptr::eq(others[1], made[1]));
        assert_eq!(others[0].0, 4);
        [first, others[0], others[1]].into_iter().for_each(put); // What is not there is leaked.
    }
}
