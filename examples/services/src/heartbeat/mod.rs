//! Heartbeats between many connections' two ends, after Dubbo's exchange client and server.

mod client;
mod connection;
mod server;

pub use client::keep_connected;
pub use connection::{Connection, End};
pub use server::serve;

use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tickwheel::Timer;

/// What all connections of a process share.
pub struct Exchange {
    pub timer: Timer,
    pub terms: Terms,
    /// How many were sent.
    pub heartbeats: AtomicU64,
}

/// The same for both ends.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// An end that has written nothing for so long sends a heartbeat.
    pub heartbeat: Duration,
    /// An end that has read nothing for so long gives the connection up.
    pub idle_timeout: Duration,
}

/// What becomes of a connection, as one of its ends sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Opened { connection: u32 },
    Closed { connection: u32, end: End },
}

/// A byte that says nothing but that its sender is alive.
pub const HEARTBEAT: u8 = b'h';
/// A byte that is answered by itself: it stands for requests and responses.
pub const MESSAGE: u8 = b'm';

impl Exchange {
    pub fn new(timer: Timer, terms: Terms) -> Self {
        Exchange { timer, terms, heartbeats: AtomicU64::new(0) }
    }
}
