//! The alarm: tasks of many timers that belong to one owner and differ only in a key.

use crate::store::key::Key;
use crate::timer::entry::{SharedClosure, Task};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// An alarm. Its tasks share one closure, so none of them allocates.
pub(crate) struct Alarm(SharedClosure);

impl Alarm {
    /// Creates an alarm: each of its tasks calls `expire` with its own key.
    pub(crate) fn new(expire: impl Fn(Key) + Send + Sync + 'static) -> Self {
        // Padded, so that two alarms' counts of references never share a cache line.
        let expire = CachePadded::new(expire);
        Alarm(Arc::new(move |key| expire(Key::from_bits(key))))
    }

    /// Returns the task of one timer.
    pub(crate) fn task(&self, key: Key) -> Task {
        Task::shared(Arc::clone(&self.0), key.to_bits())
    }
}
