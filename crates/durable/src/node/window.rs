//! The window: timers that are due soon, in the wheel.

use crate::node::clock::StoreClock;
use crate::node::ready::Ready;
use crate::store::Place;
use crate::time::StoreTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Timer, TimerEntry};

/// Near timers by their places: each is there once, however often it is reported.
pub(crate) struct Window {
    near: KeyedTimer<Place, ()>,
    /// Those whose time has come.
    pub(crate) ready: Arc<Ready>,
    timer: Timer,
    /// Until when timers are loaded, in microseconds.
    horizon: AtomicI64,
}

/// From how late on a timer is one of an outage, to be paced.
const LATE: Duration = Duration::from_secs(5);

impl Window {
    pub(crate) fn new(timer: &Timer, clock: Arc<StoreClock>, catch_up_rate: u32) -> Self {
        let ready = Arc::new(Ready::new(catch_up_rate, timer.now()));
        let queue = Arc::clone(&ready);
        let near = KeyedTimer::new(timer, move |place: Place, ()| {
            queue.add(place, clock.earliest().since(place.due) > LATE);
        });
        Window { near, ready, timer: timer.clone(), horizon: AtomicI64::new(0) }
    }

    pub(crate) fn horizon(&self) -> StoreTime {
        // Acquire, with the release below: who sees a horizon sees what was published before it.
        StoreTime::from_micros(self.horizon.load(Ordering::Acquire))
    }

    pub(crate) fn set_horizon(&self, horizon: StoreTime) {
        self.horizon.store(horizon.as_micros(), Ordering::Release);
    }

    /// Files a timer under the moment at which it is due here. If the wheel does not take it, a
    /// sweep finds it when it is due.
    pub(crate) fn file(&self, place: Place, deadline: Instant) {
        if !self.ready.contains(&place) {
            let _ = self.near.schedule(place, TimerEntry::at(deadline, ()));
        }
    }

    pub(crate) fn is_known(&self, place: &Place) -> bool {
        self.ready.contains(place) || self.near.contains(place)
    }

    /// Forgets all that wait in the wheel.
    pub(crate) fn clear(&self) {
        drop(self.near.cancel_all());
        self.set_horizon(StoreTime::MIN);
    }

    /// Waits until something is due.
    pub(crate) async fn wait(&self) {
        if let Some(pause) = self.ready.wait().await {
            let _ = self.timer.sleep(pause).await;
        }
    }

    pub(crate) fn take(&self, limit: usize) -> Vec<Place> {
        self.ready.take(limit, self.timer.now())
    }

    /// Returns how many timers are in the wheel or due.
    pub(crate) fn near(&self) -> usize {
        self.near.len() + self.ready.len()
    }
}
