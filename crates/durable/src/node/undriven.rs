//! Warns if nobody drives the timer: then the node does nothing, and nothing fails.

use crate::sync::JoinSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use tickwheel::Timer;

/// After how long the warning comes.
pub(crate) const UNDRIVEN: Duration = Duration::from_secs(5);

/// Calls `tell` if a sleep does not end although `after` has passed, also by the timer's clock: the
/// timer was built and not started. Waits on a thread, as a runtime may have no timers of its own.
pub(crate) fn if_undriven(
    timer: &Timer,
    tasks: &mut JoinSet<()>,
    after: Duration,
    tell: impl FnOnce() + Send + 'static,
) {
    if cfg!(tickwheel_model) {
        return; // A model cannot schedule such a thread.
    }
    let (driven, expired) = mpsc::channel::<()>();
    let weak = timer.downgrade();
    let begun = timer.now();
    let timer = timer.clone();
    // A task of its own: other tasks may wait for the store.
    tasks.spawn(async move {
        let _ = timer.sleep(Duration::from_millis(1)).await;
        drop(driven);
    });
    let wait = move || {
        while expired.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
            let now = weak.upgrade().map(|timer| timer.now());
            if now.is_none_or(|now| now.saturating_duration_since(begun) >= after) {
                return tell();
            }
        }
    };
    // If there is no thread, there is no warning.
    drop(
        thread::Builder::new()
            .name("tickwheel-undriven".to_owned())
            .spawn(wait),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickwheel::ManualClock;
    use tokio::task::yield_now;
    use tokio::time::timeout;

    #[tokio::test]
    async fn that_nobody_drives_the_timer_is_told_once() {
        for (driven, after) in [(false, Duration::from_millis(1)), (true, UNDRIVEN * 1_000)] {
            let clock = ManualClock::new();
            let timer = Timer::builder()
                .clock(clock.clone())
                .build()
                .expect("it is right");
            let mut tasks = JoinSet::new();
            let (tell, told) = mpsc::channel();
            let count = move || tell.send(()).expect("it is counted");
            if_undriven(&timer, &mut tasks, after, count);
            yield_now().await; // The task begins to sleep.
            assert!(told.try_recv().is_err(), "no time has passed by its clock");
            clock.advance(after);
            if driven {
                timer.advance_clock(Duration::ZERO);
                let ended = timeout(Duration::from_secs(60), tasks.join_next()).await;
                assert!(ended.is_ok(), "it has slept");
            }
            // Until the thread has ended.
            assert_eq!(told.iter().count(), usize::from(!driven));
        }
    }
}
