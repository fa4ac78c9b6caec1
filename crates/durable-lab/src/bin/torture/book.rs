//! What the driver was answered, timer by timer.

use crate::node::Deed;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A timer, as far as the driver knows: of one schedule. Times are this machine's, in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    pub(crate) key: String,
    pub(crate) deed: Deed,
    /// When it was to be due by the server's clock, unless it was moved, or its time was a delay.
    pub(crate) due: Option<i64>,
    /// When its schedule was answered; what was not may exist or not.
    pub(crate) answered: Option<i64>,
    /// Since when it is certain that it does not begin.
    pub(crate) cancelled: Option<i64>,
    /// Whether it may be no more: replaced, or cancelled without an answer.
    pub(crate) may_be_gone: bool,
    /// Whether a cancel was answered that it runs.
    pub(crate) runs: bool,
}

#[derive(Default)]
pub(crate) struct Book {
    written: Mutex<Vec<Written>>,
    /// How often calls had which answer.
    answers: Mutex<BTreeMap<String, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    pub(crate) fn add(&self, timer: Written) -> usize {
        let mut written = lock(&self.written);
        written.push(timer);
        written.len() - 1
    }

    pub(crate) fn note(&self, number: usize, note: impl FnOnce(&mut Written)) {
        note(&mut lock(&self.written)[number]);
    }

    /// Notes that everything written so far may be gone.
    pub(crate) fn empty(&self) {
        lock(&self.written)
            .iter_mut()
            .for_each(|timer| timer.may_be_gone = true);
    }

    pub(crate) fn count(&self, answer: impl Into<String>) {
        *lock(&self.answers).entry(answer.into()).or_default() += 1;
    }

    pub(crate) fn all(&self) -> Vec<Written> {
        lock(&self.written).clone()
    }

    pub(crate) fn answers(&self) -> BTreeMap<String, u64> {
        lock(&self.answers).clone()
    }
}
