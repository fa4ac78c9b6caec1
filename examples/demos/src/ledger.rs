//! The ledger: what became of every timer, kept apart from the timer itself.
//!
//! A request takes a slot when it is added and leaves it with its first outcome: expired, cancelled
//! or returned by `shutdown`. A slot is used again and again, each time under a new epoch, so the
//! ledger does not grow; a second outcome finds the slot vacant, or under another epoch. A slot
//! that is still taken at the end is a timer that was lost.

use hdrhistogram::Histogram;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A timer's task: eight bytes, enough to find the slot of the request again.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    slot: u32,
    epoch: u32,
}

pub struct Ledger {
    origin: Instant,
    slots: Box<[Slot]>,
    twice: AtomicU64,
    expired: Mutex<Expired>,
}

struct Slot {
    /// The epoch, and in the lowest bit whether its timer is pending.
    state: AtomicU64,
    /// The exact deadline, in nanoseconds since the ledger's origin.
    deadline: AtomicU64,
}

/// What the executor saw. Only the reaper gets here, so the lock is never waited for.
#[derive(Clone)]
pub struct Expired {
    pub count: u64,
    pub early: u64,
    /// Nanoseconds from the exact deadline to the moment at which the task runs.
    pub lateness: Histogram<u64>,
}

impl Ledger {
    pub fn new(slots: u32) -> Self {
        let hour = Duration::from_secs(3600).as_nanos() as u64;
        let lateness = Histogram::new_with_max(hour, 3).expect("these bounds are valid");
        // Not zero: so the memory is really touched here, before it is measured.
        let vacant = |_| Slot { state: AtomicU64::new(0), deadline: AtomicU64::new(u64::MAX) };
        Ledger {
            origin: Instant::now(),
            slots: (0..slots).map(vacant).collect(),
            twice: AtomicU64::new(0),
            expired: Mutex::new(Expired { count: 0, early: 0, lateness }),
        }
    }

    /// Enters a request that is about to be added. `None` if the last one there is pending still.
    /// Each slot is opened by one thread only.
    pub fn open(&self, slot: usize, deadline: Instant) -> Option<Request> {
        let Slot { state, deadline: entered } = &self.slots[slot];
        // Acquire: the thread that closed the slot has read the old deadline.
        let old = state.load(Ordering::Acquire);
        if old & 1 == 1 {
            return None;
        }
        let request = Request { slot: slot as u32, epoch: ((old >> 1) as u32).wrapping_add(1) };
        entered.store(self.nanos(deadline), Ordering::Relaxed);
        state.store(request.pending(), Ordering::Release);
        Some(request)
    }

    /// Closes a request's slot with its outcome, whatever that is. Returns whether it was the first
    /// outcome, and counts it if not.
    pub fn settle(&self, request: Request) -> bool {
        let (old, new) = (request.pending(), request.vacant());
        let state = &self.slots[request.slot as usize].state;
        let first = state.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !first {
            self.twice.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// Settles a request that has expired: this is what the timer's executor does.
    pub fn expire(&self, request: Request) {
        let now = self.nanos(Instant::now());
        let deadline = self.slots[request.slot as usize].deadline.load(Ordering::Relaxed);
        // After that the slot may be taken anew; and if another has settled it, it may be already.
        if !self.settle(request) {
            return;
        }
        let mut expired = self.expired();
        expired.count += 1;
        expired.early += u64::from(now < deadline);
        expired.lateness.saturating_record(now.saturating_sub(deadline));
    }

    /// Returns how many of these slots are taken.
    pub fn pending(&self, slots: Range<usize>) -> u64 {
        let taken = |slot: &&Slot| slot.state.load(Ordering::Relaxed) & 1 == 1;
        self.slots[slots].iter().filter(taken).count() as u64
    }

    /// Returns how many of all slots are taken. At the end these were lost.
    pub fn pending_in_all(&self) -> u64 {
        self.pending(0..self.slots.len())
    }

    /// Returns how many outcomes came after the first one of their timer.
    pub fn twice(&self) -> u64 {
        self.twice.load(Ordering::Relaxed)
    }

    pub fn expired(&self) -> MutexGuard<'_, Expired> {
        self.expired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nanos(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.origin).as_nanos() as u64
    }
}

impl Request {
    /// Returns the request as a number, for tasks that have one.
    pub fn number(self) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.slot)
    }

    /// Returns the request of a number.
    pub fn of(number: u64) -> Self {
        Request { slot: number as u32, epoch: (number >> 32) as u32 }
    }

    fn pending(self) -> u64 {
        self.vacant() | 1
    }

    fn vacant(self) -> u64 {
        u64::from(self.epoch) << 1
    }
}
