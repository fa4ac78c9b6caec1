//! The alarm: the tasks of many timers that belong to one owner and differ in a key.

use crate::store::key::Key;
use crate::timer::entry::{SharedClosure, Task};
use crossbeam_utils::CachePadded;
use std::sync::{Arc, Weak};

/// Its tasks share one closure, so none of them allocates. They refer to their owner weakly: once
/// that has gone, they do nothing.
pub(crate) struct Alarm(SharedClosure);

impl Alarm {
    /// Of `owner`, for whose key each task calls `expire`.
    pub(crate) fn new<T: Send + Sync + 'static>(
        owner: &Weak<T>,
        expire: impl Fn(&Arc<T>, Key) + Send + Sync + 'static,
    ) -> Self {
        // Padded, so that two alarms' counts of references never share a cache line.
        let owner = CachePadded::new(Weak::clone(owner));
        Alarm(Arc::new(move |key| {
            if let Some(owner) = owner.upgrade() {
                expire(&owner, Key::from_bits(key));
            }
        }))
    }

    /// The task of one timer.
    pub(crate) fn task(&self, key: Key) -> Task {
        Task::shared(Arc::clone(&self.0), key.to_bits())
    }
}
