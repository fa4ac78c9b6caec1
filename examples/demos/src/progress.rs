//! The progress line on stderr: rewritten in place on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};

pub struct Progress {
    is_terminal: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Progress { is_terminal: std::io::stderr().is_terminal() }
    }
}

impl Progress {
    /// Prints a line that stays.
    pub fn line(&self, text: &str) {
        // A closed stderr is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Prints a line that the next one of its kind replaces.
    pub fn show(&self, text: &str) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K{text}");
        } else {
            self.line(text);
        }
    }

    /// Ends the last line that was shown.
    pub fn end(&self) {
        if self.is_terminal {
            self.line("");
        }
    }
}
