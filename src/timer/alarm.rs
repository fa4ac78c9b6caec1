//! The alarm: the tasks of many timers that belong to one owner and differ in a key.

use crate::store::key::Key;
use crate::timer::entry::{SharedClosure, Task};
use crossbeam_utils::CachePadded;
use std::sync::{Arc, Weak};

/// An alarm, whose tasks share one closure, so that none of them allocates. They refer to their
/// owner weakly: once that has gone, they do nothing.
pub(crate) struct Alarm(SharedClosure);

impl Alarm {
    /// Creates an alarm of `owner`: each of its tasks calls `expire` with its own key.
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

    /// Returns the task of one timer.
    pub(crate) fn task(&self, key: Key) -> Task {
        Task::shared(Arc::clone(&self.0), key.to_bits())
    }
}
