//! Counters: what one timing wheel has done, and how late it was.

use crate::wheel::tick::Nanos;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) cancelled: u64,
    pub(crate) rescheduled: u64,
    pub(crate) expired: u64,
    pub(crate) cascaded: u64,
    pub(crate) returned: u64,
    pub(crate) lateness: Lateness,
}

impl Counters {
    pub(crate) fn record_expired(&mut self, late: Nanos) {
        self.expired += 1;
        self.lateness.record_nanos(late);
    }

    pub(crate) fn absorb(&mut self, other: &Counters) {
        self.cancelled += other.cancelled;
        self.rescheduled += other.rescheduled;
        self.expired += other.expired;
        self.cascaded += other.cascaded;
        self.returned += other.returned;
        self.lateness.absorb(&other.lateness);
    }
}

/// A histogram in powers of two of how late timers expired.
///
/// Lateness is measured from the exact deadline, or from the building of the timer if that is
/// later. It ends when the timer is taken out for the executor, or for an operation of a purgatory
/// when the executor runs its task. Bar `n` counts the times from 2^n to 2^(n+1) - 1 nanoseconds;
/// bar 0 also counts 0.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Lateness {
    /// As many as were needed: a purgatory has very many histograms.
    bars: Vec<u64>,
    /// In nanoseconds.
    sum: u64,
}

impl Lateness {
    /// Counts a time, of at most 584 years.
    ///
    /// For a histogram of your own: how late a worker begins, say.
    pub fn record(&mut self, late: Duration) {
        self.record_nanos(Nanos::of(late));
    }

    fn record_nanos(&mut self, late: Nanos) {
        let bar = (late.0 | 1).ilog2() as usize;
        self.reach(bar + 1);
        self.bars[bar] += 1;
        self.sum = self.sum.saturating_add(late.0);
    }

    #[inline]
    fn reach(&mut self, bars: usize) {
        if self.bars.len() < bars {
            self.bars.resize(bars, 0);
        }
    }

    pub(crate) fn absorb(&mut self, other: &Lateness) {
        self.reach(other.bars.len());
        for (bar, count) in self.bars.iter_mut().zip(&other.bars) {
            *bar += count;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns the number of timers counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.bars.iter().sum()
    }

    /// Returns the sum of all times, at most 584 years.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the bars that are not empty, shortest times first: the longest time of each bar, and
    /// its count.
    ///
    /// ```
    /// # let timer: tickwheel::Timer = tickwheel::Timer::builder().build().unwrap();
    /// for (up_to, count) in timer.stats().lateness.bars() {
    ///     println!("late by at most {up_to:?}: {count}");
    /// }
    /// ```
    pub fn bars(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let bars = self
            .bars
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        bars.map(|(bar, count)| (Duration::from_nanos(u64::MAX >> (63 - bar)), *count))
    }

    /// Returns a time that the given `share` of the timers, from 0 to 1, did not exceed: the upper
    /// end of a bar, so up to twice too long. Returns `None` if nothing was counted.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let exact = share.clamp(0.0, 1.0) * self.count() as f64;
        let wanted = exact as u64 + u64::from(exact as u64 as f64 != exact); // Rounded up.
        let mut seen = 0;
        self.bars().find_map(|(up_to, count)| {
            seen += count;
            (seen >= wanted).then_some(up_to)
        })
    }
}

impl fmt::Debug for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.bars()).finish()
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(p50), Some(p99), Some(max)) =
            (self.quantile(0.5), self.quantile(0.99), self.quantile(1.0))
        else {
            return write!(f, "of nothing");
        };
        write!(f, "p50 <= {p50:.1?}, p99 <= {p99:.1?}, max <= {max:.1?}")?;
        let most = self.bars.iter().copied().max().unwrap_or(0);
        for (up_to, count) in self.bars() {
            let bar = "#".repeat((40 * u128::from(count)).div_ceil(u128::from(most)) as usize);
            let up_to = format!("{up_to:.1?}");
            write!(f, "\n  <= {up_to:>9} {count:>12} {bar}")?;
        }
        Ok(())
    }
}
