//! What a node has done, and how late: counts and a histogram.

use tickwheel::Lateness;

/// What a node has done since it was started, and how it stands: for gauges and alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Timers that this node scheduled, also in transactions of yours, committed or not. No
    /// node counts timers that the SQL functions schedule.
    pub scheduled: u64,
    /// Timers that this node cancelled: as for those that it scheduled.
    pub cancelled: u64,
    /// Timers that this node claimed; one that is tried again counts again.
    pub claimed: u64,
    /// Timers that were done, or are due again by their handler's wish; without those that were
    /// acknowledged in a transaction.
    pub done: u64,
    /// Attempts that failed and will be repeated.
    pub retried: u64,
    /// Timers that were given up.
    pub dead: u64,
    /// Timers that ended unrun, as nobody had begun with them
    /// [in time](crate::Entry::expires_after).
    pub expired: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Looks at the past that found a timer: no node was told of it, or it was locked.
    pub swept: u64,
    /// Timers that this node took over, because their claims had run out.
    pub taken_over: u64,
    /// Outcomes that the store has refused for good: their timers run again after an hour. Above
    /// zero: look at the log.
    pub refused: u64,
    /// Claims of this node that another node has taken over. Above zero: look at the store, or at
    /// the network.
    pub claims_lost: u64,
    /// Calls that the node makes by itself and that failed: it repeats them. The errors of your
    /// calls are returned to you, and not counted.
    pub errors: u64,
    /// How late timers were claimed, by the store's clock. The commit of the claim, for which
    /// handlers wait, is not included.
    pub lateness: Lateness,
    /// Timers claimed and not acknowledged.
    pub in_flight: u64,
}
