//! A count that many tasks add to.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that many tasks add to and somebody reads now and then: no order with anything else.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
