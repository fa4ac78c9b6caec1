//! Statistics: what a timer has done, and its current state.

use crate::wheel::counters::{Counters, Lateness};
use std::fmt;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The timer's name.
    pub name: String,
    /// Timers that were added.
    pub added: u64,
    /// Timers that were cancelled before they expired.
    pub cancelled: u64,
    /// Deadlines that were moved: by `reschedule`, `touch`, or the `add` of a key that is there.
    pub rescheduled: u64,
    /// Timers that expired: were handed to the executor, or refused by it.
    pub expired: u64,
    /// Expired tasks that the executor refused.
    pub refused: u64,
    /// Those of them that were dropped, because the timer has no `on_refused`: they never ran.
    pub dropped: u64,
    /// Panics of the user's code that were contained: of tasks, also on a
    /// [`Worker`](crate::Worker); of executors and `on_refused`; of
    /// [`Periodic`](crate::periodic::Periodic) runs; of wakers; and of a `Drop` or a clock, where
    /// the reaper's loop meets it. Those of a purgatory's operations are in
    /// [`purgatory::Stats::panicked`](crate::purgatory::Stats::panicked); those of code that the
    /// executor has handed on are where that runs.
    pub panicked: u64,
    /// Timers that wait for their deadline.
    pub pending: usize,
    /// Timers that `shutdown` returned, or dropped because they were closures of a timer with its
    /// own type of task.
    pub returned: u64,
    /// How often a timer was moved from an overflow wheel to a finer one.
    pub cascaded: u64,
    /// How often a thread that waited in `advance_clock`, the reaper for example, woke up.
    pub wakeups: u64,
    /// By how much timers expired after their deadline.
    pub lateness: Lateness,
}

impl Stats {
    pub(crate) fn absorb(&mut self, counters: &Counters, pending: usize) {
        // A shard's lock is held, so no call is under way there.
        self.added += pending as u64 + counters.expired + counters.cancelled + counters.returned;
        self.cancelled += counters.cancelled;
        self.rescheduled += counters.rescheduled;
        self.expired += counters.expired;
        self.cascaded += counters.cascaded;
        self.returned += counters.returned;
        self.pending += pending;
        self.lateness.absorb(&counters.lateness);
    }

    /// Adds what one source has counted.
    pub(crate) fn add(&mut self, owner: &Stats) {
        self.added += owner.added;
        self.cancelled += owner.cancelled;
        self.rescheduled += owner.rescheduled;
        self.expired += owner.expired;
        self.refused += owner.refused;
        self.dropped += owner.dropped;
        self.panicked = self.panicked.saturating_add(owner.panicked);
        self.pending += owner.pending;
        self.returned += owner.returned;
        self.cascaded += owner.cascaded;
        self.lateness.absorb(&owner.lateness);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: added {}, pending {}", self.name, self.added, self.pending)?;
        writeln!(f, "cancelled {}, rescheduled {}", self.cancelled, self.rescheduled)?;
        writeln!(f, "expired {}, cascaded {}", self.expired, self.cascaded)?;
        let Stats { refused, dropped, panicked, .. } = self;
        writeln!(f, "refused {refused}, of these dropped {dropped}, panicked {panicked}")?;
        writeln!(f, "returned {}, wakeups {}", self.returned, self.wakeups)?;
        write!(f, "lateness {}", self.lateness)
    }
}
