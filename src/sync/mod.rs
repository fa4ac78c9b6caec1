//! The lock facade: the few primitives through which the crate's threads share memory.
//!
//! The crate's locks, condition variables and threads come from this module, so that a
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

#[cfg(not(tickwheel_model))]
pub(crate) mod thread_number;

#[cfg(tickwheel_model)]
use shuttle::sync as base;
#[cfg(not(tickwheel_model))]
use std::sync as base;

use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

#[cfg(not(tickwheel_model))]
pub(crate) use crate::sync::thread_number::thread_number;
#[cfg(tickwheel_model)]
pub(crate) use shuttle::{sync::atomic, thread, thread_local};
#[cfg(not(tickwheel_model))]
pub(crate) use std::{sync::atomic, thread, thread_local};

/// A mutex without poisoning. What user code may panic under it (see [`unwind`](crate::unwind))
/// leaves nothing half changed, and after a panic of the crate's own code the timer had better
/// remain usable.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(base::Mutex<T>);

pub(crate) type MutexGuard<'a, T> = base::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(base::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock, unless another thread holds it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(base::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let waited = self.0.wait(guard);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> MutexGuard<'a, T> {
        if cfg!(tickwheel_model) {
            return self.wait(guard);
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        let waited = self.0.wait_timeout(guard, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all waiting threads. Costs a system call even if there are none.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

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

    #[test]
    fn a_nap_is_as_long_as_it_was_meant_to_be() {
        let begun = Instant::now();
        nap(Duration::from_millis(2));
        assert!(begun.elapsed() >= Duration::from_millis(2));
    }
}
