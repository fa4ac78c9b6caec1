//! The ledger: what became of every entry, kept apart from the timer. It does not grow.
//!
//! An entry takes a slot and leaves it with its first end. A slot is used again and again, under a
//! new epoch each time: a second end finds it vacant, or under another epoch. What is still taken
//! after the shutdown was lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

/// A slot, in the low half, and its epoch.
pub(crate) type Request = u64;

pub(crate) struct Ledger {
    origin: Instant,
    slots: Box<[Slot]>,
    slots_of_thread: u32,
    pub(crate) early: AtomicU64,
    pub(crate) twice: AtomicU64,
    ends: [AtomicU64; 4],
}

#[derive(Default)]
struct Slot {
    /// The epoch, and in the lowest bit whether it is taken.
    state: AtomicU64,
    /// It must not expire before, in nanoseconds since the origin.
    deadline: AtomicU64,
    /// The condition of an operation.
    holds: AtomicBool,
}

#[derive(Clone, Copy)]
pub(crate) enum End {
    Expired,
    Completed,
    Cancelled,
    Returned,
}

impl Ledger {
    pub(crate) fn new(threads: u32, slots_of_thread: u32) -> Self {
        Ledger {
            origin: Instant::now(),
            slots: (0..threads * slots_of_thread).map(|_| Slot::default()).collect(),
            slots_of_thread,
            early: AtomicU64::new(0),
            twice: AtomicU64::new(0),
            ends: Default::default(),
        }
    }

    /// Returns the slots that this thread opens, and no other.
    pub(crate) fn slots_of(&self, thread: u32) -> std::ops::Range<u32> {
        thread * self.slots_of_thread..(thread + 1) * self.slots_of_thread
    }

    fn nanos(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn slot(&self, request: Request) -> &Slot {
        &self.slots[request as u32 as usize]
    }

    /// Enters a request that is about to be added.
    pub(crate) fn open(&self, slot: u32, deadline: Instant) -> Request {
        let entered = &self.slots[slot as usize];
        let state = entered.state.load(SeqCst);
        assert_eq!(state & 1, 0, "it is taken");
        let epoch = ((state >> 1) + 1) & u64::from(u32::MAX);
        entered.deadline.store(self.nanos(deadline), SeqCst);
        entered.holds.store(false, SeqCst);
        entered.state.store(epoch << 1 | 1, SeqCst);
        epoch << 32 | u64::from(slot)
    }

    pub(crate) fn is_open(&self, slot: u32) -> bool {
        self.slots[slot as usize].state.load(SeqCst) & 1 == 1
    }

    /// Notes that a request is about to be moved: it may expire at the earlier of both deadlines.
    pub(crate) fn moving(&self, request: Request, deadline: Instant) {
        self.slot(request).deadline.fetch_min(self.nanos(deadline), SeqCst);
    }

    /// Notes that a request was moved.
    pub(crate) fn moved(&self, request: Request, deadline: Instant) {
        self.slot(request).deadline.store(self.nanos(deadline), SeqCst);
    }

    /// Makes an operation's condition true.
    pub(crate) fn fulfil(&self, request: Request) {
        self.slot(request).holds.store(true, SeqCst);
    }

    pub(crate) fn holds(&self, request: Request) -> bool {
        self.slot(request).holds.load(SeqCst)
    }

    pub(crate) fn end(&self, request: Request, end: End) {
        let slot = self.slot(request);
        if matches!(end, End::Expired) {
            let early = self.nanos(Instant::now()) < slot.deadline.load(SeqCst);
            self.early.fetch_add(u64::from(early), Relaxed);
        }
        let taken = (request >> 32) << 1 | 1;
        if slot.state.compare_exchange(taken, taken & !1, SeqCst, SeqCst).is_err() {
            self.twice.fetch_add(1, Relaxed);
        }
        self.ends[end as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn ended(&self, end: End) -> u64 {
        self.ends[end as usize].load(Relaxed)
    }

    /// Returns how many are open.
    pub(crate) fn open_slots(&self) -> u64 {
        self.slots.iter().filter(|slot| slot.state.load(SeqCst) & 1 == 1).count() as u64
    }

    /// Returns how many are open although their deadline is before `time`.
    pub(crate) fn due(&self, time: Instant) -> u64 {
        let time = self.nanos(time);
        let is_due =
            |slot: &&Slot| slot.state.load(SeqCst) & 1 == 1 && slot.deadline.load(SeqCst) < time;
        self.slots.iter().filter(is_due).count() as u64
    }
}
