//! The home: which of many shards the calling thread adds to.
//!
//! Each thread has two shards to itself, as far as there are enough, and adds to one of them. When
//! it meets another thread there, which cancels what it has added, it changes to its other shard,
//! and leaves the first one to the others with the timers that they know. So neither contends for
//! the other's lock, or for the cache lines behind it. (With a single shard for each thread,
//! cancels from other threads take 175 ns instead of 115.)

#[cfg(not(tickwheel_model))]
mod real {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    thread_local! {
        // Has no destructor: it costs no check, and can be read until the thread has ended.
        static HOME: Cell<usize> = const { Cell::new(0) };
    }

    /// Returns the number of the shard to which this thread adds; the caller divides it by the
    /// number of shards, a power of two.
    #[inline]
    pub(crate) fn home() -> usize {
        let home = HOME.get();
        if home == 0 { take_home() } else { home }
    }

    #[cold]
    fn take_home() -> usize {
        /// Relaxed: the numbers order nothing. After 2^63 threads they come again.
        static NEXT: AtomicUsize = AtomicUsize::new(2);
        HOME.set(NEXT.fetch_add(2, Ordering::Relaxed).max(2));
        HOME.get()
    }

    /// Has this thread add to its other shard from now on.
    #[cold]
    pub(crate) fn change_home() {
        HOME.set(home() ^ 1);
    }
}

#[cfg(not(tickwheel_model))]
pub(crate) use real::{change_home, home};

/// Twice the thread's place in the order of spawning.
#[cfg(tickwheel_model)]
pub(crate) fn home() -> usize {
    2 * usize::from(shuttle::current::me())
}

#[cfg(tickwheel_model)]
pub(crate) fn change_home() {}
