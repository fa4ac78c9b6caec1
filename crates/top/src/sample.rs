//! Samples: figures and when they were read; two of them make rates.

use std::time::{Duration, Instant};
use tickwheel_prometheus::{Figures, LatenessFigures, PurgatoryFigures, TimerFigures};

/// The last figures, and what happened since those before.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The figures.
    pub figures: Figures,
    /// One for each timer.
    pub timers: Vec<TimerRates>,
    /// One for each purgatory.
    pub purgatories: Vec<PurgatoryRates>,
    at: Instant,
}

/// What a timer did in each second since the sample before, and how late it was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimerRates {
    pub added: f64,
    pub cancelled: f64,
    pub rescheduled: f64,
    pub expired: f64,
    pub wakeups: f64,
    /// Of what has expired since.
    pub lateness: LatenessFigures,
}

/// What happened in a purgatory in each second since the sample before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PurgatoryRates {
    pub completed: f64,
    pub expired: f64,
}

impl Sample {
    /// Compares figures with the sample before, if there is one. What was not there before has no
    /// rates yet.
    pub fn new(figures: Figures, at: Instant, former: Option<&Sample>) -> Self {
        let passed = former.map_or(Duration::ZERO, |former| at.duration_since(former.at));
        let timers = figures.timers.iter().map(|timer| {
            let before = former.map(|former| &former.figures.timers);
            let before = before.and_then(|all| all.iter().find(|it| it.name == timer.name));
            before.map(|before| timer_rates(timer, before, passed)).unwrap_or_default()
        });
        let purgatories = figures.purgatories.iter().map(|purgatory| {
            let before = former.map(|former| &former.figures.purgatories);
            let before = before.and_then(|all| all.iter().find(|it| it.name == purgatory.name));
            before.map(|before| purgatory_rates(purgatory, before, passed)).unwrap_or_default()
        });
        let (timers, purgatories) = (timers.collect(), purgatories.collect());
        Sample { figures, timers, purgatories, at }
    }

    /// Returns the longest times by which timers were late, the longest first: the timer, the end
    /// of the bar, how many since the service began, and how many since the sample before.
    pub fn slowest(&self) -> Vec<(&str, Duration, u64, u64)> {
        let rows = self.figures.timers.iter().zip(&self.timers).flat_map(|(timer, rates)| {
            timer.lateness.bars.iter().map(|(up_to_ns, count)| {
                let new = rates.lateness.bars.iter().find(|(other, _)| other == up_to_ns);
                let new = new.map_or(0, |(_, new)| *new);
                (&*timer.name, Duration::from_nanos(*up_to_ns), *count, new)
            })
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(_, up_to, ..)| std::cmp::Reverse(*up_to));
        rows
    }
}

fn timer_rates(now: &TimerFigures, before: &TimerFigures, passed: Duration) -> TimerRates {
    TimerRates {
        added: rate(now.added, before.added, passed),
        cancelled: rate(now.cancelled, before.cancelled, passed),
        rescheduled: rate(now.rescheduled, before.rescheduled, passed),
        expired: rate(now.expired, before.expired, passed),
        wakeups: rate(now.wakeups, before.wakeups, passed),
        lateness: now.lateness.since(&before.lateness),
    }
}

fn purgatory_rates(
    now: &PurgatoryFigures,
    before: &PurgatoryFigures,
    passed: Duration,
) -> PurgatoryRates {
    let completed = |it: &PurgatoryFigures| {
        it.completed_at_once + it.completed_by_trigger + it.completed_by_force
    };
    PurgatoryRates {
        completed: rate(completed(now), completed(before), passed),
        expired: rate(now.expired, before.expired, passed),
    }
}

/// Computes a rate. A service that was restarted counts from zero, which gives no rate.
fn rate(now: u64, before: u64, passed: Duration) -> f64 {
    if passed.is_zero() { 0.0 } else { now.saturating_sub(before) as f64 / passed.as_secs_f64() }
}
