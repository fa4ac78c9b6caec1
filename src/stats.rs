//! Statistics: what a timer has done, and how it stands.

use std::fmt;
use std::time::Duration;

/// Counts that a shard keeps, written under its lock only.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) added: u64,
    pub(crate) cancelled: u64,
    pub(crate) rescheduled: u64,
    pub(crate) expired: u64,
    pub(crate) cascaded: u64,
    pub(crate) returned: u64,
    lateness: Lateness,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            added: 0,
            cancelled: 0,
            rescheduled: 0,
            expired: 0,
            cascaded: 0,
            returned: 0,
            lateness: Lateness { bars: [0; 64], sum: 0 },
        }
    }
}

impl Counters {
    /// Counts a timer that expires `late` nanoseconds after its deadline.
    pub(crate) fn record_expired(&mut self, late: u64) {
        self.expired += 1;
        self.lateness.bars[(late | 1).ilog2() as usize] += 1;
        self.lateness.sum = self.lateness.sum.saturating_add(late);
    }
}

/// What a timer has done since it was built: [`Timer::stats`](crate::Timer::stats).
///
/// Every timer that was added is pending, expired, cancelled or returned by `shutdown`:
/// `added == pending + expired + cancelled + returned`, as soon as no call is under way.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry};
///
/// let timer: Timer = Timer::builder().build()?;
/// let timeout = timer.add(TimerEntry::after(Duration::from_secs(30), || {}))?;
/// timeout.cancel();
/// let stats = timer.stats();
/// assert_eq!((stats.added, stats.cancelled, stats.pending), (1, 1, 0));
/// println!("{stats}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Timers that were added.
    pub added: u64,
    /// Timers that were cancelled before they expired.
    pub cancelled: u64,
    /// Deadlines that were moved by `reschedule` or `touch`.
    pub rescheduled: u64,
    /// Timers that expired: were handed to the executor, or refused by it.
    pub expired: u64,
    /// Expired tasks that the executor refused.
    pub refused: u64,
    /// Panics of the user's code that were contained: of tasks, also on a
    /// [`Worker`](crate::Worker), and their `Drop` where they were refused; of executors and
    /// `on_refused`; of [`Periodic`](crate::Periodic) runs; of [lease
    /// stores](crate::LeaseStore); and of what the last [`KeyedTimer`](crate::KeyedTimer) or
    /// [`Leases`](crate::Leases) drops. Those of a purgatory's operations are in
    /// [`PurgatoryStats::panicked`](crate::PurgatoryStats::panicked); those of code that the
    /// executor has handed on are where that runs.
    pub panicked: u64,
    /// Timers that wait for their deadline.
    pub pending: usize,
    /// Timers that `shutdown` returned.
    pub returned: u64,
    /// How often a timer was moved from an overflow wheel to a finer one.
    pub cascaded: u64,
    /// How often a thread that waited in `advance_clock`, the reaper for example, woke up.
    pub wakeups: u64,
    /// By how much timers expired after their deadline.
    pub lateness: Lateness,
}

impl Stats {
    pub(crate) fn new(refused: u64, panicked: u64, wakeups: u64) -> Self {
        let Counters { added, cancelled, rescheduled, expired, cascaded, returned, lateness } =
            Counters::default();
        Stats {
            added,
            cancelled,
            rescheduled,
            expired,
            refused,
            panicked,
            pending: 0,
            returned,
            cascaded,
            wakeups,
            lateness,
        }
    }

    pub(crate) fn absorb(&mut self, counters: &Counters, pending: usize) {
        self.added += counters.added;
        self.cancelled += counters.cancelled;
        self.rescheduled += counters.rescheduled;
        self.expired += counters.expired;
        self.cascaded += counters.cascaded;
        self.returned += counters.returned;
        self.pending += pending;
        for (bar, count) in self.lateness.bars.iter_mut().zip(counters.lateness.bars) {
            *bar += count;
        }
        self.lateness.sum = self.lateness.sum.saturating_add(counters.lateness.sum);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "added {}, pending {}", self.added, self.pending)?;
        writeln!(f, "cancelled {}, rescheduled {}", self.cancelled, self.rescheduled)?;
        writeln!(f, "expired {}, cascaded {}", self.expired, self.cascaded)?;
        writeln!(f, "refused {}, panicked {}", self.refused, self.panicked)?;
        writeln!(f, "returned {}, wakeups {}", self.returned, self.wakeups)?;
        write!(f, "lateness {}", self.lateness)
    }
}

