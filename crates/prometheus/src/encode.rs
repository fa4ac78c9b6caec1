//! The encoding: which metrics there are, and their names, labels and help.

use crate::figures::{
    Count, Figures, LatenessFigures, LeaseFigures, LevelFigures, PurgatoryFigures, TimerFigures,
};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;

type Encoder<'a, 'b> = &'a mut DescriptorEncoder<'b>;

/// The bars of the lateness that get a bucket of their own: their bounds are powers of two, from
/// 8 µs to 69 s. Empty ones are encoded too: Prometheus computes no rate for a bucket that appears
/// with its first timer until the second one is counted.
const BARS: std::ops::Range<u32> = 12..36;

/// Encodes all metrics of what is registered.
pub(crate) fn all(encoder: Encoder<'_, '_>, figures: &Figures) -> fmt::Result {
    if !figures.timers.is_empty() {
        timers(encoder, &figures.timers)?;
        lateness(encoder, &figures.timers)?;
        levels(encoder, &figures.timers)?;
    }
    if !figures.purgatories.is_empty() {
        purgatories(encoder, &figures.purgatories)?;
    }
    if !figures.keyed_timers.is_empty() {
        keys(encoder, &figures.keyed_timers)?;
    }
    if !figures.leases.is_empty() {
        leases(encoder, &figures.leases)?;
    }
    Ok(())
}

/// Encodes a metric that goes up and down.
fn gauges<L: EncodeLabelSet>(
    encoder: Encoder<'_, '_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, usize)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    samples.into_iter().try_for_each(|(labels, value)| {
        family.encode_family(&labels)?.encode_gauge(&(value as u64))
    })
}

/// Encodes a metric that only grows. Its name gets the suffix `_total`.
fn counters<L: EncodeLabelSet>(
    encoder: Encoder<'_, '_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    samples.into_iter().try_for_each(|(labels, value)| {
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)
    })
}

/// A label with its value.
type Label<'a> = [(&'static str, &'a str); 1];

/// The end of a metric's name, its help, and where its value is.
type Counter<F> = (&'static str, &'static str, fn(&F) -> u64);

/// Encodes all counters of one kind of figures.
fn count_all<F>(
    encoder: Encoder<'_, '_>,
    kind: &str,
    all: &[Counter<F>],
    figures: &[F],
    label: fn(&F) -> Label<'_>,
) -> fmt::Result {
    for (what, help, value) in all {
        let name = format!("tickwheel_{kind}_{what}");
        counters(
            encoder,
            &name,
            help,
            figures.iter().map(|it| (label(it), value(it))),
        )?;
    }
    Ok(())
}

fn timers(encoder: Encoder<'_, '_>, timers: &[TimerFigures]) -> fmt::Result {
    fn label(timer: &TimerFigures) -> Label<'_> {
        [("timer", &timer.name)]
    }
    let name = "tickwheel_timer_pending";
    let help = "Timers that wait for their deadline.";
    gauges(
        encoder,
        name,
        help,
        timers.iter().map(|timer| (label(timer), timer.pending)),
    )?;
    let all: [Counter<TimerFigures>; 10] = [
        ("added", "Timers that were added.", |timer| timer.added),
        (
            "cancelled",
            "Timers that were cancelled before they expired.",
            |timer| timer.cancelled,
        ),
        ("rescheduled", "Deadlines that were moved.", |timer| {
            timer.rescheduled
        }),
        ("expired", "Timers that expired.", |timer| timer.expired),
        (
            "refused",
            "Expired tasks that the executor refused.",
            |timer| timer.refused,
        ),
        (
            "dropped",
            "Refused tasks that were dropped: they never ran.",
            |timer| timer.dropped,
        ),
        ("panicked", "Panics of tasks and callbacks.", |timer| {
            timer.panicked
        }),
        ("returned", "Timers that a shutdown returned.", |timer| {
            timer.returned
        }),
        ("cascaded", "Moves of a timer to a finer wheel.", |timer| {
            timer.cascaded
        }),
        ("wakeups", "How often a waiting thread woke up.", |timer| {
            timer.wakeups
        }),
    ];
    count_all(encoder, "timer", &all, timers, label)
}

