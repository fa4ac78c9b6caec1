//! The follower: the second replica of every partition, in this process. It keeps offsets only.

use crate::log::Partition;
use parking_lot::Mutex;
use std::time::Duration;

/// How it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It has what was appended so much later.
    Running {
        lag: Duration,
    },
    Stopped,
}

#[derive(Debug)]
pub struct Follower {
    pace: Mutex<Pace>,
}

impl Follower {
    pub fn new(lag: Duration) -> Self {
        Follower { pace: Mutex::new(Pace::Running { lag }) }
    }

    pub fn pace(&self) -> Pace {
        *self.pace.lock()
    }

    pub fn set_pace(&self, pace: Pace) {
        *self.pace.lock() = pace;
        tracing::info!(?pace, "follower");
    }

    /// Copies a partition up to an offset, unless the follower is stopped. Returns whether that is
    /// news.
    pub fn copy(&self, partition: &Partition, end: i64) -> bool {
        // Under the lock: what it did not have when it was stopped it does not get after that.
        let pace = self.pace.lock();
        *pace != Pace::Stopped && partition.replicate_to(end)
    }
}
