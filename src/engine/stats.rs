//! Statistics: what a timer has done, and a snapshot of its wheels.

use crate::wheel::counters::{Counters, Lateness};
use crate::wheel::tick::Nanos;
use crate::wheel::timing_wheel::TimingWheel;
use std::fmt;
use std::time::Duration;

/// What a timer has done since it was built: [`Timer::stats`](crate::Timer::stats).
///
/// Whenever no call is under way, `added == pending + expired + cancelled + returned`.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The timer's name.
    pub name: String,
    /// Timers that were added.
    pub added: u64,
    /// Timers that were cancelled. Also keys that were removed, operations that ended before they
    /// expired (completed ones too), and waiting futures that were dropped or found their time up.
    pub cancelled: u64,
    /// Deadlines that were moved: by `reschedule`, `touch`, `hasten`, the `reset` of a waiting
    /// sleep, or the `add` of a present key. A call that leaves the deadline as it was does not
    /// count.
    pub rescheduled: u64,
    /// Timers that expired: handed to the executor, or refused by it.
    pub expired: u64,
    /// Expired tasks that the executor refused.
    pub refused: u64,
    /// Refused tasks that were dropped, because the timer has no `on_refused`.
    pub dropped: u64,
    /// Panics of the user's code that were contained: of tasks, also on a
    /// [`Worker`](crate::Worker); of executors and `on_refused`; of
    /// [`Periodic`](crate::periodic::Periodic) runs; of wakers; of the `Drop` of a task that
    /// repeats after a shutdown; and of a `Drop` or a clock in the reaper's loop. Not counted here:
    /// panics of operations, which are in
    /// [`purgatory::Stats::panicked`](crate::purgatory::Stats::panicked), and of code that the
    /// executor has handed on.
    pub panicked: u64,
    /// Timers that wait for their deadline.
    pub pending: usize,
    /// Timers that `shutdown` returned; also the closures that it dropped, and the waiting futures
    /// that it woke.
    pub returned: u64,
    /// Moves of a timer from an overflow wheel to a finer one.
    pub cascaded: u64,
    /// Wake-ups of threads that waited in `advance_clock`, the reaper for example.
    pub wakeups: u64,
    /// Whether the timer was started before a `fork` and this is the child, which has
    /// [no reaper](crate::TimerBuilder::start).
    pub forked: bool,
    /// By how much timers expired after their deadline.
    pub lateness: Lateness,
}

impl Stats {
    pub(crate) fn absorb(&mut self, counters: &Counters, pending: usize) {
        self.added += pending as u64 + counters.expired + counters.cancelled + counters.returned;
        self.cancelled += counters.cancelled;
        self.rescheduled += counters.rescheduled;
        self.expired += counters.expired;
        self.cascaded += counters.cascaded;
        self.returned += counters.returned;
        self.pending += pending;
        self.lateness.absorb(&counters.lateness);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: added {}, pending {}",
            self.name, self.added, self.pending
        )?;
        if self.forked {
            writeln!(f, "no reaper: the timer was started before a fork")?;
        }
        writeln!(
            f,
            "cancelled {}, rescheduled {}",
            self.cancelled, self.rescheduled
        )?;
        writeln!(f, "expired {}, cascaded {}", self.expired, self.cascaded)?;
        let Stats {
            refused,
            dropped,
            panicked,
            ..
        } = self;
        writeln!(
            f,
            "refused {refused}, of these dropped {dropped}, panicked {panicked}"
        )?;
        writeln!(f, "returned {}, wakeups {}", self.returned, self.wakeups)?;
        write!(f, "lateness {}", self.lateness)
    }
}

/// The content of a timer's wheels at one moment: [`Timer::snapshot`](crate::Timer::snapshot).
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
    /// The levels that exist, finest first, over all shards. The wheels of [keyed
    /// timers](crate::keyed) and [purgatories](crate::purgatory) have fewer slots, and so levels of
    /// their own.
    pub levels: Vec<LevelSnapshot>,
    /// The number of the timer's shards.
    pub shards: usize,
}

impl Snapshot {
    pub(crate) fn new(shards: usize) -> Self {
        Snapshot {
            levels: Vec::new(),
            shards,
        }
    }

