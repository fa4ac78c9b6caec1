//! The work that is done under locks, counted, so that tests can check on any machine that a call
//! takes constant time (`tests/work/`).
//!
//! Only with `--cfg tickwheel_count`; otherwise [`count`] does nothing. Every loop that runs under
//! one of the crate's locks counts the items that it visits, one unit each: a reference, an entry,
//! a place of a chunk, a chunk of a directory, a bucket, a watcher. The guards of the locks
//! (`Hold`) record how much was counted in each hold. Each thread has its own counts, so that tests
//! do not affect each other.
//!
//! The internal work of the standard library is not counted where it is logarithmic, or is the
//! growth of a table of keys, which the crate's front page names as an exception.

/// Counts the elements that are copied if a vector that is full takes one more.
#[inline(always)]
pub(crate) fn count_growth(len: usize, capacity: usize) {
    if len == capacity {
        count(len);
    }
}

#[cfg(not(tickwheel_count))]
pub(crate) use uncounted::{Hold, begin_hold, count, end_hold};

#[cfg(not(tickwheel_count))]
mod uncounted {
    /// A guard as it is.
    pub(crate) type Hold<G> = G;

    /// Counts so many units of work.
    #[inline(always)]
    pub(crate) fn count(_: usize) {}

    #[inline(always)]
    pub(crate) fn begin_hold<G>(guard: G) -> Hold<G> {
        guard
    }

    #[inline(always)]
    pub(crate) fn end_hold<G>(hold: Hold<G>) -> G {
        hold
    }
}

#[cfg(tickwheel_count)]
pub(crate) use counting::{Hold, begin_hold, count, end_hold};
#[cfg(tickwheel_count)]
pub use counting::{Work, longest, reset};

#[cfg(tickwheel_count)]
mod counting {
    use std::any::type_name;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::ops::{Deref, DerefMut};

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

    /// A guard that records how much was counted until it is dropped, or waits. Work under a second
    /// lock also belongs to the hold of the first.
    pub(crate) struct Hold<G: Deref> {
        /// `None` only at its end.
        guard: Option<G>,
        /// How much the thread had counted when it took the lock.
        since: u64,
    }

    pub(crate) fn begin_hold<G: Deref>(guard: G) -> Hold<G> {
        Hold { guard: Some(guard), since: DONE.get() }
    }

    pub(crate) fn end_hold<G: Deref>(mut hold: Hold<G>) -> G {
        hold.guard.take().expect("it is held")
    }

    impl<G: Deref> Drop for Hold<G> {
        fn drop(&mut self) {
            let units = DONE.get() - self.since;
            // Fails only near the end of a thread, after which no test asks.
            let _ = LONGEST.try_with(|longest| {
                let mut longest = longest.borrow_mut();
                let most = longest.entry(type_name::<G::Target>()).or_insert(0);
                *most = units.max(*most);
            });
        }
    }

    impl<G: Deref> Deref for Hold<G> {
        type Target = G::Target;

        fn deref(&self) -> &G::Target {
            self.guard.as_ref().expect("it is held")
        }
    }

    impl<G: DerefMut> DerefMut for Hold<G> {
        fn deref_mut(&mut self) -> &mut G::Target {
            self.guard.as_mut().expect("it is held")
        }
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
