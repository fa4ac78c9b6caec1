//! The book of a model: what was offered to its timer, and what became of it.

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::ThreadId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a timer ended: exactly one of these for each that was offered to the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fired {
        at: u64,
        by: ThreadId,
    },
    Cancelled,
    Returned,
    Refused,
    /// With the timer that it was pending in.
    Dropped,
}

/// No deadline that the timer has to keep: not added yet, or somebody is changing it.
pub(crate) const OPEN: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Record {
    /// It may not fire earlier than this...
    pub(crate) earliest: u64,
    /// ...and an `advance_clock` that begins at or after this fires it.
    pub(crate) latest: u64,
    /// How often it was moved.
    pub(crate) moves: u32,
    pub(crate) ends: Vec<End>,
}

/// What was offered to a timer, and what became of it.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) records: Mutex<BTreeMap<u32, Record>>,
    ended: Condvar,
    /// In order. std's lock, because it is never held for a step of a schedule.
    pub(crate) fired: std::sync::Mutex<Vec<(ThreadId, u32)>>,
    /// From when on nothing may fire.
    closed: AtomicBool,
}

impl Book {
    pub(crate) fn end(&self, id: u32, end: End) {
        let mut records = self.records.lock().unwrap();
        records.get_mut(&id).expect("it was opened").ends.push(end);
        if let End::Fired { by, .. } = end {
            assert!(!self.closed.load(Ordering::Relaxed), "timer {id} fired after the end");
            self.fired.lock().unwrap().push((by, id));
        }
        self.ended.notify_all();
    }

    /// Notes that nothing may fire from now on: a shutdown has returned, or the last timer was
    /// dropped.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until timer `id` has ended.
    pub(crate) fn wait_for(&self, id: u32) {
        let mut records = self.records.lock().unwrap();
        while records.get(&id).is_none_or(|record| record.ends.is_empty()) {
            records = self.ended.wait(records).unwrap();
        }
    }

    /// Checks that every timer has ended once, and that none has fired too early. Returns how they
    /// ended, and how many were fired, cancelled and returned.
    pub(crate) fn settle(&self) -> (String, [u64; 3]) {
        let (mut ends, mut counts) = (String::new(), [0; 3]);
        for (id, record) in &*self.records.lock().unwrap() {
            let [end] = record.ends[..] else { panic!("timer {id} ends not once: {record:?}") };
            match end {
                End::Fired { at, .. } => {
                    assert!(at >= record.earliest, "timer {id} fired early: {record:?}");
                    counts[0] += 1;
                }
                End::Cancelled => counts[1] += 1,
                End::Returned => counts[2] += 1,
                End::Refused | End::Dropped => (),
            }
            ends += &format!("{id} {end:?}; ");
        }
        (ends, counts)
    }

    pub(crate) fn write<R>(&self, id: u32, write: impl FnOnce(&mut Record) -> R) -> R {
        let mut records = self.records.lock().unwrap();
        let new = Record { earliest: 0, latest: OPEN, moves: 0, ends: Vec::new() };
        write(records.entry(id).or_insert(new))
    }

    /// Returns those that have to fire by `now` and have not ended, and how often each was moved.
    pub(crate) fn overdue(&self, now: u64) -> Vec<(u32, u32)> {
        let records = self.records.lock().unwrap();
        let overdue = records.iter().filter(|(_, r)| r.latest <= now && r.ends.is_empty());
        overdue.map(|(id, record)| (*id, record.moves)).collect()
    }
}

pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// The task of a model's timers. Books its end, also when it is dropped.
pub(crate) struct Job {
    pub(crate) id: u32,
    pub(crate) book: Option<Arc<Book>>,
    pub(crate) then: Option<Then>,
}

impl Job {
    pub(crate) fn end(&mut self, end: End) {
        self.book.take().expect("a job ends once").end(self.id, end);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.book.is_some() && !std::thread::panicking() {
            self.end(End::Dropped);
        }
    }
}
