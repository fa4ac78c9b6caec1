//! A server for Redis' clients whose keys vanish on time: they lie in a keyed timer.

// In reading order: the keys, what clients may do with them, and how they reach us.
mod store;
mod command;
mod glob;
mod peers;
mod reply;
mod request;
mod server;
mod session;
mod stats;

pub use server::{Config, Limits, run};
