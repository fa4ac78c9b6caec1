//! What all connections share.

use crate::deadline::Now;
use crate::events::Events;
use crate::request::Limits;
use crate::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use tickwheel::Timer;

/// What is bounded, so that no client can take all there is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at a time.
    pub max_clients: usize,
    /// The size of a request.
    pub request: Limits,
    /// Bytes of events that a subscriber has not taken yet.
    pub max_backlog: usize,
}

/// The store, its timer, and what is counted.
#[derive(Debug)]
pub struct Shared {
    /// The keys'.
    pub timer: Timer,
    /// For the server's own waits, which keys must not crowd out.
    pub waits: Timer,
    pub store: Store,
    pub events: Arc<Events>,
    pub bounds: Bounds,
    pub counts: Counts,
    pub started: Instant,
}

/// What the server has done.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections that are open.
    pub clients: AtomicUsize,
    /// Connections that were ever open.
    pub connections: AtomicU64,
    /// Connections that were refused.
    pub refused: AtomicU64,
    /// Commands that were run.
    pub commands: AtomicU64,
}

impl Shared {
    /// Creates an empty store on the first timer.
    pub fn new(timer: Timer, waits: Timer, bounds: Bounds) -> Arc<Self> {
        let events = Arc::new(Events::new(bounds.max_backlog));
        let store = Store::new(&timer, Arc::clone(&events));
        let started = timer.now();
        let counts = Counts::default();
        Arc::new(Shared { timer, waits, store, events, bounds, counts, started })
    }

    /// Returns the present.
    pub fn now(&self) -> Now {
        Now::at(self.timer.now())
    }

    /// Counts a new connection, unless there are as many as there may be.
    pub fn admit(self: &Arc<Self>) -> Option<Seat> {
        let seat = Seat { shared: Arc::clone(self) };
        if self.counts.clients.fetch_add(1, Ordering::Relaxed) >= self.bounds.max_clients {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return None; // The seat is given back.
        }
        Some(seat)
    }
}

/// A connection's place among those that may be open.
#[derive(Debug)]
pub struct Seat {
    shared: Arc<Shared>,
}

impl Seat {
    /// Returns a number for a new client.
    pub fn client_id(&self) -> u64 {
        self.shared.counts.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.counts.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
