//! What a node's threads share: its locks, and its tasks. In a model they are shuttle's.

#[cfg(tickwheel_model)]
#[path = "../tests/inside/modelled.rs"]
mod modelled;

#[cfg(tickwheel_model)]
pub(crate) use modelled::{HashMap, JoinSet, Mutex, MutexGuard, random};
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
