//! The lock facade: the few primitives through which the crate's threads share memory.
//!
//! Every lock, condition variable and thread of the crate is taken from this module, so that a
//! schedule-exploring model checker can drive the shipped code. With `--cfg tickwheel_model` they
//! are shuttle's, otherwise the standard library's. Such checkers do not model time-outs. In a
//! model, [`Condvar::wait_until`] waits without end, and a wait that no thread ends is reported as
//! a lost wake-up, which it is.
//!
//! # Why std's mutex
//! A contended mutex of parking_lot yields up to seven times before it parks. On Linux a yield
//! costs the thread its slice: the reaper, which meets locks that adders hold half of the time, was
//! 25 ms late where a thread that only sleeps was 0.06 ms late. std's mutex spins a little and then
//! waits in the kernel; uncontended the two cost the same. parking_lot's is used where nothing
//! contends: for the pool, and for the numbers of threads.

use std::time::Duration;

#[cfg(tickwheel_count)]
pub(crate) mod counting_locks;
pub(crate) mod locks;
#[cfg(not(tickwheel_model))]
pub(crate) mod thread_number;

#[cfg(tickwheel_count)]
pub(crate) use crate::sync::counting_locks::{Condvar, Mutex, MutexGuard};
#[cfg(not(tickwheel_count))]
pub(crate) use crate::sync::locks::{Condvar, Mutex, MutexGuard};

#[cfg(not(tickwheel_model))]
pub(crate) use crate::sync::thread_number::thread_number;
#[cfg(tickwheel_model)]
pub(crate) use shuttle::{sync::atomic, thread, thread_local};
#[cfg(not(tickwheel_model))]
pub(crate) use std::{sync::atomic, thread, thread_local};

/// Returns how many threads can run at once. In models this is one, so that they are the same on
/// every machine.
pub(crate) fn parallelism() -> usize {
    if cfg!(tickwheel_model) {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns a small number of the calling thread: its place in the order of spawning.
#[cfg(tickwheel_model)]
pub(crate) fn thread_number() -> u32 {
    usize::from(shuttle::current::me()) as u32
}

/// Sleeps for so long. In models, lets another thread go on first.
pub(crate) fn nap(time: Duration) {
    if cfg!(tickwheel_model) {
        return thread::yield_now();
    }
    thread::sleep(time);
}

/// Returns `choice`. In models, returns a random choice, so that the schedules cover both.
pub(crate) fn either_in_models(choice: bool) -> bool {
    #[cfg(tickwheel_model)]
    let choice =
        choice ^ (shuttle::rand::RngCore::next_u32(&mut shuttle::rand::thread_rng()) % 2 == 0);
    choice
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_nap_is_as_long_as_it_was_meant_to_be() {
        let begun = Instant::now();
        nap(Duration::from_millis(2));
        assert!(begun.elapsed() >= Duration::from_millis(2));
    }
}
