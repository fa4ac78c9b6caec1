//! The reaper: a thread that performs steps until it is told to stop.
//!
//! It knows no timer. Its owner determines what a step is, how it waits and what wakes it.

use crate::sync::{Mutex, thread, thread_local};
use crate::timer::report::{self, catch_panic_of};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    /// Whether this thread is a reaper. A reaper waits for the end of no other thread: two whose
    /// tasks end each other's timers would wait for ever.
    static IS_REAPER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the reaper of any timer.
pub(crate) fn is_reaper() -> bool {
    IS_REAPER.with(Cell::get)
}

/// A running reaper thread.
#[derive(Debug)]
pub(crate) struct Reaper {
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// How long the reaper pauses after a step that panicked: long enough that a step which panics
/// every time costs next to nothing, and short enough that a thread which waits for the reaper's
/// end hardly notices.
const REST: Duration = Duration::from_millis(100);

impl Reaper {
    /// Starts a thread called `name` that calls `step` until it returns false, and `failed` after
    /// each step that panicked.
    ///
    /// A step contains all panics of user code, so a step that panics is a defect of this crate.
    /// The next step is then tried after a pause: a timer that has lost something is better than a
    /// timer that no longer expires anything.
    pub(crate) fn start(
        name: &str,
        mut step: impl FnMut() -> bool + Send + 'static,
        failed: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let timer: Arc<str> = name.into();
        let reported = Arc::clone(&timer);
        let mut go_on = move || {
            if cfg!(tickwheel_model) {
                return step(); // In a model, a panic of the reaper must fail the model.
            }
            catch_panic_of(&timer, &mut step).unwrap_or_else(|| {
                failed();
                thread::sleep(REST);
                true
            })
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            IS_REAPER.with(|is_reaper| is_reaper.set(true));
            report::debug!(timer = &*reported, "the reaper has started");
            while go_on() {}
            report::debug!(timer = &*reported, "the reaper has stopped");
        })?;
        Ok(Reaper { thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the thread has ended; its owner has told it to stop. Does not wait on a reaper,
    /// this one or another.
    pub(crate) fn join(&self) {
        if is_reaper() {
            return;
        }
        // Held while joining: other threads that join also wait for the thread's end.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            let _ = thread.join(); // It contains every panic.
        }
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    /// No user code can make a step panic, so that is tested here.
    #[test]
    fn a_step_that_panics_is_counted_and_followed_by_a_rest_and_another_step() {
        let (steps, failures) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (counted, failed) = (Arc::clone(&steps), Arc::clone(&failures));
        let step = move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            assert!(number == 1 || number > 3, "which is what the test is about");
            number < 5
        };
        let start = Instant::now();
        let count = move || {
            failed.fetch_add(1, Ordering::Relaxed);
        };
        Reaper::start("panics", step, count).expect("a thread can be started").join();
        let counts = (steps.load(Ordering::Relaxed), failures.load(Ordering::Relaxed));
        assert_eq!(counts, (6, 3), "0, 2 and 3 panic, 5 is the last");
        assert!(start.elapsed() >= 3 * REST);
    }
}
