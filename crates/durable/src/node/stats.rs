//! What a node has done, and how late: counts and a histogram.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tickwheel::Lateness;

/// What is counted of a node's [`Stats`]; how it stands is not kept here. std's lock, also under
/// shuttle: it is held for a count.
#[derive(Default)]
pub(crate) struct Counters(Mutex<Stats>);

impl Counters {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Stats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node has done since it was started, and how it stands: for gauges and alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Timers that this node scheduled, also in transactions of yours. One of PostgreSQL counts
    /// when the call has succeeded, whether it is then committed or not: the node is not told. By
    /// the functions of SQL no node counts.
    pub scheduled: u64,
    /// Timers that this node cancelled: as for those that it scheduled.
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
