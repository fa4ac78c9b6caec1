//! The progress line while the storm lasts.

use demos::figures::grouped;
use demos::ledger::Request;
use demos::progress::Progress;
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{Stats, Timer};

/// Shows every second what the timer has done, for so many seconds.
pub(crate) fn watch(progress: &Progress, timer: &Timer<Request>, start: Instant, seconds: u64) {
    let mut last = (start, timer.stats());
    for second in 1..=seconds {
        let next = start + Duration::from_secs(second);
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let present = (Instant::now(), timer.stats());
        let rate = (operations(&present.1) - operations(&last.1)) as f64
            / (present.0 - last.0).as_secs_f64();
        progress.show(&format!(
            "{second:>4} s  {:>11} operations/s  pending {:>10}  expired {:>10}",
            grouped(rate as u64),
            grouped(present.1.pending as u64),
            grouped(present.1.expired),
        ));
        last = present;
    }
    progress.end();
}

fn operations(stats: &Stats) -> u64 {
    stats.added + stats.cancelled
}
