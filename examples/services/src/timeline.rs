//! The time line that a program prints: what has happened, and when.

use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

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
