//! Durable timers: they survive the process, and any number of nodes share them.
//!
//! The truth lies in a store, a file of [SQLite](Durable::sqlite) for one node or
//! [PostgreSQL](Durable::postgres) for many. Each node owns a share of the timers by a lease, loads
//! those that are due within a minute into the wheel of [`tickwheel`], and claims each in the store
//! before its handler is called.

//! The repository's `crates/durable/README.md` says when you need it, what it promises, and what
//! happens when things fail.
//!
//! # Features
//! - `programs` (default): the demo, the benchmark and so on, and what they need.

#![forbid(unsafe_code)]

mod answer;
mod builder;
mod due;
mod durable;
mod entry;
mod error;
mod hash;
#[cfg(all(test, tickwheel_model))]
mod models;
mod node;
mod sharded;
pub mod store;
mod sync;
mod time;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use crate::answer::{Cancelled, DeadTimer, Pending, Scheduled, Touched};
pub use crate::builder::{DurableBuilder, OpenStore};
pub use crate::due::{Due, Outcome, Token};
pub use crate::durable::Durable;
pub use crate::entry::{Entry, When};
pub use crate::error::Error;
pub use crate::node::counters::Stats;
pub use crate::node::lateness::Lateness;
pub use crate::sharded::Sharded;
pub use crate::time::StoreTime;