/// A histogram in powers of two of how late timers expired.
///
/// Measured from the exact deadline, or from when the timer was built if that is later, to the
/// moment at which the timer was taken out to be handed to the executor. Bar `n` counts the times
/// from 2^n to 2^(n+1) - 1 nanoseconds; bar 0 counts 0 too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    bars: [u64; 64],
    /// In nanoseconds.
    sum: u64,
}

impl Lateness {
    /// How many timers were counted.
    pub fn count(&self) -> u64 {
        self.bars.iter().sum()
    }

    /// All times together; at most 584 years.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// The bars that are not empty: the longest time that falls into each, and its count.
    ///
    /// ```
    /// # let timer: tickwheel::Timer = tickwheel::Timer::builder().build().unwrap();
    /// for (up_to, count) in timer.stats().lateness.bars() {
    ///     println!("late by at most {up_to:?}: {count}");
    /// }
    /// ```
    pub fn bars(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let bars = self.bars.iter().enumerate().filter(|(_, count)| **count > 0);
        bars.map(|(bar, count)| (Duration::from_nanos(u64::MAX >> (63 - bar)), *count))
    }

    /// A time that the given share of the timers, from 0 to 1, did not exceed: the upper end of a
    /// bar, so up to twice too long. `None` if nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        self.bars().find_map(|(up_to, count)| {
            seen += count;
            (seen >= wanted).then_some(up_to)
        })
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
            let bar = "#".repeat((count as f64 / most as f64 * 40.0).ceil() as usize);
            let up_to = format!("{up_to:.1?}");
            write!(f, "\n  <= {up_to:>9} {count:>12} {bar}")?;
        }
        Ok(())
    }
}

/// How a timer stands: [`Timer::snapshot`](crate::Timer::snapshot).
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry};
///
/// let timer: Timer = Timer::builder().build()?;
/// timer.add(TimerEntry::after(Duration::from_secs(3600), || {}))?;
/// let snapshot = timer.snapshot();
/// assert_eq!(snapshot.levels.iter().map(|level| level.entries).sum::<usize>(), 1);
/// println!("{snapshot}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The levels that exist, finest first, over all shards.
    pub levels: Vec<LevelSnapshot>,
    /// How many shards the timer has.
    pub shards: usize,
}

impl Snapshot {
    pub(crate) fn new(levels: Vec<LevelSnapshot>, shards: usize) -> Self {
        Snapshot { levels, shards }
    }
}

/// One level of a [`Snapshot`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LevelSnapshot {
    /// 0 for the wheel that fires, 1 for the first overflow wheel, ...
    pub level: usize,
    /// How much time a slot spans.
    pub tick: Duration,
    /// How many slots the wheel has in each shard.
    pub wheel_size: usize,
    /// Buckets that the delay queue knows.
    pub armed_buckets: usize,
    /// Entries in them; those that were cancelled count until they are swept out.
    pub entries: usize,
    /// When the first of them is to be flushed, counted from now; zero if that is due.
    pub next_expiration: Option<Duration>,
}

impl LevelSnapshot {
    pub(crate) fn new(level: usize, tick: u64, wheel_size: usize) -> Self {
        let tick = Duration::from_nanos(tick);
        LevelSnapshot {
            level,
            tick,
            wheel_size,
            armed_buckets: 0,
            entries: 0,
            next_expiration: None,
        }
    }
}

impl LevelSnapshot {
    /// Adds a bucket, which waits so many nanoseconds if it is armed.
    pub(crate) fn absorb(&mut self, wait: Option<u64>, entries: usize) {
        self.entries += entries;
        if let Some(wait) = wait.map(Duration::from_nanos) {
            self.armed_buckets += 1;
            self.next_expiration = Some(self.next_expiration.map_or(wait, |next| next.min(wait)));
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5} {:>12} {:>8} {:>12}  next", "level", "tick", "armed", "entries")?;
        for level in &self.levels {
            let LevelSnapshot { level, tick, armed_buckets, entries, next_expiration, .. } = level;
            let tick = format!("{tick:.1?}");
            write!(f, "\n{level:>5} {tick:>12} {armed_buckets:>8} {entries:>12}  ")?;
            match next_expiration {
                Some(next) => write!(f, "in {next:.1?}")?,
                None => write!(f, "-")?,
            }
        }
        Ok(())
    }
}
