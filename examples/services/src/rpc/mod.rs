//! Requests and responses over TCP with a time limit each, after Dubbo's `DefaultFuture`.

mod client;
mod frame;
mod server;

pub use client::{CallError, Client};
pub use frame::read_frame;
pub use server::serve;
