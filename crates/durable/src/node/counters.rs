//! What a node has done.

use crate::node::count::Count;
use crate::node::lateness::{Lateness, Recorder};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) scheduled: Count,
    pub(crate) cancelled: Count,
    pub(crate) claimed: Count,
    pub(crate) done: Count,
    pub(crate) retried: Count,
    pub(crate) dead: Count,
    pub(crate) panicked: Count,
    pub(crate) swept: Count,
    pub(crate) errors: Count,
    pub(crate) leases_lost: Count,
    pub(crate) lateness: Recorder,
}

/// What a node has done since it was started, and how it stands: for gauges and alerts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Timers that this node scheduled.
    pub scheduled: u64,
    /// Timers that this node cancelled.
    pub cancelled: u64,
    /// Timers that this node claimed; one that is tried again counts again.
    pub claimed: u64,
    /// Timers that were done, or are due again by their handler's wish.
    pub done: u64,
    /// Attempts that failed and will be repeated.
    pub retried: u64,
    /// Timers that were given up.
    pub dead: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Timers that only a sweep found: their hints were lost, or the window was full.
    pub swept: u64,
    /// Calls to the store that failed and were or will be repeated.
    pub errors: u64,
    /// Leases of this node that ran out. Above zero: look at the store, or at the network.
    pub leases_lost: u64,
    /// How late handlers were called.
    pub lateness: Lateness,
    /// Timers in the wheel.
    pub near: u64,
    /// Timers that are due and wait to be claimed.
    pub ready: u64,
    /// Timers claimed and not acknowledged.
    pub in_flight: u64,
    /// Slots that this node owns.
    pub slots: u64,
}
