//! An executor that is busy at times.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tickwheel::Task;

/// Runs tasks in place; while it is busy, keeps them.
#[derive(Clone, Default)]
pub(crate) struct Busy(Arc<Mutex<Option<VecDeque<Task>>>>);

impl Busy {
    pub(crate) fn execute(&self, task: Task) {
        let mut queue = self.0.lock().unwrap();
        let Some(queue) = &mut *queue else {
            drop(queue);
            return task.run();
        };
        queue.push_back(task);
    }

    pub(crate) fn begin(&self) {
        self.0.lock().unwrap().get_or_insert_default();
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    /// Ends being busy. Returns what waits, in order.
    pub(crate) fn end(&self) -> VecDeque<Task> {
        self.0.lock().unwrap().take().unwrap_or_default()
    }
}
