//! One key, locked: its value and its deadline change as one.

use crate::deadline::Deadline;
use crate::store::{Key, Value};
use crate::tally::Tally;
use std::mem;
use std::time::Duration;
use tickwheel::keyed::{Entry, OccupiedEntry};
use tickwheel::{TimerEntry, When};

/// A key that is there, and the lock of its shard.
#[derive(Debug)]
pub struct Found<'a> {
    entry: OccupiedEntry<'a, Key, Value>,
    key: &'a [u8],
    tally: &'a Tally,
}

/// A key that is there or not, and the lock of its shard.
#[derive(Debug)]
pub struct Slot<'a> {
    entry: Entry<'a, Key, Value>,
    key: &'a [u8],
    tally: &'a Tally,
}

/// There are as many keys as there may be. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<'a> Found<'a> {
    pub(crate) fn new(
        entry: OccupiedEntry<'a, Key, Value>,
        key: &'a [u8],
        tally: &'a Tally,
    ) -> Self {
        Found { entry, key, tally }
    }

    /// Makes the key expire, whose time is up: its alarm is late.
    pub(crate) fn expire(self) {
        // Under the lock: the event comes before those of what others do with the key.
        self.tally.expire(self.key, self.entry.get());
        self.entry.cancel();
    }

    /// Returns what the key has.
    pub fn value(&self) -> &Value {
        self.entry.get()
    }

    /// Replaces the value's bytes. The deadline stays.
    pub fn put(&mut self, bytes: &[u8]) {
        let value = self.entry.get_mut();
        self.tally.resize(value.bytes.len(), bytes.len());
        value.put(bytes);
        self.tally.watches.touch(self.key);
    }

    /// Moves the key's deadline, or takes it away.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) {
        let former = mem::replace(&mut self.entry.get_mut().deadline, deadline);
        match deadline {
            Some(deadline) => self.entry.reschedule_at(deadline.instant),
            None if former.is_some() => self.entry.reschedule(Duration::MAX),
            None => return,
        }
        self.tally.change_deadline(former, deadline);
        self.tally.watches.touch(self.key);
    }

    /// Removes the key, which does not expire then. Returns what it had.
    pub fn remove(self) -> Value {
        // Under the lock, for those who watch it.
        self.tally.remove(self.key, self.entry.get());
        self.entry.cancel()
    }
}

impl<'a> Slot<'a> {
    /// Creates the slot of a key that is absent, or found and not due.
    pub(crate) fn new(entry: Entry<'a, Key, Value>, key: &'a [u8], tally: &'a Tally) -> Self {
        Slot { entry, key, tally }
    }

    /// Returns what the key has.
    pub fn value(&self) -> Option<&Value> {
        match &self.entry {
            Entry::Occupied(entry) => Some(entry.get()),
            Entry::Vacant(_) => None,
        }
    }

    /// Gives the key a value, with this deadline or with none.
    ///
    /// # Errors
    /// [`Full`], if the key is not there.
    pub fn set(self, bytes: &[u8], deadline: Option<Deadline>) -> Result<(), Full> {
        let Slot { entry, key, tally } = self;
        match entry {
            Entry::Occupied(entry) => {
                let mut found = Found::new(entry, key, tally);
                found.put(bytes);
                found.set_deadline(deadline);
                Ok(())
            }
            Entry::Vacant(entry) => {
                let when = deadline.map_or(When::After(Duration::MAX), |it| When::At(it.instant));
                let value = Value { bytes: bytes.into(), deadline };
                // First counted, because it may expire at once.
                tally.add(key, bytes, deadline);
                entry.schedule(TimerEntry::new(when, value)).map_err(|error| {
                    tally.remove(key, &error.into_entry().into_task());
                    Full
                })
            }
        }
    }
}
