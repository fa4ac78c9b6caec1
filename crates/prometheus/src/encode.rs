//! The encoding: which metrics there are, and their names, labels and help.

use crate::figures::{
    Count, Figures, LatenessFigures, LevelFigures, PurgatoryFigures, TimerFigures,
};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;

type Encoder<'a, 'b> = &'a mut DescriptorEncoder<'b>;

/// The bars of the lateness that are shown one by one, those of 2^n nanoseconds, from 4 µs to 34 s:
/// always the same, because a series that begins with its first timer has no rate until its second.
const BARS: std::ops::Range<u32> = 12..36;

/// A metric with one sample for each of `T`, or several.
struct Metric<'a> {
    name: &'a str,
    help: &'a str,
}

pub(crate) fn all(encoder: Encoder<'_, '_>, figures: &Figures) -> fmt::Result {
    if !figures.timers.is_empty() {
        timers(encoder, &figures.timers)?;
        lateness(encoder, &figures.timers)?;
        levels(encoder, &figures.timers)?;
    }
    if !figures.purgatories.is_empty() {
        purgatories(encoder, &figures.purgatories)?;
    }
    let keys = Metric { name: "tickwheel_keyed_timer_keys", help: "Keys that have a timer." };
    counts(encoder, &keys, "keyed_timer", &figures.keyed_timers)?;
    let held = Metric { name: "tickwheel_leases_held", help: "Leases that are held." };
    counts(encoder, &held, "leases", &figures.leases)
}

