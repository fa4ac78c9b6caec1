//! The locks: the standard library's, or shuttle's in a model; both have the same interface.

#[cfg(tickwheel_model)]
use shuttle::sync as base;
#[cfg(not(tickwheel_model))]
use std::sync as base;

use std::sync::{PoisonError, TryLockError};
use std::time::Instant;

pub(crate) use base::MutexGuard;

/// A mutex without poisoning. What user code may panic under it (see [`unwind`](crate::unwind))
/// leaves nothing half changed, and after a panic of the crate's own code the timer had better
/// remain usable.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(base::Mutex<T>);

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
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
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
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all waiting threads. Costs a system call even if there are none.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
