//! What is counted of the keys, and who is told of their changes.

use crate::deadline::Deadline;
use crate::events::Events;
use crate::store::Value;
use crate::watches::Watches;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that a key takes beside its own and its value's: its place in the keyed timer, and what
/// the allocator adds to two small pieces. Measured with a million keys, and rounded up.
pub const KEY_OVERHEAD: usize = 160;

/// What the alarms refer to: they must not own the keyed timer.
#[derive(Debug)]
pub struct Tally {
    events: Arc<Events>,
    pub(crate) watches: Watches,
    expired: AtomicU64,
    deadlines: AtomicUsize,
    bytes: AtomicUsize,
}

impl Tally {
    pub(crate) fn new(events: Arc<Events>) -> Self {
        let (expired, deadlines) = (AtomicU64::new(0), AtomicUsize::new(0));
        let (watches, bytes) = (Watches::default(), AtomicUsize::new(0));
        Tally { events, watches, expired, deadlines, bytes }
    }

    /// Returns how many keys have a deadline.
    pub fn deadlines(&self) -> usize {
        self.deadlines.load(Ordering::Relaxed)
    }

    /// Returns how many keys have expired.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Returns how many bytes the keys take, about.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Subtracts a key that has expired.
    pub(crate) fn expire(&self, key: &[u8], value: &Value) {
        self.remove(key, value);
        self.expired.fetch_add(1, Ordering::Relaxed);
        self.events.publish_expired(key);
    }

    /// Subtracts a key that was removed.
    pub(crate) fn remove(&self, key: &[u8], value: &Value) {
        self.bytes.fetch_sub(size(key, &value.bytes), Ordering::Relaxed);
        self.change_deadline(value.deadline, None);
        self.watches.touch(key);
    }

    /// Adds a new key.
    pub(crate) fn add(&self, key: &[u8], bytes: &[u8], deadline: Option<Deadline>) {
        self.bytes.fetch_add(size(key, bytes), Ordering::Relaxed);
        self.change_deadline(None, deadline);
        self.watches.touch(key);
    }

    /// Notes that a key's value has another length now.
    pub(crate) fn resize(&self, former: usize, new: usize) {
        // One after the other: the sum must not fall below zero.
        self.bytes.fetch_add(new, Ordering::Relaxed);
        self.bytes.fetch_sub(former, Ordering::Relaxed);
    }

    /// Notes that a key's deadline has changed; a key without one has none.
    pub(crate) fn change_deadline(&self, former: Option<Deadline>, new: Option<Deadline>) {
        match (former, new) {
            (None, Some(_)) => _ = self.deadlines.fetch_add(1, Ordering::Relaxed),
            (Some(_), None) => _ = self.deadlines.fetch_sub(1, Ordering::Relaxed),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

fn size(key: &[u8], bytes: &[u8]) -> usize {
    key.len() + bytes.len() + KEY_OVERHEAD
}
