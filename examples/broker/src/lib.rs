//! A small Kafka broker in memory, on tickwheel. Fetches, produces and joins that can't be answered
//! yet wait in purgatories, sessions and the follower are keyed timers; one timer expires them all.

#![forbid(unsafe_code)]

mod broker;
mod fetch;
mod group;
mod ids;
mod log;
mod metadata;
mod produce;
mod server;
mod wire;

pub use broker::{Broker, Options, Waiting};
pub use server::{Counts, Server};
pub use wire::{Malformed, Request, decode, encode};
