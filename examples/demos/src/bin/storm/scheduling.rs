//! What a timer can't do better than the system: how late a thread wakes that only sleeps, and for
//! how long the reaper was ready to run but was not let.

use hdrhistogram::Histogram;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Sleeps from one millisecond to the next until the end. How late it woke, in nanoseconds.
///
/// It is late for each millisecond that it slept through, as timers of that millisecond would be.
pub(crate) fn bare_sleep(until: Instant) -> Histogram<u64> {
    let mut lateness = Histogram::new(3).expect("three digits are possible");
    let mut due = Instant::now() + MILLISECOND;
    while due <= until {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        lateness.record(due.elapsed().as_nanos() as u64).expect("it grows");
        due += MILLISECOND;
    }
    lateness
}

/// What the system has done with a thread so far. `None` where it does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scheduling {
    /// How often another thread was given its core while it had more to do: it was preempted, or
    /// it yielded, which Linux counts here as well.
    pub(crate) involuntary_switches: Option<u64>,
    /// For how long it ran, in nanoseconds.
    pub(crate) ran: Option<u64>,
    /// For how long it was ready, but another thread ran, in nanoseconds.
    pub(crate) waited: Option<u64>,
}

impl Scheduling {
    /// Reads the figures of this process' thread of that name, of at most 15 bytes: Linux keeps no
    /// more.
    pub(crate) fn of(thread: &str) -> Self {
        let Some(folder) = folder_of(thread) else {
            return Scheduling::default();
        };
        let schedstat = fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        let mut times = schedstat.split_ascii_whitespace().map(|time| time.parse().ok());
        Scheduling {
            involuntary_switches: involuntary_switches(&folder),
            ran: times.next().flatten(),
            waited: times.next().flatten(),
        }
    }

    /// Returns the difference to an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let grown = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Scheduling {
            involuntary_switches: grown(self.involuntary_switches, earlier.involuntary_switches),
            ran: grown(self.ran, earlier.ran),
            waited: grown(self.waited, earlier.waited),
        }
    }
}

fn folder_of(thread: &str) -> Option<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let is_named = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == thread)
    };
    tasks.flatten().map(|task| task.path()).find(is_named)
}

fn involuntary_switches(folder: &Path) -> Option<u64> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let field = "nonvoluntary_ctxt_switches:";
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()
}
