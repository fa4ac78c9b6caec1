//! The keys: all of them lie in a keyed timer, with their values and deadlines.

use crate::deadline::Deadline;
use crate::events::Events;
use crate::slot::{Found, Slot};
use foldhash::quality::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use tickwheel::Timer;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel_prometheus::Metrics;

pub(crate) type Key = Box<[u8]>;

/// What a key has.
#[derive(Debug)]
pub struct Value {
    /// What GET tells.
    pub bytes: Box<[u8]>,
    /// When it expires, if ever: what the timer was told, and the same by the wall clock.
    pub deadline: Option<Deadline>,
}

/// Keys with values, which vanish on time.
///
/// The keyed timer is the only table. To it, a key without a deadline is one whose deadline never
/// comes. Code that uses a key has its entry, and with that the lock of its shard: so its value and
/// its deadline change as one, and not while it expires. A key whose time is up, but whose alarm
/// has not come yet, expires when somebody looks at it.
#[derive(Debug)]
pub struct Store {
    keys: KeyedTimer<Key, Value, RandomState>,
    tally: Arc<Tally>,
}

/// What the alarms refer to: they must not own the keyed timer.
#[derive(Debug)]
pub(crate) struct Tally {
    events: Arc<Events>,
    expired: AtomicU64,
    deadlines: AtomicUsize,
}

impl Store {
    /// Creates a store without keys. Its deadlines are `timer`'s; expired keys are told to
    /// `events`.
    pub fn new(timer: &Timer, events: Arc<Events>) -> Self {
        let (expired, deadlines) = (AtomicU64::new(0), AtomicUsize::new(0));
        let tally = Arc::new(Tally { events, expired, deadlines });
        let alarmed = Arc::clone(&tally);
        let alarm = move |key: Key, _: Value| alarmed.expire(&key);
        Store { keys: KeyedTimer::with_hasher(timer, RandomState::default(), alarm), tally }
    }

    /// Returns the key, locked, if it is present. A key whose time was up is gone.
    pub fn find(&self, key: &[u8], now: Instant) -> Option<Found<'_>> {
        let found = Found::new(self.keys.find_entry(key)?, &self.tally);
        if found.value().is_due(now) {
            found.expire(key);
            return None;
        }
        Some(found)
    }

    /// Returns the key, locked, whether it is present or not. A key whose time was up is gone.
    pub fn slot(&self, key: &[u8], now: Instant) -> Slot<'_> {
        loop {
            // Most keys that are set are there, and then need no copy.
            let entry = match self.keys.find_entry(key) {
                Some(entry) => Entry::Occupied(entry),
                None => self.keys.entry(Key::from(key)),
            };
            match entry {
                Entry::Occupied(entry) if entry.get().is_due(now) => {
                    Found::new(entry, &self.tally).expire(key);
                }
                entry => return Slot::new(entry, &self.tally),
            }
        }
    }

    /// Returns how many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Shows the keys.
    pub fn register(&self, metrics: &Metrics) {
        metrics.keyed_timer("keys", &self.keys);
    }

    /// Returns how many keys have a deadline.
    pub fn deadlines(&self) -> usize {
        self.tally.deadlines.load(Ordering::Relaxed)
    }

    /// Returns how many keys have expired.
    pub fn expired(&self) -> u64 {
        self.tally.expired.load(Ordering::Relaxed)
    }

    /// Removes all keys, a few at a time.
    pub fn flush(&self) {
        for (_, value) in self.keys.cancel_all() {
            self.tally.count(value.deadline, None);
        }
    }

    /// Calls `visit` with each key and its deadline, in no order. It must not use the store.
    pub fn for_each(&self, now: Instant, mut visit: impl FnMut(&[u8], Option<Deadline>)) {
        self.keys.for_each(|key, value, _| {
            if !value.is_due(now) {
                visit(key, value.deadline);
            }
        });
    }
}

impl Tally {
    /// Handles the expiry of a key.
    pub(crate) fn expire(&self, key: &[u8]) {
        self.deadlines.fetch_sub(1, Ordering::Relaxed);
        self.expired.fetch_add(1, Ordering::Relaxed);
        self.events.publish_expired(key);
    }

    /// Counts a change of a key's deadline; an absent key has none.
    pub(crate) fn count(&self, former: Option<Deadline>, new: Option<Deadline>) {
        match (former, new) {
            (None, Some(_)) => _ = self.deadlines.fetch_add(1, Ordering::Relaxed),
            (Some(_), None) => _ = self.deadlines.fetch_sub(1, Ordering::Relaxed),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

impl Value {
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline.is_due(now))
    }

    /// Writes the bytes in place, if the length is the same.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if self.bytes.len() == bytes.len() {
            self.bytes.copy_from_slice(bytes);
        } else {
            self.bytes = bytes.into();
        }
    }
}
