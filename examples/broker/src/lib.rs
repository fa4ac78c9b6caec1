//! A mini Kafka broker on tickwheel. Fetches, produces and joins that must wait lie in
//! purgatories, sessions are keyed timers; one timer expires them all.

#![forbid(unsafe_code)]

mod accept;
mod admin;
mod answers;
mod broker;
mod budget;
mod connection;
mod counters;
mod delays;
mod fetch;
mod follower;
mod group;
mod http;
mod log;
mod metadata;
mod metrics;
mod parked;
mod produce;
mod server;
mod terms;
mod wire;

pub use broker::{Broker, Waiting};
pub use follower::Pace;
pub use log::{Batch, delayed, delivery_times};
pub use server::Server;
pub use terms::{Limits, LongPoll, Terms};
pub use wire::is_request;

/// Compiles and runs the example of the page about operations, which the crates that it is about
/// can't include: it lies outside of their packages.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/OPERATIONS.md")]
struct Operations;
