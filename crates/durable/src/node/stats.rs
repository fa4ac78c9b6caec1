//! The counters of a node, and the lateness of its claims.

use tickwheel::Lateness;

/// The counters of a node since its start, and its present state: for metrics and alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Timers that this node scheduled, without those of your own transactions.
    pub scheduled: u64,
    /// Timers that this node cancelled, without those of your own transactions.
    pub cancelled: u64,
    /// Timers that this node claimed. Each attempt counts.
    pub claimed: u64,
    /// Handlers that answered [`Done`](crate::Outcome::Done) or [`Again`](crate::Outcome::Again),
    /// those included that had acknowledged their timers in transactions.
    pub done: u64,
    /// Attempts that failed and will be repeated, unless the timer was cancelled or scheduled again
    /// during that run.
    pub retried: u64,
    /// Timers that were given up, also those that were cancelled or scheduled again during their
    /// last run: these are in no list of dead timers.
    pub dead: u64,
    /// Timers that [expired](crate::Entry::expires_after) before a handler had them.
    pub expired: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Looks that found a timer which no claim had met: it was locked, or no node was told of it.
    pub swept: u64,
    /// Timers that this node took over, because their claims had run out.
    pub taken_over: u64,
    /// Outcomes that the store has refused for good: their timers run again after an hour. If this
    /// is not zero, see the log.
    pub refused: u64,
    /// Claims of this node that had run out when the store refused their renewals or outcomes. If
    /// this is not zero, the store or the network may be slow.
    pub claims_lost: u64,
    /// Failed calls that the node makes by itself. It repeats them. Errors of your calls are
    /// returned to you, and not counted.
    pub errors: u64,
    /// How late timers were claimed, by the store's clock. The commit of the claim, for which
    /// handlers wait, is not included.
    pub lateness: Lateness,
    /// Timers claimed and not acknowledged.
    pub in_flight: u64,
}
