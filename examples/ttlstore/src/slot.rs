//! One key, locked: its value and its deadline change as one.

use crate::deadline::Deadline;
use crate::store::{Key, Tally, Value};
use std::mem;
use std::time::Duration;
use tickwheel::keyed::{Entry, OccupiedEntry};
use tickwheel::{TimerEntry, When};

/// A key that is there, and the lock of its shard.
#[derive(Debug)]
pub struct Found<'a> {
    entry: OccupiedEntry<'a, Key, Value>,
    tally: &'a Tally,
}

/// A key that is there or not, and the lock of its shard.
#[derive(Debug)]
pub struct Slot<'a> {
    entry: Entry<'a, Key, Value>,
    tally: &'a Tally,
}

/// There are as many keys as there may be. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<'a> Found<'a> {
    pub(crate) fn new(entry: OccupiedEntry<'a, Key, Value>, tally: &'a Tally) -> Self {
        Found { entry, tally }
    }

    /// Makes the key expire, whose time is up: its alarm is late.
    pub(crate) fn expire(self, key: &[u8]) {
        // Under the lock: who finds the key gone has the event before what follows.
        self.tally.expire(key);
        self.entry.cancel();
    }

    /// Returns the value of the key.
    pub fn value(&self) -> &Value {
        self.entry.get()
    }

    /// Moves the key's deadline, or takes it away.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) {
        let former = mem::replace(&mut self.entry.get_mut().deadline, deadline);
        match deadline {
            Some(deadline) => self.entry.reschedule_at(deadline.instant),
            None if former.is_some() => self.entry.reschedule(Duration::MAX),
            None => {}
        }
        self.tally.count(former, deadline);
    }

    /// Removes the key, which does not expire then.
    pub fn remove(self) {
        let value = self.entry.cancel();
        self.tally.count(value.deadline, None);
    }
}

impl<'a> Slot<'a> {
    /// Creates a slot that is absent, or found and not due.
    pub(crate) fn new(entry: Entry<'a, Key, Value>, tally: &'a Tally) -> Self {
        Slot { entry, tally }
    }

    /// Returns the value of the key, if there is one.
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
        let tally = self.tally;
        match self.entry {
            Entry::Occupied(entry) => {
                let mut found = Found::new(entry, tally);
                found.entry.get_mut().put(bytes);
                found.set_deadline(deadline);
                Ok(())
            }
            Entry::Vacant(entry) => {
                let when = deadline.map_or(When::After(Duration::MAX), |it| When::At(it.instant));
                // First counted, because it may expire at once.
                tally.count(None, deadline);
                let value = Value { bytes: bytes.into(), deadline };
                entry.schedule(TimerEntry::new(when, value)).map_err(|_| {
                    tally.count(deadline, None);
                    Full
                })
            }
        }
    }
}
