//! The locks of parking_lot, with the interface of those in `locks`.

use std::time::Instant;

pub(crate) use parking_lot::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    pub(crate) fn wait_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> MutexGuard<'a, T> {
        self.0.wait_until(&mut guard, deadline);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
