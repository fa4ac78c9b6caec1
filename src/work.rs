//! The work that is done under locks, counted, so that tests can check on any machine that a call
//! takes constant time (`tests/work/`).
//!
//! Only with `--cfg tickwheel_count`; otherwise [`count`] does nothing. Every loop that runs under
//! one of the crate's locks counts the items that it visits, one unit each: a reference, an entry,
//! a place of a chunk, a chunk of a directory, a bucket, a watcher. The locks (`counting_locks`)
//! record how much was counted in each hold. Each thread has its own counts, so that tests do not
//! affect each other.
//!
//! The internal work of the standard library is not counted where it is logarithmic, or is the
//! growth of a table of keys, which the crate's front page names as an exception.

/// Counts so many units of work.
#[cfg(not(tickwheel_count))]
#[inline(always)]
pub(crate) fn count(_: usize) {}

/// Counts the elements that are copied if a vector that is full takes one more.
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

    /// The maximum that was counted in one hold of a lock, by the type that the lock protects.
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

    /// Records that a lock of this name was released, and how much was counted under it.
    pub(crate) fn note(lock: &'static str, units: u64) {
        // Fails only near the end of a thread, after which no test asks.
        let _ = LONGEST.try_with(|longest| {
            let mut longest = longest.borrow_mut();
            let most = longest.entry(lock).or_insert(0);
            *most = units.max(*most);
        });
    }

    /// Returns the maximum that this thread counted in one hold of each lock since [`reset`].
    pub fn longest() -> Work {
        LONGEST.with_borrow(Clone::clone)
    }

    /// Discards the counts of this thread.
    pub fn reset() {
        LONGEST.with_borrow_mut(BTreeMap::clear);
    }
}
