//! One key, locked: its value and its alarm change as one.

use crate::deadline::Deadline;
use crate::store::{Alarms, Key, Shard, Value};
use parking_lot::MutexGuard;
use tickwheel::TimerEntry;

/// A key, and the lock of its shard.
#[derive(Debug)]
pub struct Slot<'a> {
    shard: MutexGuard<'a, Shard>,
    alarms: &'a Alarms,
    key: &'a [u8],
}

/// The timer takes no more deadlines. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<'a> Slot<'a> {
    pub(crate) fn new(shard: MutexGuard<'a, Shard>, alarms: &'a Alarms, key: &'a [u8]) -> Self {
        Slot { shard, alarms, key }
    }

    /// What the key has.
    pub fn value(&self) -> Option<&Value> {
        self.shard.get(self.key)
    }

    /// Gives the key a value, with this deadline or with none.
    ///
    /// # Errors
    /// [`Full`].
    pub fn set(&mut self, bytes: &[u8], deadline: Option<Deadline>) -> Result<(), Full> {
        if let Some((key, value)) = self.shard.get_key_value_mut(self.key) {
            change(self.alarms, key, value, deadline)?;
            value.put(bytes);
            return Ok(());
        }
        let key = Key::from(self.key);
        if let Some(deadline) = deadline {
            schedule(self.alarms, &key, deadline)?;
        }
        self.shard.insert(key, Value { bytes: bytes.into(), deadline });
        Ok(())
    }

    /// Moves the key's deadline, or takes it away. Does nothing if there is no such key.
    ///
    /// # Errors
    /// [`Full`].
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) -> Result<(), Full> {
        match self.shard.get_key_value_mut(self.key) {
            Some((key, value)) => change(self.alarms, key, value, deadline),
            None => Ok(()),
        }
    }

    /// Removes the key. Returns whether it was there.
    pub fn remove(&mut self) -> bool {
        let former = self.shard.remove(self.key);
        if former.as_ref().is_some_and(|value| value.deadline.is_some()) {
            self.alarms.cancel(self.key);
        }
        former.is_some()
    }
}

/// Gives a key this deadline or none, and its alarm the same.
fn change(
    alarms: &Alarms,
    key: &Key,
    value: &mut Value,
    deadline: Option<Deadline>,
) -> Result<(), Full> {
    match (value.deadline, deadline) {
        (None, None) => {}
        (Some(_), None) => drop(alarms.cancel(key)),
        (former, Some(deadline)) => {
            // An alarm that is there is moved, unless it has just gone off.
            if former.is_none() || !alarms.reschedule_at(key, deadline.instant) {
                schedule(alarms, key, deadline)?;
            }
        }
    }
    value.deadline = deadline;
    Ok(())
}

fn schedule(alarms: &Alarms, key: &Key, deadline: Deadline) -> Result<(), Full> {
    // After a shutdown nobody will see this key again: refused as well.
    let entry = TimerEntry::at(deadline.instant, ());
    alarms.schedule(Key::clone(key), entry).map(drop).map_err(|_| Full)
}

impl Value {
    /// In its place, if it has the same length.
    fn put(&mut self, bytes: &[u8]) {
        if self.bytes.len() == bytes.len() {
            self.bytes.copy_from_slice(bytes);
        } else {
            self.bytes = bytes.into();
        }
    }
}
