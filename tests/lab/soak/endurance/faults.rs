//! The faults: an executor that refuses, panics and hangs, and panics that are planted.

use std::panic;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tickwheel::{Executor, Task};

const PLANTED: &str = "planted";

/// Panics in a way that is not reported.
pub(crate) fn planted() -> ! {
    panic::panic_any(PLANTED)
}

/// From now on a panic that nobody planted ends the process, even where the library contains it.
pub(crate) fn report_unplanted_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref() != Some(&PLANTED) {
            report(info);
            std::process::abort();
        }
    }));
}

/// Refuses one in 101, panics after one in 997, and hangs for a moment before one in 9,973.
#[derive(Default)]
pub(crate) struct Faulty(AtomicU64);

impl Executor<Task> for Faulty {
    fn execute(&self, task: Task) -> Result<(), Task> {
        let number = self.0.fetch_add(1, Relaxed) + 1;
        if number % 101 == 0 {
            return Err(task);
        }
        if number % 9_973 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        task.run();
        if number % 997 == 0 {
            planted();
        }
        Ok(())
    }
}
