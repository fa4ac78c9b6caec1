//! The service that is overloaded, and the pace of what is added.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the service finishes in a second.
pub(crate) const CAPACITY: f64 = 20_000.0;

/// How far somebody may be ahead before they sleep: systems wake nobody for less.
const AHEAD: Duration = Duration::from_millis(1);
/// What somebody who was kept from working may make up for.
const BEHIND: Duration = Duration::from_millis(100);

/// So many turns a second, in the long run.
pub(crate) struct Pace {
    period: Duration,
    next: Instant,
}

impl Pace {
    pub(crate) fn new(per_second: f64) -> Self {
        Pace { period: Duration::from_secs_f64(1.0 / per_second), next: Instant::now() }
    }

    /// Waits for the next turn.
    pub(crate) fn wait(&mut self) {
        let now = Instant::now();
        self.next = self.next.max(now - BEHIND) + self.period;
        if self.next > now + AHEAD {
            thread::sleep(self.next - now);
        }
    }
}

/// A service with one place: whoever wants something from it waits until it has the time.
pub(crate) struct Service(Mutex<Pace>);

impl Service {
    pub(crate) fn new() -> Self {
        Service(Mutex::new(Pace::new(CAPACITY)))
    }

    pub(crate) fn serve(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wait();
    }
}
