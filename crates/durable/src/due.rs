//! What a handler gets, and what it answers.

use crate::entry::When;
use crate::store::Place;
use crate::time::StoreTime;
use std::time::Duration;

/// Says who claimed a timer: the partition and how many owners that has had.
///
/// A later owner's epoch is greater. An outside system that remembers the greatest epoch it has
/// seen for each partition, and refuses smaller ones, is safe from a node that slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The partition of its namespace in which the timer lies, for as long as it exists.
    pub partition: u32,
    /// The partition's epoch: it grows by one with each owner.
    pub epoch: i64,
}

/// A timer whose time has come, claimed for this handler.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Due {
    /// The key, if it has one.
    pub key: Option<String>,
    /// What was scheduled with it.
    pub payload: Vec<u8>,
    /// Tells this timer from all others; the same in each attempt.
    pub id: i64,
    /// When it was due.
    pub at: StoreTime,
    /// Which attempt this is: 1 at first. One that was in a crash counts, also where another timer
    /// may have brought the process down: before the first one no handler has begun.
    pub attempt: u32,
    /// How much later than `at` it was claimed, by the store's clock.
    pub late_by: Duration,
    /// The fencing token.
    pub token: Token,
    /// Where its row lies in the store.
    pub(crate) slot: u32,
}

impl Due {
    pub(crate) fn place(&self) -> Place {
        Place { due: self.at, slot: self.slot, id: self.id }
    }
}

/// What became of a timer that was due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done: its row is deleted.
    Done,
    /// It failed: the same again, then. After the last attempt it goes to the dead ones instead.
    RetryAt(When),
    /// It is done for this time, and due again then, with this payload; attempts start anew.
    Again(When, Vec<u8>),
    /// It will never succeed: it goes to the dead ones, with this reason.
    Dead(String),
}