impl Metric<'_> {
    /// Gauges have a value of now.
    fn gauges<'s, L: EncodeLabelSet + 's>(
        &self,
        encoder: Encoder<'_, '_>,
        samples: impl IntoIterator<Item = (L, usize)>,
    ) -> fmt::Result {
        let mut family =
            encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
        samples.into_iter().try_for_each(|(labels, value)| {
            family.encode_family(&labels)?.encode_gauge(&(value as u64))
        })
    }

    /// Counters only grow. Their names get the suffix `_total`.
    fn counters<L: EncodeLabelSet>(
        &self,
        encoder: Encoder<'_, '_>,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family =
            encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
        samples.into_iter().try_for_each(|(labels, value)| {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }
}

fn timers(encoder: Encoder<'_, '_>, timers: &[TimerFigures]) -> fmt::Result {
    let pending = Metric { name: "tickwheel_timer_pending", help: "Timers that wait." };
    let label = |timer: &'_ TimerFigures| [("timer", timer.name.clone())];
    pending.gauges(encoder, timers.iter().map(|timer| (label(timer), timer.pending)))?;
    type Counter = (&'static str, &'static str, fn(&TimerFigures) -> u64);
    let counters: [Counter; 10] = [
        ("added", "Timers that were added.", |timer| timer.added),
        ("cancelled", "Timers that were cancelled before they expired.", |timer| timer.cancelled),
        ("rescheduled", "Deadlines that were moved.", |timer| timer.rescheduled),
        ("expired", "Timers that expired.", |timer| timer.expired),
        ("refused", "Expired tasks that the executor refused.", |timer| timer.refused),
        ("dropped", "Refused tasks that were dropped: they never ran.", |timer| timer.dropped),
        ("panicked", "Panics of tasks and callbacks.", |timer| timer.panicked),
        ("returned", "Timers that a shutdown returned.", |timer| timer.returned),
        ("cascaded", "Moves of a timer to a finer wheel.", |timer| timer.cascaded),
        ("wakeups", "How often a waiting thread woke up.", |timer| timer.wakeups),
    ];
    for (what, help, value) in counters {
        let name = format!("tickwheel_timer_{what}");
        let metric = Metric { name: &name, help };
        metric.counters(encoder, timers.iter().map(|timer| (label(timer), value(timer))))?;
    }
    Ok(())
}

fn lateness(encoder: Encoder<'_, '_>, timers: &[TimerFigures]) -> fmt::Result {
    let help = "By how much timers expired after their deadline.";
    let (name, kind) = ("tickwheel_timer_lateness", MetricType::Histogram);
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
    timers.iter().try_for_each(|timer| {
        let labels = [("timer", timer.name.as_str())];
        histogram(family.encode_family(&labels)?, &timer.lateness)
    })
}

fn histogram(mut encoder: MetricEncoder<'_>, lateness: &LatenessFigures) -> fmt::Result {
    let up_to_ns = BARS.map(|bar| (2_u64 << bar) - 1).chain([u64::MAX]);
    let mut bars = lateness.bars.iter().peekable();
    let buckets = up_to_ns.map(|up_to_ns| {
        let mut count = 0;
        while let Some((_, more)) = bars.next_if(|(other, _)| *other <= up_to_ns) {
            count += more;
        }
        let seconds = if up_to_ns == u64::MAX { f64::INFINITY } else { up_to_ns as f64 / 1e9 };
        (seconds, count)
    });
    let buckets: Vec<_> = buckets.collect();
    let sum_s = lateness.sum_ns as f64 / 1e9;
    encoder.encode_histogram::<NoLabelSet>(sum_s, lateness.count(), &buckets, None)
}

/// Levels are told apart by what a slot spans and how many there are: those of keyed timers have
/// fewer slots than the timer's own, and so other ticks.
fn levels(encoder: Encoder<'_, '_>, timers: &[TimerFigures]) -> fmt::Result {
    let samples = |value: fn(&LevelFigures) -> usize| {
        timers.iter().flat_map(move |timer| {
            timer.levels.iter().map(move |level| {
                let tick_s = format!("{}", level.tick_ns as f64 / 1e9);
                let slots = level.wheel_size.to_string();
                let name = timer.name.clone();
                ([("timer", name), ("tick_seconds", tick_s), ("slots", slots)], value(level))
            })
        })
    };
    let name = "tickwheel_timer_level_entries";
    let entries = Metric { name, help: "Entries of a level, with those of cancelled timers." };
    entries.gauges(encoder, samples(|level| level.entries))?;
    let name = "tickwheel_timer_level_buckets";
    let buckets = Metric { name, help: "Buckets of a level that the delay queue knows." };
    buckets.gauges(encoder, samples(|level| level.armed_buckets))
}

fn purgatories(encoder: Encoder<'_, '_>, purgatories: &[PurgatoryFigures]) -> fmt::Result {
    let label = |purgatory: &PurgatoryFigures| [("purgatory", purgatory.name.clone())];
    let gauges = |value: fn(&PurgatoryFigures) -> usize| {
        purgatories.iter().map(move |purgatory| (label(purgatory), value(purgatory)))
    };
    let delayed = Metric { name: "tickwheel_purgatory_delayed", help: "Operations that wait." };
    delayed.gauges(encoder, gauges(|purgatory| purgatory.delayed))?;
    let help = "Entries that are watched: one for each key of an operation.";
    let watched = Metric { name: "tickwheel_purgatory_watched", help };
    watched.gauges(encoder, gauges(|purgatory| purgatory.watched))?;
    let ended = purgatories.iter().flat_map(|purgatory| {
        let ways = [
            ("at_once", purgatory.completed_at_once),
            ("by_trigger", purgatory.completed_by_trigger),
            ("by_force", purgatory.completed_by_force),
            ("expired", purgatory.expired),
            ("cancelled", purgatory.cancelled),
        ];
        let name = &purgatory.name;
        ways.map(|(how, count)| ([("purgatory", name.as_str()), ("how", how)], count))
    });
    let help = "Operations that have ended, and how.";
    Metric { name: "tickwheel_purgatory_ended", help }.counters(encoder, ended)?;
    let help = "Panics of operations' code.";
    let panicked = purgatories.iter().map(|purgatory| (label(purgatory), purgatory.panicked));
    Metric { name: "tickwheel_purgatory_panicked", help }.counters(encoder, panicked)
}

fn counts(
    encoder: Encoder<'_, '_>,
    metric: &Metric<'_>,
    label: &str,
    counts: &[Count],
) -> fmt::Result {
    if counts.is_empty() {
        return Ok(());
    }
    let samples = counts.iter().map(|count| ([(label, count.name.as_str())], count.count));
    metric.gauges(encoder, samples)
}
