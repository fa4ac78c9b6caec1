//! The progress line on stderr: rewritten in place on a terminal, plain lines elsewhere.

use crate::ledger::Request;
use crate::report::grouped;
use std::io::{IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{Stats, Timer};

pub(crate) struct Progress {
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Progress { is_terminal: std::io::stderr().is_terminal() }
    }

    /// A line that stays.
    pub(crate) fn line(&mut self, text: &str) {
        // A closed stderr is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Shows every second what the timer has done, for so many seconds.
    pub(crate) fn watch(&mut self, timer: &Timer<Request>, start: Instant, seconds: u64) {
        let mut last = (start, timer.stats());
        for second in 1..=seconds {
            let next = start + Duration::from_secs(second);
            thread::sleep(next.saturating_duration_since(Instant::now()));
            let present = (Instant::now(), timer.stats());
            let rate = (operations(&present.1) - operations(&last.1)) as f64
                / (present.0 - last.0).as_secs_f64();
            let text = format!(
                "{second:>4} s  {:>11} operations/s  pending {:>10}  expired {:>10}",
                grouped(rate as u64),
                grouped(present.1.pending as u64),
                grouped(present.1.expired),
            );
            if self.is_terminal {
                eprint!("\r\x1b[2K{text}");
            } else {
                self.line(&text);
            }
            last = present;
        }
        if self.is_terminal {
            self.line("");
        }
    }
}

fn operations(stats: &Stats) -> u64 {
    stats.added + stats.cancelled
}
