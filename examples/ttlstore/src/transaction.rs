//! A transaction: what MULTI has queued, and what WATCH watches.

use crate::request::Request;
use crate::store::{Key, Store};
use foldhash::fast::RandomState;
use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What a connection has queued and watches.
#[derive(Debug, Default)]
pub struct Transaction {
    queue: Option<Vec<Request>>,
    bytes: usize,
    has_failed: bool,
    needs_room: bool,
    watched: HashSet<Key, RandomState>,
    touched: Arc<AtomicBool>,
}

impl Transaction {
    /// Returns how many commands are queued, if a transaction is open.
    pub fn queued(&self) -> Option<usize> {
        self.queue.as_ref().map(Vec::len)
    }

    /// Returns how many bytes the queued commands and the watched keys take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Opens it. Returns false if it is open already.
    pub fn open(&mut self) -> bool {
        let is_new = self.queue.is_none();
        self.queue.get_or_insert_default();
        is_new
    }

    /// Returns whether a queued command may need memory.
    pub fn needs_room(&self) -> bool {
        self.needs_room
    }

    /// Queues a command, which may need memory or not.
    pub fn push(&mut self, request: Request, needs_room: bool) {
        self.needs_room |= needs_room;
        self.bytes += request.size();
        self.queue.get_or_insert_default().push(request);
    }

    /// Notes that a command was refused, and so the transaction will be.
    pub fn fail(&mut self) {
        self.has_failed = self.queue.is_some();
    }

    /// Returns whether a command was refused.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Watches a key from now on.
    pub fn watch(&mut self, store: &Store, key: &[u8], now: Instant) {
        if self.watched.insert(Key::from(key)) {
            store.watch(key, &self.touched, now);
            self.bytes += 2 * (key.len() + size_of::<Key>());
        }
    }

    /// Watches nothing more.
    pub fn unwatch(&mut self, store: &Store) {
        for key in mem::take(&mut self.watched) {
            store.unwatch(&key, &self.touched);
        }
        self.touched.store(false, Ordering::Relaxed);
        self.bytes = self.queue.iter().flatten().map(Request::size).sum();
    }

    /// Returns whether a watched key has changed, or has expired by now.
    pub fn is_touched(&self, store: &Store, now: Instant) -> bool {
        for key in &self.watched {
            store.find(key, now);
        }
        self.touched.load(Ordering::Relaxed)
    }

    /// Closes it, and returns what was queued.
    pub fn close(&mut self, store: &Store) -> Vec<Request> {
        let queue = self.queue.take().unwrap_or_default();
        (self.has_failed, self.needs_room) = (false, false);
        self.unwatch(store);
        queue
    }
}
