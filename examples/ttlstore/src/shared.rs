//! What all connections share.

use crate::deadline::Now;
use crate::events::Events;
use crate::memory::{Memory, Policy};
use crate::request::Limits;
use crate::seat::Seats;
use crate::store::Store;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tickwheel::Timer;

/// What is bounded, so that no client can take all there is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at a time.
    pub max_clients: usize,
    /// The size of a request.
    pub request: Limits,
    /// Bytes of the replies to one command, or to one transaction.
    pub max_reply: usize,
    /// Bytes of events that a subscriber has not taken yet.
    pub max_backlog: usize,
    /// Bytes of requests and replies in all connections.
    pub max_held: usize,
    /// How long a client may take nothing of what is written to it.
    pub max_stall: Duration,
    /// Bytes of keys and values; 0 is no limit.
    pub max_memory: usize,
    /// Which keys go when there are more.
    pub policy: Policy,
}

/// The store, its timer, and what is counted.
#[derive(Debug)]
pub struct Shared {
    /// The keys'.
    pub timer: Timer,
    /// For the server's own waits, which keys must not crowd out.
    pub waits: Timer,
    pub store: Store,
    pub memory: Memory,
    pub events: Arc<Events>,
    pub seats: Arc<Seats>,
    pub bounds: Bounds,
    /// Commands that were run.
    pub commands: AtomicU64,
    pub started: Instant,
    /// Held for writing by what no other command may come between, and for reading by the others.
    /// No lock is held when it is taken.
    pub(crate) turns: RwLock<()>,
}

impl Shared {
    /// Creates an empty store on the first timer.
    pub fn new(timer: Timer, waits: Timer, bounds: Bounds) -> Arc<Self> {
        let seats = Seats::new(bounds.max_clients, bounds.max_held);
        let events = Arc::new(Events::new(bounds.max_backlog, Arc::clone(&seats)));
        Arc::new(Shared {
            store: Store::new(&timer, Arc::clone(&events)),
            memory: Memory::new(bounds.max_memory, bounds.policy),
            started: timer.now(),
            timer,
            waits,
            events,
            seats,
            bounds,
            commands: AtomicU64::new(0),
            turns: RwLock::new(()),
        })
    }

    /// Returns the present.
    pub fn now(&self) -> Now {
        Now::at(self.timer.now())
    }
}
