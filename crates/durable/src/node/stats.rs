//! What a node has done, and how late: counts and a histogram.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// How many bars there are: the first one up to 8 microseconds, the last one for all above 2.4
/// hours.
const BARS: usize = 32;
/// The power of two, in nanoseconds, at which the first bar ends.
const FIRST: u32 = 13;

/// A histogram in powers of two of how late handlers were called: [`Due::late_by`](crate::Due).
/// Each attempt counts.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    bars: [u64; BARS],
    sum_us: u64,
}

impl Lateness {
    /// Returns the bars that are not empty, shortest times first: the longest time that falls into
    /// each bar, and the bar's count. The last bar's time is [`Duration::MAX`].
    pub fn bars(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let up_to = |bar: usize| match bar {
            bar if bar + 1 < BARS => Duration::from_nanos((1 << (FIRST + bar as u32)) - 1),
            _ => Duration::MAX,
        };
        let bars = self.bars.iter().enumerate().filter(|(_, count)| **count > 0);
        bars.map(move |(bar, count)| (up_to(bar), *count))
    }

    /// Returns the sum of all times, each rounded down to microseconds.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    pub(crate) fn record(&mut self, late: Duration) {
        let bits = u128::BITS - late.as_nanos().leading_zeros();
        let bar = bits.saturating_sub(FIRST) as usize;
        self.bars[bar.min(BARS - 1)] += 1;
        let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.sum_us = self.sum_us.saturating_add(micros);
    }
}

/// Shows the bars that are not empty.
impl fmt::Debug for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.bars()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_falls_into_the_bar_that_says_so() {
        let mut lateness = Lateness::default();
        let times = [0, 8_191, 8_192, 16_383, 1_000_000_000, 9_000_000_000_000];
        times.map(Duration::from_nanos).iter().for_each(|late| lateness.record(*late));
        let nanos = |bar: u32| Duration::from_nanos((1 << bar) - 1);
        let expected = [(nanos(13), 2), (nanos(14), 2), (nanos(30), 1), (Duration::MAX, 1)];
        assert_eq!(lateness.bars().collect::<Vec<_>>(), expected);
        assert_eq!(lateness.sum(), Duration::from_micros(9_001_000_000 + 8 + 8 + 16));
    }
}
