//! The report: one line for each subject, and the verdict.

use crate::ledger::{End, Ledger};
use crate::samples::{Samples, monotonic};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tickwheel::Stats;

/// By how much memory may grow.
const FLAT: f64 = 0.01;
/// What the samples of memory are called.
const MEMORY: [&str; 2] = ["in use", "resident"];

pub(crate) struct Report<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) samples: &'a Samples,
    /// Before the shutdown.
    pub(crate) stats: Stats,
    pub(crate) overdue: u64,
    pub(crate) flat: bool,
}

impl Report<'_> {
    /// Early, lost, twice, and overdue before the shutdown.
    fn faults(&self) -> [u64; 4] {
        let Report { ledger, overdue, .. } = self;
        [ledger.early.load(Relaxed), ledger.open_slots(), ledger.twice.load(Relaxed), *overdue]
    }

    /// Every kind of end that the load asks for, and every fault of the executor.
    fn all_happened(&self) -> bool {
        let ends = [End::Expired, End::Completed, End::Cancelled];
        let Stats { refused, panicked, .. } = self.stats;
        ends.iter().all(|end| self.ledger.ended(*end) > 0) && refused > 0 && panicked > 0
    }

    /// Memory that can't be read is zero, and not flat.
    fn is_flat(&self) -> bool {
        let is_flat = |(first, last): (f64, f64)| last <= first * (1.0 + FLAT);
        let is_read = |(first, last): (f64, f64)| first > 0.0 && last > 0.0;
        let growth = self.samples.growth();
        growth.is_some_and(|[in_use, resident]| {
            let judged = self.samples.is_warm();
            is_flat(in_use) && is_read(resident) && (is_flat(resident) || !judged)
        })
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.faults() == [0; 4] && self.all_happened() && (!self.flat || self.is_flat())
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { ledger, samples, stats, .. } = self;
        let ended = |end| ledger.ended(end);
        let late = |share| stats.lateness.quantile(share).unwrap_or_default();
        write!(f, "monotonic clock {:.0} s, ", monotonic())?;
        let stopped = samples.stopped.as_secs_f64();
        writeln!(f, "stopped {stopped:.1} s, wall clock set by {:.0} s", samples.wall_clock())?;
        let (refused, panicked) = (stats.refused, stats.panicked);
        writeln!(f, "refused {refused}, panicked {panicked}, cascaded {}", stats.cascaded)?;
        writeln!(
            f,
            "late p50 {:?}, p99 {:?}, max {:?}",
            late(0.5),
            late(0.99),
            late(1.0).max(Duration::ZERO)
        )?;
        for (what, tenths) in MEMORY.iter().zip(samples.tenths()) {
            let tenths: Vec<_> = tenths.iter().map(|bytes| format!("{:.2}", bytes / 1e6)).collect();
            writeln!(f, "{what}, MB in each tenth of the time: {}", tenths.join(" "))?;
        }
        let [early, lost, twice, overdue] = self.faults();
        write!(
            f,
            "{}: expired {}, completed {}, cancelled {}, returned {}; early {early}, lost {lost}, \
             twice {twice}, overdue {overdue}",
            if self.is_clean() { "clean" } else { "FAILED" },
            ended(End::Expired),
            ended(End::Completed),
            ended(End::Cancelled),
            ended(End::Returned),
        )?;
        let growth = samples.growth().into_iter().flatten();
        for (what, (first, last)) in MEMORY.iter().zip(growth) {
            match first {
                0.0 => write!(f, ", {what} cannot be read")?,
                _ => write!(f, ", {what} {:+.2} %", (last / first - 1.0) * 100.0)?,
            }
        }
        Ok(())
    }
}
