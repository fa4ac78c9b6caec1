//! The work that is done under locks, counted: so that tests hold what takes constant time, on any
//! machine (`tests/work/`).
//!
//! Only with `--cfg tickwheel_count`; without it [`count`] is nothing. Every loop that runs under
//! one of our locks counts what it visits, a unit each: a reference, an entry, a place of a chunk,
//! a chunk of a directory, a bucket, a watcher. The locks (`counting_locks`) note of each hold how
//! much was counted in it. Each thread counts for itself, so that tests do not meet.
//!
//! Not counted is what std does inside, where that is logarithmic, or is the growth of a table of
//! keys, which the crate's page excepts.

/// Counts so many units of work.
#[cfg(not(tickwheel_count))]
#[inline(always)]
pub(crate) fn count(_: usize) {}

/// Counts what is copied if a vector, which is full at its capacity, takes one more.
#[inline(always)]
pub(crate) fn count_growth(len: usize, capacity: usize) {
    if len == capacity {
        count(len);
    }
}

#[cfg(tickwheel_count)]
pub use counting::{Work, longest, reset};
#[cfg(tickwheel_count)]
pub(crate) use counting::{count, done, note};

#[cfg(tickwheel_count)]
mod counting {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    /// The most that was done in one hold of a lock, by the type of what the lock guards.
    pub type Work = BTreeMap<&'static str, u64>;

    thread_local! {
        static DONE: Cell<u64> = const { Cell::new(0) };
        static LONGEST: RefCell<Work> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Counts so many units of work.
    pub(crate) fn count(units: usize) {
        DONE.set(DONE.get() + units as u64);
    }

    /// Returns how much this thread has counted so far.
    pub(crate) fn done() -> u64 {
        DONE.get()
    }

    /// Notes that a lock of this name was released, and how much was done under it.
    pub(crate) fn note(lock: &'static str, units: u64) {
        // Fails only near the end of a thread, after which nobody asks.
        let _ = LONGEST.try_with(|longest| {
            let mut longest = longest.borrow_mut();
            let most = longest.entry(lock).or_insert(0);
            *most = units.max(*most);
        });
    }

    /// Returns the most that this thread did in one hold of each lock since [`reset`].
    pub fn longest() -> Work {
        LONGEST.with_borrow(Clone::clone)
    }

    /// Forgets what this thread did.
    pub fn reset() {
        LONGEST.with_borrow_mut(BTreeMap::clear);
    }
}
