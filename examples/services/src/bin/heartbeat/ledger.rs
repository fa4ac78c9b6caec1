//! What was reported of each connection, by either end.

use crate::crew::Source;
use crate::process::{Left, Report};
use std::time::Duration;
use tickwheel_services::heartbeat::{End, Event};

/// What one end saw of a connection, over all the times that it was opened.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    opened: usize,
    /// How often the other end had closed it, or had died.
    pub(crate) closed: usize,
    /// For how long the other end was silent, each time that it was given up for that.
    pub(crate) silences: Vec<Duration>,
}

pub(crate) struct Ledger {
    pub(crate) at_server: Vec<Seen>,
    pub(crate) at_client: Vec<Seen>,
    /// The last words of each process.
    pub(crate) left: Vec<Left>,
}

impl Ledger {
    pub(crate) fn new(connections: u32) -> Self {
        let none = vec![Seen::default(); connections as usize];
        Ledger { at_server: none.clone(), at_client: none, left: Vec::new() }
    }

    pub(crate) fn enter(&mut self, source: Source, report: Report) {
        let side = match source {
            Source::Server => &mut self.at_server,
            Source::Client => &mut self.at_client,
        };
        match report {
            Report::Saw(Event::Opened { connection }) => side[connection as usize].opened += 1,
            Report::Saw(Event::Closed { connection, end }) => {
                let seen = &mut side[connection as usize];
                match end {
                    End::Closed => seen.closed += 1,
                    End::Silent(silence) => seen.silences.push(silence),
                }
            }
            Report::Left(left) => self.left.push(left),
            Report::Listening(_) => {}
        }
    }
}

impl Seen {
    pub(crate) fn is_open(&self) -> bool {
        self.opened == self.closed + self.silences.len() + 1
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.opened == self.closed + self.silences.len()
    }

    /// Returns whether it was opened once, and nothing has happened since.
    pub(crate) fn is_untouched(&self) -> bool {
        self.opened == 1 && self.is_open()
    }
}
