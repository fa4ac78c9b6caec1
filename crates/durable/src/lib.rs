//! Durable timers: they survive the process, and any number of nodes share them.
//!
//! A store keeps the timers: a file of [SQLite](Durable::sqlite) for one node, or
//! [PostgreSQL](Durable::postgres) for many. Each node owns a share of the timers by a lease. The
//! node loads timers that are due within a minute into the wheel of [`tickwheel`], and claims each
//! timer in the store before it calls the handler.
//!
//! The [guide] has the guarantees, what happens in each failure, transactions of your own and
//! several primaries. [Operations](guide::operations) is for those who run nodes.
//!
//! # Features
//! - `postgres`, `sqlite` (default): the stores.
//! - `inspect`: the program `inspect`, which lists timers.

#![forbid(unsafe_code)]

mod debug;
mod durable;
mod entry;
#[cfg(all(test, tickwheel_model))]
mod models;
mod node;
mod series;
#[cfg(feature = "postgres")]
#[doc = include_str!("sql.md")]
pub mod sql {}
pub mod store;

/// The locks and tasks of a node: std's and tokio's. With `--cfg tickwheel_model` the code that is
/// shipped runs under shuttle, which chooses at each lock and each wait who goes on.
mod sync {
    #[cfg(tickwheel_model)]
    pub(crate) use shuttle::{
        future::spawn,
        sync::{Mutex, MutexGuard},
    };
    #[cfg(not(tickwheel_model))]
    pub(crate) use std::sync::{Mutex, MutexGuard};
    #[cfg(not(tickwheel_model))]
    pub(crate) use tokio::spawn;

    /// Locks a mutex, also one under which somebody has panicked.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Compiles and runs the README's example.
#[cfg(all(doctest, feature = "postgres", feature = "sqlite"))]
#[doc = include_str!("../README.md")]
struct Readme;

// The examples of the guide need both stores.
#[cfg(any(not(doctest), all(feature = "postgres", feature = "sqlite")))]
#[doc = include_str!("guide.md")]
pub mod guide {
    #[doc = include_str!("operations.md")]
    pub mod operations {}
}

pub use crate::durable::{Durable, DurableBuilder, OpenStore};
pub use crate::entry::{
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Paused, Pending, Scheduled, Search,
    Token, Touched, When,
};
pub use crate::node::stats::Stats;
pub use crate::series::{Missed, Series};
#[doc(inline)]
pub use crate::store::StoreTime;
