//! The ledger: what became of every entry, kept apart from the timer itself.
//!
//! An entry takes a slot when it is added and leaves it with its first end. A slot is used again
//! and again, each time under a new epoch, so the ledger does not grow; a second end finds the slot
//! vacant, or under another epoch. A slot that is still taken when all is over is an entry that was
//! lost.

use crate::{Lateness, Report};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// An entry: eight bytes, enough to find its slot again.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub slot: u32,
    epoch: u32,
}

/// How an entry may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Expired,
    Completed,
    Cancelled,
    /// By a shutdown, or by an `add` that had no room.
    Returned,
}

/// Ends of each kind, of the requests in so many slots. On two cache lines of its own: one count of
/// all cancels took longer than the cancels, with 16 cores.
#[derive(Default)]
#[repr(align(128))]
struct Ends([AtomicU64; 4]);

const SLOTS_COUNTED_TOGETHER: usize = 1 << 12;

/// What has to end so long after its deadline, at the latest, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Ledger {
    origin: Instant,
    slots: Box<[Slot]>,
    /// Ends before the deadline.
    pub early: AtomicU64,
    twice: AtomicU64,
    ends: Box<[Ends]>,
    /// From the deadline until it expired.
    pub lateness: Lateness,
}

struct Slot {
    /// The epoch, and in the lowest bit whether the slot is taken.
    state: AtomicU64,
    /// In nanoseconds since the ledger's origin.
    deadline: AtomicU64,
}

