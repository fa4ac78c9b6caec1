//! What a node knows and may be told, and the tasks that work on it.

pub(crate) mod batcher;
pub(crate) mod claimer;
pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod loader;
pub(crate) mod membership;
pub(crate) mod runner;
pub(crate) mod slots;
pub(crate) mod stats;
pub(crate) mod window;

use crate::entry::Error;
use crate::node::clock::StoreClock;
use crate::node::slots::Slots;
use crate::node::stats::Counters;
use crate::node::window::Window;
use crate::store::Place;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use tickwheel::Timer;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// What the tasks of a node share.
pub(crate) struct Node<S> {
    pub(crate) store: S,
    pub(crate) timer: Timer,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) options: Options,
    pub(crate) slots: Slots,
    pub(crate) window: Window,
    pub(crate) counters: Counters,
    /// Before when a timer has to be due to wake the node, in microseconds: none, but where it
    /// rests.
    pub(crate) rests_until: AtomicI64,
    pub(crate) stirred: Notify,
    /// Told of slots that another node has given up.
    pub(crate) freed: Notify,
}

/// After how long it is told that nobody drives the timer.
pub(crate) const UNDRIVEN: Duration = Duration::from_secs(5);

impl<S> Node<S> {
    pub(crate) fn new(store: S, timer: Timer, options: Options) -> Self {
        let clock = Arc::new(StoreClock::new(timer.clone()));
        let window = Window::new(&timer, Arc::clone(&clock), options.catch_up_rate);
        let (slots, counters) = (Slots::default(), Counters::default());
        Node {
            store,
            timer,
            clock,
            options,
            slots,
            window,
            counters,
            rests_until: AtomicI64::new(0),
            stirred: Notify::new(),
            freed: Notify::new(),
        }
    }

    /// Notes a timer that is known to lie in the store, if it is this node's and near, or the node
    /// has to be awake for it.
    pub(crate) fn note(&self, place: Place) {
        if place.due.as_micros() < self.rests_until.load(Relaxed) {
            self.stirred.notify_one();
        }
        let near = place.due < self.window.horizon() && self.slots.owns(place.slot);
        if near && self.window.near() < self.options.max_near {
            self.window.file(place, self.clock.instant_of(place.due));
        }
    }

    /// Counts a call to the store that failed.
    pub(crate) fn failed(&self, error: &Error, what: &str) {
        self.counters.lock().errors += 1;
        tracing::warn!(%error, "{what}");
    }

    /// Waits for `delay`. Returns at once if the timer was shut down, after which the node ends
    /// anyway.
    pub(crate) async fn sleep(&self, delay: Duration) {
        let _ = self.timer.sleep(delay).await;
    }
}

/// Calls `tell` if nothing expires though so much time has passed, also by the timer's clock, as
/// where a timer was built and not started. On a thread: a runtime may have no clock.
pub(crate) fn if_undriven(
    timer: &Timer,
    tasks: &mut JoinSet<()>,
    after: Duration,
    tell: impl FnOnce() + Send + 'static,
) {
    let (driven, expired) = mpsc::channel::<()>();
    let (timer, weak, begun) = (timer.clone(), timer.downgrade(), timer.now());
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

/// Draws a number that nobody else has: std's random keys, hashed.
pub(crate) fn draw() -> i64 {
    (RandomState::new().hash_one(0_u8) >> 1) as i64
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How far ahead timers are loaded.
    pub(crate) window: Duration,
    pub(crate) lease: Duration,
    /// How many timers are claimed and not acknowledged, at most.
    pub(crate) max_in_flight: u32,
    /// How many timers are loaded, at most.
    pub(crate) max_near: usize,
    pub(crate) max_attempts: u32,
    pub(crate) retry_after: Duration,
    pub(crate) time_limit: Option<Duration>,
    /// How many timers that are late are claimed in a second.
    pub(crate) catch_up_rate: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            window: Duration::from_secs(60),
            lease: Duration::from_secs(5),
            max_in_flight: 1_000,
            max_near: 1_000_000,
            max_attempts: 20,
            retry_after: Duration::from_secs(1),
            time_limit: None,
            catch_up_rate: u32::MAX,
        }
    }
}

impl Options {
    /// Returns how long after an attempt that failed a handler is called again: twice as long after
    /// each attempt, at most 1024 times as long as after the first; and up to a quarter longer, so
    /// that what failed together is not tried together again.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        let after = self
            .retry_after
            .saturating_mul(1 << attempt.saturating_sub(1).min(10));
        after.saturating_add(after / 4_096 * (draw() & 1_023) as u32)
    }

    /// Returns how long a process lives before it has a timer that was alone in so many crashes:
    /// twice as long after each, from twelve leases to sixteen times as many.
    pub(crate) fn quarantine(&self, crashes: u32) -> Duration {
        let leases = crashes.checked_sub(1).map_or(0, |more| 12 << more.min(4));
        self.lease.saturating_mul(leases)
    }
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
