//! What a node does besides its calls.

pub(crate) mod deadline;
pub(crate) mod stats;

use std::time::Duration;

/// What the builder has set.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    /// How many timers are claimed and not acknowledged, at most.
    pub(crate) max_in_flight: u32,
    pub(crate) max_attempts: u32,
    pub(crate) retry_after: Duration,
    pub(crate) time_limit: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(5),
            max_in_flight: 1_000,
            max_attempts: 20,
            retry_after: Duration::from_secs(1),
            time_limit: None,
        }
    }
}