fn lateness(encoder: Encoder<'_, '_>, timers: &[TimerFigures]) -> fmt::Result {
    let help = "By how much timers expired after their deadline.";
    let lateness = timers
        .iter()
        .map(|timer| ([("timer", &*timer.name)], timer.lateness.clone()));
    histograms(encoder, "tickwheel_timer_lateness", help, lateness)
}

/// Encodes how late something was, in seconds.
fn histograms<L: EncodeLabelSet>(
    encoder: Encoder<'_, '_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, LatenessFigures)>,
) -> fmt::Result {
    let kind = MetricType::Histogram;
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
    samples
        .into_iter()
        .try_for_each(|(labels, lateness)| histogram(family.encode_family(&labels)?, &lateness))
}

fn histogram(mut encoder: MetricEncoder<'_>, lateness: &LatenessFigures) -> fmt::Result {
    let up_to_ns = BARS.map(|bar| (2_u64 << bar) - 1).chain([u64::MAX]);
    let mut bars = lateness.bars.iter().peekable();
    let buckets = up_to_ns.map(|up_to_ns| {
        let mut count = 0;
        while let Some((_, more)) = bars.next_if(|(other, _)| *other <= up_to_ns) {
            count += more;
        }
        let seconds = if up_to_ns == u64::MAX {
            f64::INFINITY
        } else {
            up_to_ns as f64 / 1e9
        };
        (seconds, count)
    });
    let buckets: Vec<_> = buckets.collect();
    let sum_s = lateness.sum_ns as f64 / 1e9;
    encoder.encode_histogram::<NoLabelSet>(sum_s, lateness.count(), &buckets, None)
}

/// Encodes the levels, told apart by the time that a slot spans and by the number of slots. Keyed
/// timers have wheels of 64 slots. If the timer's own have 64 too, a level is the sum of both.
fn levels(encoder: Encoder<'_, '_>, timers: &[TimerFigures]) -> fmt::Result {
    let samples = |value: fn(&LevelFigures) -> usize| {
        timers.iter().flat_map(move |timer| {
            timer.levels.iter().map(move |level| {
                let tick_s = format!("{}", level.tick_ns as f64 / 1e9);
                let slots = level.wheel_size.to_string();
                let name = timer.name.clone();
                (
                    [("timer", name), ("tick_seconds", tick_s), ("slots", slots)],
                    value(level),
                )
            })
        })
    };
    let help = "Entries of a level, with those of cancelled timers until they are swept out.";
    gauges(
        encoder,
        "tickwheel_timer_level_entries",
        help,
        samples(|level| level.entries),
    )?;
    let help = "Armed buckets of a level: those that hold entries and wait to be flushed.";
    gauges(
        encoder,
        "tickwheel_timer_level_buckets",
        help,
        samples(|level| level.armed_buckets),
    )
}

fn purgatories(encoder: Encoder<'_, '_>, purgatories: &[PurgatoryFigures]) -> fmt::Result {
    fn label(purgatory: &PurgatoryFigures) -> Label<'_> {
        [("purgatory", &purgatory.name)]
    }
    let delayed = purgatories
        .iter()
        .map(|purgatory| (label(purgatory), purgatory.delayed));
    gauges(
        encoder,
        "tickwheel_purgatory_delayed",
        "Operations that wait.",
        delayed,
    )?;
    let watched = purgatories
        .iter()
        .map(|purgatory| (label(purgatory), purgatory.watched));
    let help = "Entries that are watched: one for each key of an operation.";
    gauges(encoder, "tickwheel_purgatory_watched", help, watched)?;
    let ended = purgatories.iter().flat_map(|purgatory| {
        let ways = [
            ("at_once", purgatory.completed_at_once),
            ("by_trigger", purgatory.completed_by_trigger),
            ("by_force", purgatory.completed_by_force),
            ("expired", purgatory.expired),
            ("cancelled", purgatory.cancelled),
        ];
        ways.map(|(how, count)| ([label(purgatory)[0], ("how", how)], count))
    });
    let help = "Operations that have ended, and how.";
    counters(encoder, "tickwheel_purgatory_ended", help, ended)?;
    let panicked = purgatories
        .iter()
        .map(|purgatory| (label(purgatory), purgatory.panicked));
    counters(
        encoder,
        "tickwheel_purgatory_panicked",
        "Panics of operations' code.",
        panicked,
    )
}

