//! The connections that are open: who they are, what memory they hold, and how they are cut off.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::Notify;
use tracing::warn;

/// Bytes that each connection may hold beside the server's budget for all.
pub const FREE: usize = 64 * 1024;

/// All connections. Their number is bounded, and what they hold together.
#[derive(Debug)]
pub struct Seats {
    open: Mutex<BTreeMap<u64, Arc<Seat>>>,
    max_open: usize,
    held: AtomicUsize,
    max_held: usize,
    taken: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
}

/// A connection, as others see it.
#[derive(Debug)]
pub struct Seat {
    pub id: u64,
    /// Its address, and ours.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    pub since: Instant,
    pub told: Mutex<Told>,
    /// Beyond what is free.
    held: AtomicUsize,
    is_cut: AtomicBool,
    cut: Notify,
}

/// What CLIENT LIST tells of it.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub name: Vec<u8>,
    /// The last command, and when.
    pub command: &'static str,
    pub active: Option<Instant>,
    pub channels: usize,
    pub patterns: usize,
    /// Commands of an open transaction.
    pub queued: Option<usize>,
    pub resp: u8,
}

/// A connection's place among those that may be open: given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    seats: Arc<Seats>,
    pub seat: Arc<Seat>,
}

impl Seats {
    /// Creates an empty house for so many connections, which together may hold so many bytes.
    pub fn new(max_open: usize, max_held: usize) -> Arc<Self> {
        Arc::new(Seats {
            open: Mutex::default(),
            max_open,
            held: AtomicUsize::new(0),
            max_held,
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        })
    }

    /// Lets a connection in, unless there are as many as there may be.
    pub fn admit(
        self: &Arc<Self>,
        addresses: Option<(SocketAddr, SocketAddr)>,
        since: Instant,
    ) -> Option<Place> {
        let mut open = self.open.lock();
        if open.len() >= self.max_open {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let seat = Arc::new(Seat {
            id: self.taken.fetch_add(1, Ordering::Relaxed) + 1,
            addresses,
            since,
            told: Mutex::default(),
            held: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
            cut: Notify::new(),
        });
        open.insert(seat.id, Arc::clone(&seat));
        Some(Place { seats: Arc::clone(self), seat })
    }

    /// Returns the open connections, the oldest first.
    pub fn all(&self) -> Vec<Arc<Seat>> {
        self.open.lock().values().cloned().collect()
    }

    /// Returns how many connections are open.
    pub fn open(&self) -> usize {
        self.open.lock().len()
    }

    /// Returns how many connections were ever open.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns how many connections were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns how many connections were cut off, because they held too much for too long.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    /// Returns how many bytes of the budget are used.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Cuts off those who hold most, until the others fit: of about equal ones, the oldest.
    fn relieve(&self) {
        let open = self.open.lock();
        while self.held() > self.max_held {
            let size = |seat: &Seat| seat.held.load(Ordering::Relaxed).checked_ilog2();
            let largest = open.values().max_by_key(|seat| (size(seat), Reverse(seat.id)));
            let Some(seat) = largest.filter(|seat| size(seat).is_some()) else { break };
            self.cut_off(seat, "the server's budget for requests and replies is used up");
            self.exchange(seat, 0);
        }
    }

    /// Ends a connection which takes more than its share.
    pub(crate) fn cut_off(&self, seat: &Seat, reason: &str) {
        if seat.cut() {
            self.cut.fetch_add(1, Ordering::Relaxed);
            warn!(client = seat.id, "a connection is cut off: {reason}");
        }
    }

    fn exchange(&self, seat: &Seat, held: usize) {
        let former = seat.held.swap(held, Ordering::Relaxed);
        // One after the other: the sum must not fall below zero.
        self.held.fetch_add(held, Ordering::Relaxed);
        self.held.fetch_sub(former, Ordering::Relaxed);
    }
}

impl Seat {
    /// Ends the connection. Returns whether it was not cut before.
    pub fn cut(&self) -> bool {
        let is_first = !self.is_cut.swap(true, Ordering::Relaxed);
        self.cut.notify_one();
        is_first
    }

    /// Waits until the connection is cut.
    pub(crate) async fn is_cut(&self) {
        while !self.is_cut.load(Ordering::Relaxed) {
            self.cut.notified().await;
        }
    }

    /// Returns how many bytes it holds of the budget.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Place {
    /// Says how many bytes the connection holds. If that is too much for the server, the largest
    /// connection is cut, which may be this one.
    pub fn hold(&self, bytes: usize) {
        let held = bytes.saturating_sub(FREE);
        if held == self.seat.held() || self.seat.is_cut.load(Ordering::Relaxed) {
            return;
        }
        self.seats.exchange(&self.seat, held);
        if self.seats.held() > self.seats.max_held {
            self.seats.relieve();
        }
    }

    /// Ends the connection, which takes more than its share.
    pub fn cut_off(&self, reason: &str) {
        self.seats.cut_off(&self.seat, reason);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.seats.open.lock().remove(&self.seat.id);
        self.seats.exchange(&self.seat, 0);
    }
}
