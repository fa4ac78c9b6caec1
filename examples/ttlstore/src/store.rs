//! The keys: all of them lie in a keyed timer, with their values and deadlines.

use crate::deadline::Deadline;
use crate::events::Events;
use crate::slot::{Found, Slot};
use crate::tally::Tally;
use foldhash::quality::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// A place among the keys that moves on and round, for those who want some keys, not all.
    hand: AtomicU64,
}

impl Store {
    /// Creates a store without keys. Deadlines are `timer`'s; what expires is told to `events`.
    pub fn new(timer: &Timer, events: Arc<Events>) -> Self {
        let tally = Arc::new(Tally::new(events));
        let alarmed = Arc::clone(&tally);
        let alarm = move |key: Key, value: Value| alarmed.expire(&key, &value);
        let keys = KeyedTimer::with_hasher(timer, RandomState::default(), alarm);
        Store { keys, tally, hand: AtomicU64::new(0) }
    }

    /// Returns the key, locked, if it is there. If its time was up it is gone.
    pub fn find<'a>(&'a self, key: &'a [u8], now: Instant) -> Option<Found<'a>> {
        let found = Found::new(self.keys.find_entry(key)?, key, &self.tally);
        if found.value().is_due(now) {
            found.expire();
            return None;
        }
        Some(found)
    }

    /// Returns the key, locked, whether it is there or not. If its time was up it is gone.
    pub fn slot<'a>(&'a self, key: &'a [u8], now: Instant) -> Slot<'a> {
        loop {
            // Most keys that are set are there, and then need no copy.
            let entry = match self.keys.find_entry(key) {
                Some(entry) => Entry::Occupied(entry),
                None => self.keys.entry(Key::from(key)),
            };
            match entry {
                Entry::Occupied(entry) if entry.get().is_due(now) => {
                    Found::new(entry, key, &self.tally).expire();
                }
                entry => return Slot::new(entry, key, &self.tally),
            }
        }
    }

    /// Sets `touched` as soon as the key changes, is set, or is gone.
    pub fn watch(&self, key: &[u8], touched: &Arc<AtomicBool>, now: Instant) {
        // Under the lock of its shard: a change comes before this, or sets it.
        let _slot = self.slot(key, now);
        self.tally.watches.watch(key, touched);
    }

    /// Takes back a [`watch`](Self::watch).
    pub fn unwatch(&self, key: &[u8], touched: &Arc<AtomicBool>) {
        self.tally.watches.unwatch(key, touched);
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

    /// Returns what is counted of the keys.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Removes all keys, a few at a time.
    pub fn flush(&self) {
        for (key, value) in self.keys.cancel_all() {
            self.tally.remove(&key, &value);
        }
    }

    /// Calls `visit` with each key and its deadline, in no order. It must not use the store.
    pub fn for_each(&self, now: Instant, mut visit: impl FnMut(&[u8], Option<Deadline>)) {
        let mut place = Some(0);
        while let Some(from) = place {
            place = self.visit_from(from, now, &mut visit);
        }
    }

    /// Calls `visit` with up to 1024 keys from a place on, and returns the place after them: see
    /// [`KeyedTimer::visit_from`].
    pub fn visit_from(
        &self,
        place: u64,
        now: Instant,
        mut visit: impl FnMut(&[u8], Option<Deadline>),
    ) -> Option<u64> {
        self.keys.visit_from(place, |key, value, _| {
            if !value.is_due(now) {
                visit(key, value.deadline);
            }
        })
    }

    /// Calls `visit` with up to 1024 keys: at each call with those after the former ones, and after
    /// the last with the first again.
    pub fn visit_some(&self, now: Instant, visit: impl FnMut(&[u8], Option<Deadline>)) {
        let place = self.hand.load(Ordering::Relaxed);
        let next = self.visit_from(place, now, visit);
        self.hand.store(next.unwrap_or(0), Ordering::Relaxed);
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
