//! The time line that a program prints: what has happened, and when.

use std::fmt::Display;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// What has not happened by then will not happen, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Timeline(Instant);

impl Timeline {
    /// Begins now.
    pub fn begin() -> Self {
        Timeline(Instant::now())
    }

    pub fn say(&self, text: impl Display) {
        let seconds = self.0.elapsed().as_secs_f64();
        // Nobody may be listening any more: the exit status tells all the same.
        let _ = writeln!(std::io::stdout(), "{seconds:8.3} s  {text}");
    }
}

/// Waits for something that is bound to happen. Returns whether it has.
pub fn happens(mut holds: impl FnMut() -> bool) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while !holds() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(1));
    }
    holds()
}
