//! What a node may be told.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How far ahead timers are loaded.
    pub(crate) window: Duration,
    pub(crate) lease: Duration,
    /// How many timers are claimed and not acknowledged, at most.
    pub(crate) max_in_flight: u32,
    /// How many timers are loaded, at most.
    pub(crate) max_near: usize,
    pub(crate) max_attempts: u32,
    pub(crate) retry_after: Duration,
    /// How many timers that are late are claimed in a second.
    pub(crate) catch_up_rate: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            window: Duration::from_secs(60),
            lease: Duration::from_secs(5),
            max_in_flight: 1_000,
            max_near: 1_000_000,
            max_attempts: 20,
            retry_after: Duration::from_secs(1),
            catch_up_rate: u32::MAX,
        }
    }
}

impl Options {
    /// Returns how long after an attempt a handler that panicked is called again: twice as long
    /// after each attempt, at most 1024 times as long as after the first.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        self.retry_after.saturating_mul(1 << attempt.saturating_sub(1).min(10))
    }

    /// Returns how long a process lives before it has a timer that was alone in so many crashes:
    /// twice as long after each, from twelve leases to sixteen times as many.
    pub(crate) fn quarantine(&self, crashes: u32) -> Duration {
        match crashes.checked_sub(1) {
            Some(more) => self.lease.saturating_mul(12 << more.min(4)),
            None => Duration::ZERO,
        }
    }
}
