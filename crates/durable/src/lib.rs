//! Timers that survive the process, and that any number of nodes share.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::{SystemClock, Timer};
//! use tickwheel_durable::store::memory::Memory;
//! use tickwheel_durable::{Due, Durable, Entry, Outcome};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let timer = Timer::builder().start()?;
//! // Or `Durable::sqlite("timers")`, or `Durable::postgres("host=localhost".parse()?)`.
//! let node = Durable::memory(Memory::new(SystemClock))
//!     .start(&timer, |due: Due| async move {
//!         println!("{:?} is due", due.key);
//!         Outcome::Done
//!     })
//!     .await?;
//! let unpaid = Entry::keyed("order-7", Duration::from_secs(1800), "not paid");
//! node.schedule(unpaid).await?; // `Ok`: the timer is committed.
//! node.cancel("order-7").await?;
//! node.drain().await;
//! # Ok(()) }
//! ```
//!
//! A store keeps the timers in one table. A node claims each timer when it is due, and calls its
//! handler. A claim ends with the handler's [`Outcome`], or runs out if the node dies: then another
//! node runs the timer again.
//!
//! | part | for |
//! |---|---|
//! | [`Durable`] | a node: schedule, cancel, move, list and pause timers |
//! | [`Entry`], [`When`] | a timer to be scheduled: its key, tag, debounce and expiry |
//! | [`Due`], [`Outcome`], [`Series`] | what a handler gets and answers |
//! | [`store`] | PostgreSQL, SQLite, and memory for tests |
//! | [`guide`] | promises, failures, your own transactions, tests |
//! | [`guide::operations`] | rights, vacuum, failover, metrics, backups |
//! | `sql` | timers from any client of PostgreSQL |
//!
//! A timer that fires costs three writes, and its handler waits for the commit of its claim. Use
//! [`tickwheel`] alone for timers that may end with the process. The promises are [in the
//! guide](guide#guarantees).

#![forbid(unsafe_code)]

mod contained;
mod debug;
mod durable;
mod entry;
#[cfg(all(test, tickwheel_model))]
#[path = "../tests/inside/models.rs"]
mod models;
mod node;
mod series;
#[cfg(feature = "postgres")]
#[doc = include_str!("sql.md")]
pub mod sql {}
pub mod store;
mod sync;
mod when;

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
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Paused, Scheduled, Search, Touched,
};
pub use crate::node::stats::Stats;
pub use crate::series::{Missed, Series};
pub use crate::when::{StoreTime, When};
