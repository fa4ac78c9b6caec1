//! Until when a handler may take, which it puts off while it makes progress.

use crate::sync::{Mutex, lock};
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::future::TimedError;

/// The longest time that is added: far beyond each service's life, and near enough to be a moment.
pub(crate) const LONGEST: Duration = Duration::from_secs(1 << 32);

pub(crate) struct Deadline {
    timer: Timer,
    begun: Instant,
    /// Locked for a look.
    until: Mutex<Instant>,
}

impl Deadline {
    pub(crate) fn new(timer: &Timer, limit: Duration) -> Self {
        let begun = timer.now();
        let until = Mutex::new(begun + limit.min(LONGEST));
        Deadline {
            timer: timer.clone(),
            begun,
            until,
        }
    }

    /// Puts it off to so long from now, if it is earlier.
    pub(crate) fn extend(&self, by: Duration) {
        let later = self.timer.now() + by.min(LONGEST);
        let mut until = lock(&self.until);
        *until = later.max(*until);
    }

    /// Returns how long it allows in all.
    pub(crate) fn allowed(&self) -> Duration {
        *lock(&self.until) - self.begun
    }

    /// Waits for a future until then.
    pub(crate) async fn wait<F: Future + Unpin>(
        &self,
        future: &mut F,
    ) -> Result<F::Output, TimedError> {
        loop {
            let until = *lock(&self.until);
            let left = until.saturating_duration_since(self.timer.now());
            match self.timer.timeout(left, &mut *future).await {
                Err(TimedError::Elapsed) if *lock(&self.until) > until => {}
                answer => return answer,
            }
        }
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline")
            .field("allowed", &self.allowed())
            .finish_non_exhaustive()
    }
}
