//! Near timers: in the wheel, due and waiting to be claimed, in a handler's hands.

use crate::node::clock::StoreClock;
use crate::store::{Place, StoreTime, Suspect};
use crate::sync::{Mutex, lock};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;
use tokio::sync::Notify;

/// Near timers by their places: each is there once, however often it is reported.
pub(crate) struct Window {
    near: KeyedTimer<Place, ()>,
    /// Those whose time has come.
    pub(crate) ready: Arc<Ready>,
    timer: Timer,
    /// Until when timers are loaded, in microseconds.
    horizon: AtomicI64,
}

/// From how late on a timer is one of an outage, to be paced as those of a pause are.
const LATE: Duration = Duration::from_secs(5);

impl Window {
    pub(crate) fn new(timer: &Timer, clock: Arc<StoreClock>, catch_up_rate: u32) -> Self {
        let ready = Arc::new(Ready::new(catch_up_rate, timer.now()));
        let queue = Arc::clone(&ready);
        let near = KeyedTimer::new(timer, move |place: Place, ()| {
            queue.add(
                place,
                clock.earliest().since(place.due) > LATE || place.due.is_marked(),
            );
        });
        Window {
            near,
            ready,
            timer: timer.clone(),
            horizon: AtomicI64::new(0),
        }
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
            let _ = self.near.add(place, deadline, ());
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

/// Each place is on time, late or taken: so no timer is claimed twice at a time.
pub(crate) struct Ready {
    /// Locked for a few steps for each place in a batch; nothing else is locked under it.
    queue: Mutex<Queue>,
    arrived: Notify,
    suspected: Notify,
}

struct Queue {
    on_time: BTreeSet<Place>,
    /// Those of before an outage or of a pause: paced, so that they do not drown the others.
    late: BTreeSet<Place>,
    taken: HashSet<Place>,
    /// Those of the taken that were not claimed, because a crash befell them.
    suspects: BTreeSet<Suspect>,
    pace: Pace,
}

/// How many late ones may go: a bucket of tokens for half a second.
struct Pace {
    per_second: u32,
    tokens: f64,
    filled: Instant,
}

impl Pace {
    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        let rate = f64::from(self.per_second);
        // At least one, so that the slowest pace is a pace.
        self.tokens = (self.tokens + passed * rate).min((rate / 2.0).max(1.0));
        self.filled = now;
    }
}

/// How long a late one waits for a token at most, beyond its turn.
const PACE: Duration = Duration::from_millis(10);

impl Ready {
    fn new(per_second: u32, now: Instant) -> Self {
        let pace = Pace {
            per_second,
            tokens: 0.0,
            filled: now,
        };
        let (on_time, late) = (BTreeSet::new(), BTreeSet::new());
        let (taken, suspects) = (HashSet::new(), BTreeSet::new());
        let queue = Mutex::new(Queue {
            on_time,
            late,
            taken,
            suspects,
            pace,
        });
        Ready {
            queue,
            arrived: Notify::new(),
            suspected: Notify::new(),
        }
    }

    /// Adds a timer whose time has come, unless it is here already.
    fn add(&self, place: Place, late: bool) {
        let mut queue = lock(&self.queue);
        if !queue.taken.contains(&place) {
            let kind = if late {
                &mut queue.late
            } else {
                &mut queue.on_time
            };
            kind.insert(place);
            drop(queue);
            self.arrived.notify_one();
        }
    }

    fn contains(&self, place: &Place) -> bool {
        let queue = lock(&self.queue);
        queue.on_time.contains(place) || queue.late.contains(place) || queue.taken.contains(place)
    }

    /// Waits until there may be something to take; returns for how long to wait besides.
    async fn wait(&self) -> Option<Duration> {
        loop {
            {
                let queue = lock(&self.queue);
                if !queue.on_time.is_empty() || queue.pace.tokens >= 1.0 && !queue.late.is_empty() {
                    return None;
                }
                if !queue.late.is_empty() {
                    return Some(PACE);
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Takes up to `limit`, the earliest first, late ones after those on time.
    fn take(&self, limit: usize, now: Instant) -> Vec<Place> {
        let mut queue = lock(&self.queue);
        let Queue {
            on_time,
            late,
            taken,
            pace,
            ..
        } = &mut *queue;
        pace.fill(now);
        let mut places = Vec::new();
        while places.len() < limit {
            let next = on_time.pop_first().or_else(|| {
                let next = if pace.tokens >= 1.0 {
                    late.pop_first()
                } else {
                    None
                };
                next.inspect(|_| pace.tokens -= 1.0)
            });
            let Some(place) = next else { break };
            taken.insert(place);
            places.push(place);
        }
        if !on_time.is_empty() || !late.is_empty() {
            self.arrived.notify_one(); // For another claimer.
        }
        places
    }

    /// Puts timers that were taken among the suspects.
    pub(crate) fn suspect(&self, suspects: Vec<Suspect>) {
        if !suspects.is_empty() {
            lock(&self.queue).suspects.extend(suspects);
            self.suspected.notify_one();
        }
    }

    /// Waits until there is a suspect; returns the least suspect.
    pub(crate) async fn suspicion(&self) -> Suspect {
        loop {
            if let Some(first) = lock(&self.queue).suspects.first() {
                return *first;
            }
            self.suspected.notified().await;
        }
    }

    /// Takes up to `limit` suspects that were in so many crashes.
    pub(crate) fn take_suspects(&self, crashes: u32, limit: usize) -> Vec<Place> {
        let suspects = &mut lock(&self.queue).suspects;
        let equal = suspects.iter().filter(|suspect| suspect.crashes == crashes);
        let some: Vec<Suspect> = equal.take(limit).copied().collect();
        for suspect in &some {
            suspects.remove(suspect);
        }
        some.iter().map(|suspect| suspect.place).collect()
    }

    /// Forgets timers that were taken.
    pub(crate) fn finish<'a>(&self, places: impl IntoIterator<Item = &'a Place>) {
        let mut queue = lock(&self.queue);
        for place in places {
            queue.taken.remove(place);
        }
    }

    pub(crate) fn len(&self) -> usize {
        let queue = lock(&self.queue);
        queue.on_time.len() + queue.late.len() + queue.suspects.len()
    }
}
