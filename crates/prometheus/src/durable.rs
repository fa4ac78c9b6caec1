//! The metrics of a node of durable timers.

use crate::encode::{Encoder, counters, gauges, histograms};
use crate::lateness::LatenessFigures;
use std::fmt;
use tickwheel_durable::Stats;

/// The end of a metric's name, its help, and where its value is.
type Metric = (&'static str, &'static str, fn(&Stats) -> u64);

const COUNTERS: [Metric; 10] = [
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

const GAUGES: [Metric; 4] = [
    ("near", "Timers in the wheel.", |node| node.near),
    ("ready", "Timers that are due and wait to be claimed.", |node| node.ready),
    ("in_flight", "Timers that are claimed and not acknowledged.", |node| node.in_flight),
    ("slots", "Slots that this node owns.", |node| node.slots),
];

/// Encodes the metrics of all nodes, each with its name.
pub(crate) fn encode(encoder: Encoder<'_, '_>, nodes: &[(String, Stats)]) -> fmt::Result {
    fn label((name, _): &(String, Stats)) -> [(&'static str, &str); 1] {
        [("durable", name)]
    }
    for (what, help, value) in COUNTERS {
        let name = format!("tickwheel_durable_{what}");
        counters(encoder, &name, help, nodes.iter().map(|node| (label(node), value(&node.1))))?;
    }
    for (what, help, value) in GAUGES {
        let name = format!("tickwheel_durable_{what}");
        let samples = nodes.iter().map(|node| (label(node), value(&node.1) as usize));
        gauges(encoder, &name, help, samples)?;
    }
    let help = "By how much handlers of durable timers were called after their time.";
    let lateness = nodes.iter().map(|node| {
        let lateness = node.1.lateness;
        (label(node), LatenessFigures::new(lateness.sum(), lateness.bars()))
    });
    histograms(encoder, "tickwheel_durable_lateness", help, lateness)
}
