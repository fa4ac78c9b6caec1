//! Held records: those that are to be delivered later, in the order of their times.

use bytes::Bytes;
use std::collections::BTreeMap;

/// What one takes beside its bytes, about.
const OVERHEAD: u64 = 128;

#[derive(Debug, Default)]
pub(super) struct Held {
    /// By time, and by number among those of the same time.
    batches: BTreeMap<(i64, u64), Bytes>,
    next: u64,
    bytes: u64,
}

impl Held {
    pub(super) fn add(&mut self, time: i64, batch: Bytes) {
        self.bytes += batch.len() as u64 + OVERHEAD;
        self.batches.insert((time, self.next), batch);
        self.next += 1;
    }

    /// Takes the first record out, if its time has come.
    pub(super) fn take_due(&mut self, now: i64) -> Option<Bytes> {
        let first = self.batches.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let batch = first.remove();
        self.bytes -= batch.len() as u64 + OVERHEAD;
        Some(batch)
    }

    pub(super) fn first(&self) -> Option<i64> {
        self.batches.first_key_value().map(|((time, _), _)| *time)
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
