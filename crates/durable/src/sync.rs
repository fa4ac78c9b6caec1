//! What a node's threads share: its locks, and its tasks. In a model they are shuttle's.

#[cfg(tickwheel_model)]
#[path = "../tests/inside/modelled.rs"]
mod modelled;

#[cfg(tickwheel_model)]
pub(crate) use modelled::{HashMap, JoinSet, Mutex, MutexGuard, next_id, random};
#[cfg(not(tickwheel_model))]
pub(crate) use {
    std::collections::HashMap,
    std::sync::{Mutex, MutexGuard},
    tokio::task::JoinSet,
};

/// Locks a mutex, also one under which somebody has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Draws a random number: std's random keys, hashed.
#[cfg(not(tickwheel_model))]
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}

/// Returns a number that no other timer has. A process counts on from a random number: timers that
/// were scheduled together lie together in the store, also if they are due at the same time.
#[cfg(not(tickwheel_model))]
pub(crate) fn next_id() -> i64 {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static NEXT: LazyLock<AtomicI64> = LazyLock::new(|| AtomicI64::new(random() as i64));
    // Only the numbers matter: nothing else is read or written in their order.
    NEXT.fetch_add(1, Ordering::Relaxed) & i64::MAX
}
