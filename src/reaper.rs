//! The reaper: a thread that does one step after the other until it is told to stop.
//!
//! It knows no timer. What a step is, how it waits and what wakes it, is its owner's.

use crate::report;
use crate::sync::{Mutex, thread};

/// A running reaper thread.
#[derive(Debug)]
pub(crate) struct Reaper {
    id: thread::ThreadId,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Reaper {
    /// Starts a thread called `name` that calls `step` until it returns false.
    pub(crate) fn start(
        name: &str,
        mut step: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            report::debug!("the reaper has started");
            while step() {}
            report::debug!("the reaper has stopped");
        })?;
        Ok(Reaper { id: thread.thread().id(), thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the thread has ended, which its owner has told it to. The reaper itself, on
    /// which a task may drop the last timer, does not wait for itself.
    pub(crate) fn join(&self) {
        if thread::current().id() == self.id {
            return;
        }
        // Held while joining: others who join meanwhile wait for the thread's end as well.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            let _ = thread.join(); // A step contains every panic of a task.
        }
    }
}
