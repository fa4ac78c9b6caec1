//! Ids: numbers that no two lives of the broker share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A client that outlives the broker keeps the id that it was given. If a new life gave the same id
/// to another client, the batches of one would be taken for repetitions of the other's, and be
/// acknowledged without being appended.
#[derive(Debug)]
pub(crate) struct Ids(AtomicI64);

impl Ids {
    /// Starts from the time in milliseconds, and 22 random bits in case that a clock was set back.
    pub(crate) fn new() -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let random = RandomState::new().hash_one(0) as i64 & 0x3f_ffff;
        Ids(AtomicI64::new(((time.as_millis() as i64) << 22 | random) & i64::MAX))
    }

    pub(crate) fn next(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
