//! Durable timers: they survive the process, and any number of nodes share them.
//!
//! A store keeps the timers in one table. A node claims what is due in the store, which fences each
//! claim by a token in the row itself, and calls the handler. No node owns a timer before its
//! claim.

#![forbid(unsafe_code)]

mod debug;
mod durable;
mod entry;
mod node;
mod series;
pub mod store;
mod when;

/// The locks of a node.
mod sync {
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// Locks a mutex, also one under which somebody has panicked.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub use crate::durable::{Durable, DurableBuilder, OpenStore};
pub use crate::entry::{
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Paused, Pending, Scheduled, Search,
    Touched,
};
pub use crate::node::stats::Stats;
pub use crate::series::{Missed, Series};
pub use crate::when::{StoreTime, When};
