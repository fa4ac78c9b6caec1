//! Pace: how slow a client may be. It may be slow, but not stand still.

use super::frame::FrameError;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::future::TimedError;

/// For how long nothing may come, or go, in the middle of a frame.
const STALL: Duration = Duration::from_secs(30);
/// How many bytes a second there must be, all in all.
const SLOWEST: usize = 16 << 10;

/// The time for a frame, from now on.
pub(super) struct Pace<'a> {
    timer: &'a Timer,
    end: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(timer: &'a Timer, bytes: usize) -> Self {
        let end = timer.now() + STALL + Duration::from_secs((bytes / SLOWEST) as u64);
        Pace { timer, end }
    }

    /// Takes one step: some bytes.
    pub(super) async fn step<T>(&self, step: impl Future<Output = T>) -> Result<T, FrameError> {
        let left = self.end.saturating_duration_since(self.timer.now());
        in_time(self.timer, left.min(STALL), step).await
    }
}

pub(super) async fn in_time<T>(
    timer: &Timer,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, FrameError> {
    timer.timeout(limit, future).await.map_err(|error| match error {
        TimedError::Elapsed => FrameError::Silent,
        _ => FrameError::Full,
    })
}
