//! The figures of a node of durable timers, and the names of their metrics.

use crate::lateness::LatenessFigures;
use serde::{Deserialize, Serialize};

/// The figures of a node of durable timers: counts since its start, and its present load. They are
/// those of `tickwheel_durable::Stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DurableFigures {
    /// The name that it is shown under.
    pub name: String,
    /// Timers that this node scheduled.
    pub scheduled: u64,
    /// Timers that this node cancelled.
    pub cancelled: u64,
    /// Timers that this node claimed; each attempt counts.
    pub claimed: u64,
    /// Timers whose handlers succeeded.
    pub done: u64,
    /// Attempts that failed and are repeated.
    pub retried: u64,
    /// Timers that were given up.
    pub dead: u64,
    /// Panics of handlers.
    pub panicked: u64,
    /// Timers that only a sweep found.
    pub swept: u64,
    /// Calls to the store that failed.
    pub errors: u64,
    /// Leases of this node that ran out.
    pub leases_lost: u64,
    /// How late its handlers were called.
    #[serde(default)]
    pub lateness: LatenessFigures,
    /// Timers in the wheel.
    pub near: u64,
    /// Timers that are due and wait to be claimed.
    pub ready: u64,
    /// Timers that are claimed and not acknowledged.
    pub in_flight: u64,
    /// Slots that this node owns.
    pub slots: u64,
}

#[cfg(feature = "durable")]
impl DurableFigures {
    pub(crate) fn new(name: &str, stats: &tickwheel_durable::Stats) -> Self {
        DurableFigures {
            name: name.to_owned(),
            scheduled: stats.scheduled,
            cancelled: stats.cancelled,
            claimed: stats.claimed,
            done: stats.done,
            retried: stats.retried,
            dead: stats.dead,
            panicked: stats.panicked,
            swept: stats.swept,
            errors: stats.errors,
            leases_lost: stats.leases_lost,
            lateness: LatenessFigures::new(stats.lateness.sum(), stats.lateness.bars()),
            near: stats.near,
            ready: stats.ready,
            in_flight: stats.in_flight,
            slots: stats.slots,
        }
    }
}

/// The end of a metric's name, its help, and where its value is.
pub(crate) type Metric = (&'static str, &'static str, fn(&DurableFigures) -> u64);

pub(crate) const COUNTERS: [Metric; 10] = [
    ("scheduled", "Timers that this node scheduled.", |node| node.scheduled),
    ("cancelled", "Timers that this node cancelled.", |node| node.cancelled),
    ("claimed", "Timers that this node claimed, each attempt counted.", |node| node.claimed),
    ("done", "Timers whose handlers succeeded.", |node| node.done),
    ("retried", "Attempts that failed and are repeated.", |node| node.retried),
    ("dead", "Timers that were given up.", |node| node.dead),
    ("panicked", "Panics of handlers.", |node| node.panicked),
    ("swept", "Timers that only a sweep found.", |node| node.swept),
    ("errors", "Calls to the store that failed.", |node| node.errors),
    ("leases_lost", "Leases of this node that ran out.", |node| node.leases_lost),
];

pub(crate) const GAUGES: [Metric; 4] = [
    ("near", "Timers in the wheel.", |node| node.near),
    ("ready", "Timers that are due and wait to be claimed.", |node| node.ready),
    ("in_flight", "Timers that are claimed and not acknowledged.", |node| node.in_flight),
    ("slots", "Slots that this node owns.", |node| node.slots),
];
