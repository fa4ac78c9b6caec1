//! A node: what it knows, and the tasks that work on it.

pub(crate) mod acker;
pub(crate) mod batcher;
pub(crate) mod claimer;
pub(crate) mod clock;
pub(crate) mod count;
pub(crate) mod counters;
pub(crate) mod lateness;
pub(crate) mod loader;
pub(crate) mod membership;
pub(crate) mod options;
pub(crate) mod per_key;
pub(crate) mod ready;
pub(crate) mod runner;
pub(crate) mod slots;
pub(crate) mod suspects;
pub(crate) mod window;

use crate::error::Error;
use crate::node::clock::StoreClock;
use crate::node::counters::Counters;
use crate::node::options::Options;
use crate::node::slots::Slots;
use crate::node::window::Window;
use crate::store::Place;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tickwheel::Timer;

/// What the tasks of a node share.
pub(crate) struct Node<S> {
    pub(crate) store: S,
    pub(crate) timer: Timer,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) options: Options,
    pub(crate) slots: Slots,
    pub(crate) window: Window,
    pub(crate) counters: Counters,
}

impl<S> Node<S> {
    pub(crate) fn new(store: S, timer: Timer, options: Options) -> Self {
        let clock = Arc::new(StoreClock::new(timer.clone()));
        let window = Window::new(&timer, Arc::clone(&clock), options.catch_up_rate);
        let (slots, counters) = (Slots::default(), Counters::default());
        Node { store, timer, clock, options, slots, window, counters }
    }

    /// Notes a timer that is known to lie in the store, if it is this node's and near.
    pub(crate) fn note(&self, place: Place) {
        let near = place.due < self.window.horizon() && self.slots.owns(place.slot);
        if near && self.window.near() < self.options.max_near {
            self.window.file(place, self.clock.instant_of(place.due));
        }
    }

    /// Counts a call to the store that failed.
    pub(crate) fn failed(&self, error: &Error, what: &str) {
        self.counters.errors.add(1);
        tracing::warn!(%error, "{what}");
    }

    /// Waits for `delay`. Returns at once if the timer was shut down, after which the node ends
    /// anyway.
    pub(crate) async fn sleep(&self, delay: Duration) {
        let _ = self.timer.sleep(delay).await;
    }
}

/// Draws a number that nobody else has: std's random keys, hashed.
pub(crate) fn draw() -> i64 {
    (RandomState::new().hash_one(0_u8) >> 1) as i64
}
