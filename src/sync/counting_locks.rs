//! The locks of `locks`, with a count of the work that is done in each hold.
//!
//! A hold ends when its guard is dropped, or waits. Work under a second lock also belongs to the
//! hold of the first.

use crate::sync::locks;
use crate::work;
use std::any::type_name;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// A mutex of `locks` that records how much work is done in each hold.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(locks::Mutex<T>);

/// A hold of a lock.
pub(crate) struct MutexGuard<'a, T> {
    /// `None` only during a wait.
    guard: Option<locks::MutexGuard<'a, T>>,
    /// How much the thread had counted when it took the lock.
    since: u64,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(locks::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard::new(self.0.lock())
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(MutexGuard::new)
    }
}

impl<'a, T> MutexGuard<'a, T> {
    fn new(guard: locks::MutexGuard<'a, T>) -> Self {
        MutexGuard { guard: Some(guard), since: work::done() }
    }

    /// Ends the hold for a wait, and begins a new one after it.
    fn pause(
        mut self,
        wait: impl FnOnce(locks::MutexGuard<'a, T>) -> locks::MutexGuard<'a, T>,
    ) -> Self {
        work::note(type_name::<T>(), work::done() - self.since);
        let held = self.guard.take().expect("it does not wait");
        MutexGuard::new(wait(held))
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            work::note(type_name::<T>(), work::done() - self.since);
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("it does not wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("it does not wait")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(locks::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard.pause(|guard| self.0.wait(guard))
    }

    pub(crate) fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> MutexGuard<'a, T> {
        guard.pause(|guard| self.0.wait_until(guard, deadline))
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
