//! One handler for a key at a time.

use crate::store::ClaimedRow;
use crate::sync::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
use tokio::sync::OwnedSemaphorePermit;

/// A timer's place among those in flight, and a suspect's among suspects.
pub(crate) type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// A claimed timer, and its places.
pub(crate) type Work = (ClaimedRow, Permits);

/// The keys whose handlers run, and what waits for each: a key that was scheduled again while its
/// handler ran.
#[derive(Default)]
pub(crate) struct PerKey {
    running: Mutex<HashMap<String, VecDeque<Work>>>,
}

impl PerKey {
    /// Begins with a timer, unless one of its key is running: then it waits.
    pub(crate) fn begin(&self, work: Work) -> Option<Work> {
        let Some(key) = work.0.key.clone() else { return Some(work) };
        let mut running = self.lock();
        if let Some(waiting) = running.get_mut(&key) {
            waiting.push_back(work);
            return None;
        }
        running.insert(key, VecDeque::new());
        Some(work)
    }

    /// Ends with a timer, and returns the next one of its key.
    pub(crate) fn end(&self, key: Option<&str>) -> Option<Work> {
        let key = key?;
        let mut running = self.lock();
        let next = running.get_mut(key).and_then(VecDeque::pop_front);
        if next.is_none() {
            running.remove(key);
        }
        next
    }

    /// Locks the map, which is held for a look-up.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Work>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
