//! Waits for something that must come true.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Only a bug takes that long.
const HANG: Duration = Duration::from_secs(60);

pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < HANG, "{what}");
        sleep(Duration::from_millis(1));
    }
}
