//! Tells that nobody drives the timer: then nothing of the node happens, and nothing fails.

use crate::sync::JoinSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use tickwheel::Timer;

/// After how long it is told.
pub(crate) const UNDRIVEN: Duration = Duration::from_secs(5);

/// Calls `tell` if nothing expires though so much time has passed, also by the timer's clock, as
/// where a timer was built and not started. On a thread: a runtime may have no clock.
pub(crate) fn if_undriven(
    timer: &Timer,
    tasks: &mut JoinSet<()>,
    after: Duration,
    tell: impl FnOnce() + Send + 'static,
) {
    if cfg!(tickwheel_model) {
        return; // No schedule knows of such a thread.
    }
    let (driven, expired) = mpsc::channel::<()>();
    let weak = timer.downgrade();
    let begun = timer.now();
    let timer = timer.clone();
    // A task of its own: the store, which others ask, may not answer.
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
    // Without it, it is not told.
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
