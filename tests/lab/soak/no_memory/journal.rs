//! The journal: what happened before the process ended, written at once and without allocating.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An entry is about to be added, with this deadline.
    Adds,
    /// It was added.
    Added,
    /// It may expire at this time as well.
    Moves,
    /// It has ended before its time.
    Taken,
    /// It has expired, at this time.
    Expired,
    /// All that was due at this time has expired.
    Turned,
}

const EVENTS: [(Event, &str); 6] = [
    (Event::Adds, "adds"),
    (Event::Added, "added"),
    (Event::Moves, "moves"),
    (Event::Taken, "taken"),
    (Event::Expired, "expired"),
    (Event::Turned, "turned"),
];

pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Journal(file.expect("a new file"))
    }

    pub(crate) fn write(&self, event: Event, id: u32, time: u64) {
        let (_, name) = EVENTS[event as usize];
        let mut line = [0; 64];
        let mut rest = &mut line[..];
        writeln!(rest, "{name} {id} {time}").expect("it is long enough");
        let left = rest.len();
        // In one piece: several threads write.
        (&self.0).write_all(&line[..line.len() - left]).expect("the file can be written");
    }
}

#[derive(Default)]
struct Entry {
    bound: u64,
    /// When it is due at the latest.
    latest: u64,
    added: bool,
    ended: bool,
}

/// Reads a journal. Returns what is wrong, and how many entries have expired.
pub(crate) fn judge(text: &str, tick: u64) -> (Option<String>, usize) {
    let mut entries: HashMap<u32, Entry> = HashMap::new();
    let mut expired = 0;
    for line in text.lines() {
        let mut words = line.split(' ');
        let event = words.next().and_then(|word| EVENTS.iter().find(|(_, name)| *name == word));
        let event = event.unwrap_or_else(|| panic!("an event: {line}")).0;
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("two");
        let (id, time) = (number() as u32, number());
        let entry = entries.entry(id).or_default();
        let is_end = matches!(event, Event::Taken | Event::Expired);
        if is_end && entry.ended {
            return (Some(format!("it had ended: {line}")), expired);
        }
        entry.ended |= is_end;
        match event {
            Event::Adds => (entry.bound, entry.latest) = (time, time),
            Event::Added => entry.added = true,
            Event::Moves => {
                (entry.bound, entry.latest) = (entry.bound.min(time), entry.latest.max(time));
            }
            Event::Taken => {}
            Event::Expired if time < entry.bound => {
                return (Some(format!("it is early: {line}")), expired);
            }
            Event::Expired => expired += 1,
            Event::Turned => {
                let late = |entry: &&Entry| {
                    entry.added && !entry.ended && entry.latest.saturating_add(tick) <= time
                };
                if entries.values().find(late).is_some() {
                    return (Some(format!("something due has not expired: {line}")), expired);
                }
            }
        }
    }
    (None, expired)
}