    pub(crate) fn absorb<T>(&mut self, wheel: &TimingWheel<T>, now: Nanos) {
        for level in 0..wheel.depth() {
            self.level(level, wheel.span_of(level), wheel.size());
        }
        for bucket in wheel.armed_at(now) {
            let row = self.level(bucket.level, wheel.span_of(bucket.level), wheel.size());
            let wait = Duration::from_nanos(bucket.wait.0);
            row.armed_buckets += 1;
            row.entries += bucket.entries;
            row.next_expiration = Some(row.next_expiration.map_or(wait, |next| next.min(wait)));
            if row.slots.len() <= bucket.slots_ahead {
                row.slots.resize(bucket.slots_ahead + 1, 0);
            }
            row.slots[bucket.slots_ahead] += bucket.entries;
        }
    }

    fn level(&mut self, level: usize, tick: Nanos, wheel_size: usize) -> &mut LevelSnapshot {
        let tick = Duration::from_nanos(tick.0);
        let key = |row: &LevelSnapshot| (row.tick, row.wheel_size);
        let at = self
            .levels
            .partition_point(|row| key(row) < (tick, wheel_size));
        if self
            .levels
            .get(at)
            .is_none_or(|row| key(row) != (tick, wheel_size))
        {
            let row = LevelSnapshot {
                level,
                tick,
                wheel_size,
                armed_buckets: 0,
                entries: 0,
                next_expiration: None,
                slots: Vec::new(),
            };
            self.levels.insert(at, row);
        }
        &mut self.levels[at]
    }
}

/// One level of a [`Snapshot`].
#[derive(Clone)]
#[non_exhaustive]
pub struct LevelSnapshot {
    /// 0 for the wheel that fires, 1 for the first overflow wheel, ...
    pub level: usize,
    /// The time that a slot spans.
    pub tick: Duration,
    /// The number of the wheel's slots in each shard.
    pub wheel_size: usize,
    /// Armed buckets: those that hold entries, and are to be flushed.
    pub armed_buckets: usize,
    /// Entries in these buckets. Entries that were cancelled, or moved to an earlier deadline,
    /// count until they are swept out.
    pub entries: usize,
    /// The time until the first of these buckets must be flushed; zero if it is due.
    pub next_expiration: Option<Duration>,
    /// The entries by slot: first the slot of the present, with whatever is due, then the slots
    /// ahead, up to the last slot that has a bucket: at most `wheel_size`.
    pub slots: Vec<usize>,
}

/// Leaves the slots out: there may be a million.
impl fmt::Debug for LevelSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelSnapshot")
            .field("level", &self.level)
            .field("tick", &self.tick)
            .field("wheel_size", &self.wheel_size)
            .field("armed_buckets", &self.armed_buckets)
            .field("entries", &self.entries)
            .field("next_expiration", &self.next_expiration)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5} {:>12} {:>8} {:>12}  next",
            "level", "tick", "armed", "entries"
        )?;
        for level in &self.levels {
            let LevelSnapshot {
                level,
                tick,
                armed_buckets,
                entries,
                next_expiration,
                ..
            } = level;
            let tick = format!("{tick:.1?}");
            write!(
                f,
                "\n{level:>5} {tick:>12} {armed_buckets:>8} {entries:>12}  "
            )?;
            match next_expiration {
                Some(next) => write!(f, "in {next:.1?}")?,
                None => write!(f, "-")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::tick::{Due, Tick, TickLength};

    #[test]
    fn no_slot_is_farther_ahead_than_the_wheel_is_large() {
        let mut wheel = TimingWheel::new(TickLength::new(1), 4, Tick(1_000), Nanos::NEVER);
        let due = Due {
            deadline: Nanos(1_003),
            tick: Tick(1_003),
            present: None,
        };
        let (_, reference) = wheel.insert(due, ());
        wheel.file(reference, due, || Nanos(1_000));
        let mut snapshot = Snapshot::new(1);
        snapshot.absorb(&wheel, Nanos(900));
        assert_eq!(snapshot.levels[0].slots, [0, 0, 0, 1]);
    }
}