impl Ledger {
    /// Opens a ledger that lives as long as the process.
    pub fn open(slots: usize) -> &'static Self {
        // Not zero: so the memory is really touched here, before it is measured.
        let vacant = |_| Slot {
            state: AtomicU64::new(0),
            deadline: AtomicU64::new(u64::MAX),
        };
        Box::leak(Box::new(Ledger {
            origin: Instant::now(),
            slots: (0..slots).map(vacant).collect(),
            early: AtomicU64::new(0),
            twice: AtomicU64::new(0),
            ends: (0..=slots / SLOTS_COUNTED_TOGETHER)
                .map(|_| Ends::default())
                .collect(),
            lateness: Lateness::default(),
        }))
    }

    /// Enters a request that is about to be added. Returns `None` if the slot is still taken. Each
    /// slot is used by one thread only.
    pub fn enter(&self, slot: usize, deadline: Instant) -> Option<Request> {
        let place = &self.slots[slot];
        if place.is_taken() {
            return None;
        }
        let epoch = (place.state.load(SeqCst) >> 1) as u32;
        let request = Request {
            slot: slot as u32,
            epoch: epoch.wrapping_add(1),
        };
        place.deadline.store(self.nanos(deadline), SeqCst);
        place.state.store(request.taken(), SeqCst);
        Some(request)
    }

    /// Enters how a request has ended now. Returns whether that was its first end.
    pub fn end(&self, request: Request, end: End) -> bool {
        // Nobody asks when the others ended.
        let now = if end == End::Expired {
            Instant::now()
        } else {
            self.origin
        };
        self.end_at(request, end, now)
    }

    /// Enters how a request has ended, and when. Returns whether that was its first end.
    pub fn end_at(&self, request: Request, end: End, at: Instant) -> bool {
        let Slot { state, deadline } = &self.slots[request.slot as usize];
        // Before the slot may be taken anew.
        let deadline = deadline.load(SeqCst);
        let vacant = request.taken() & !1;
        if state
            .compare_exchange(request.taken(), vacant, SeqCst, SeqCst)
            .is_err()
        {
            self.twice.fetch_add(1, Relaxed);
            return false;
        }
        let ends = &self.ends[request.slot as usize / SLOTS_COUNTED_TOGETHER];
        ends.0[end as usize].fetch_add(1, Relaxed);
        if end == End::Expired {
            let at = self.nanos(at);
            self.early.fetch_add(u64::from(at < deadline), Relaxed);
            self.lateness.record(at.saturating_sub(deadline));
        }
        true
    }

    /// Enters that a request is about to be moved: it may expire at the earlier of both deadlines.
    pub fn moving(&self, request: Request, deadline: Instant) {
        self.slots[request.slot as usize]
            .deadline
            .fetch_min(self.nanos(deadline), SeqCst);
    }

    /// Enters that a request was moved.
    pub fn moved(&self, request: Request, deadline: Instant) {
        self.slots[request.slot as usize]
            .deadline
            .store(self.nanos(deadline), SeqCst);
    }

    /// Returns how many have ended in this way.
    pub fn ended(&self, end: End) -> u64 {
        self.ends
            .iter()
            .map(|ends| ends.0[end as usize].load(Relaxed))
            .sum()
    }

    /// Waits until nothing is left whose deadline is before `time`. Returns how many are left all
    /// the same.
    pub fn wait_for_those_due(&self, time: Instant) -> u64 {
        let due = self.nanos(time);
        let is_due = |slot: &&Slot| slot.is_taken() && slot.deadline.load(SeqCst) < due;
        loop {
            let left = self.slots.iter().filter(is_due).count() as u64;
            if left == 0 || Instant::now() > time + PATIENCE {
                return left;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns how many have not ended.
    pub fn left(&self) -> u64 {
        self.slots.iter().filter(|slot| slot.is_taken()).count() as u64
    }

    /// Returns how many ends came after the first one of their request.
    pub fn twice(&self) -> u64 {
        self.twice.load(Relaxed)
    }

    /// Reports every kind of end, and what must never be. Nothing is pending any more.
    pub fn report(&self, report: &mut Report) {
        report.count("expired", self.ended(End::Expired), "");
        report.count("completed", self.ended(End::Completed), "");
        report.count("cancelled", self.ended(End::Cancelled), "");
        report.count("returned", self.ended(End::Returned), "by a shutdown");
        report.none(
            "early",
            self.early.load(Relaxed),
            "before the exact deadline",
        );
        report.none("lost", self.left(), "none of the four ends");
        report.none("twice", self.twice(), "more than one of them");
    }

    fn nanos(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.origin).as_nanos() as u64
    }
}

impl Slot {
    fn is_taken(&self) -> bool {
        self.state.load(SeqCst) & 1 == 1
    }
}

impl Request {
    /// The state of its slot until it ends.
    fn taken(self) -> u64 {
        u64::from(self.epoch) << 1 | 1
    }
}

/// For tasks that have a number.
impl From<Request> for u64 {
    fn from(request: Request) -> Self {
        u64::from(request.epoch) << 32 | u64::from(request.slot)
    }
}

impl From<u64> for Request {
    fn from(number: u64) -> Self {
        Request {
            slot: number as u32,
            epoch: (number >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_early_lost_or_ends_twice_is_found() {
        let ledger = Ledger::open(3);
        let now = Instant::now();
        let hour = Duration::from_secs(3600);
        let [due, early, lost] = [(0, now), (1, now + hour), (2, now)]
            .map(|(slot, deadline)| ledger.enter(slot, deadline).unwrap());
        assert!(ledger.enter(1, now).is_none(), "it is taken");
        assert!(ledger.end(due, End::Expired) && ledger.end(early, End::Expired));
        assert_eq!(
            (ledger.early.load(Relaxed), ledger.left(), ledger.twice()),
            (1, 1, 0)
        );
        // Also when its slot was taken anew.
        assert!(!ledger.end(due, End::Cancelled));
        let second = ledger.enter(0, now).unwrap();
        assert!(!ledger.end(due, End::Cancelled) && ledger.end(second, End::Returned));
        ledger.moving(lost, now);
        ledger.moved(lost, now + hour);
        assert_eq!(
            (ledger.wait_for_those_due(now + hour), ledger.left()),
            (0, 1)
        );
        assert_eq!((ledger.twice(), ledger.ended(End::Expired)), (2, 2));
        let mut report = Report::default();
        ledger.report(&mut report);
        assert_eq!(report.faults(), ["early", "lost", "twice"]);
    }
}