fn keys(encoder: Encoder<'_, '_>, counts: &[Count]) -> fmt::Result {
    let keys = counts
        .iter()
        .map(|count| ([("keyed_timer", &*count.name)], count.count));
    gauges(
        encoder,
        "tickwheel_keyed_timer_keys",
        "Keys that have a timer.",
        keys,
    )
}

fn leases(encoder: Encoder<'_, '_>, leases: &[LeaseFigures]) -> fmt::Result {
    fn label(leases: &LeaseFigures) -> Label<'_> {
        [("leases", &leases.name)]
    }
    let held = leases.iter().map(|leases| (label(leases), leases.held));
    gauges(
        encoder,
        "tickwheel_leases_held",
        "Leases that are held.",
        held,
    )?;
    let all: [Counter<LeaseFigures>; 5] = [
        ("taken", "Leases that were taken.", |leases| leases.taken),
        (
            "renewed",
            "Renewals that the store confirmed in time.",
            |leases| leases.renewed,
        ),
        (
            "failed",
            "Renewals that failed and are tried again.",
            |leases| leases.failed,
        ),
        (
            "released",
            "Leases that ended before they were lost.",
            |leases| leases.released,
        ),
        ("lost", "Leases that were reported lost.", |leases| {
            leases.lost
        }),
    ];
    count_all(encoder, "leases", &all, leases, label)
}

/// A node of durable timers, by its name.
#[cfg(feature = "durable")]
type Node = (String, tickwheel_durable::Stats);

/// Encodes the metrics of all nodes.
#[cfg(feature = "durable")]
pub(crate) fn nodes(encoder: Encoder<'_, '_>, nodes: &[Node]) -> fmt::Result {
    fn label((name, _): &Node) -> Label<'_> {
        [("durable", name)]
    }
    let all: [Counter<Node>; 13] = [
        ("scheduled", "Timers that this node scheduled.", |node| {
            node.1.scheduled
        }),
        ("cancelled", "Timers that this node cancelled.", |node| {
            node.1.cancelled
        }),
        (
            "claimed",
            "Timers that this node claimed, each attempt counted.",
            |node| node.1.claimed,
        ),
        (
            "done",
            "Timers that were done or are due again, without those acknowledged in a transaction.",
            |node| node.1.done,
        ),
        (
            "retried",
            "Attempts that failed and are repeated.",
            |node| node.1.retried,
        ),
        ("dead", "Timers that were given up.", |node| node.1.dead),
        (
            "expired",
            "Timers that ended unrun, as nobody had begun with them in time.",
            |node| node.1.expired,
        ),
        ("panicked", "Panics of handlers.", |node| node.1.panicked),
        ("swept", "Looks at the past that found a timer.", |node| {
            node.1.swept
        }),
        (
            "taken_over",
            "Timers that this node took over, because their claims had run out.",
            |node| node.1.taken_over,
        ),
        (
            "refused",
            "Outcomes that the store refused for good.",
            |node| node.1.refused,
        ),
        (
            "claims_lost",
            "Claims of this node that had run out when it renewed or ended them.",
            |node| node.1.claims_lost,
        ),
        ("errors", "Calls to the store that failed.", |node| {
            node.1.errors
        }),
    ];
    count_all(encoder, "durable", &all, nodes, label)?;
    let help = "Timers that are claimed and not acknowledged.";
    let in_flight = nodes
        .iter()
        .map(|node| (label(node), node.1.in_flight as usize));
    gauges(encoder, "tickwheel_durable_in_flight", help, in_flight)?;
    let help = "By how much durable timers were claimed after their time, without the commit.";
    let lateness = nodes
        .iter()
        .map(|node| (label(node), LatenessFigures::new(&node.1.lateness)));
    histograms(encoder, "tickwheel_durable_lateness", help, lateness)
}
