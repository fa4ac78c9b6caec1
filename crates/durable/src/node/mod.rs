//! What a node does besides its calls, in the order in which a timer meets it.

pub(crate) mod batcher;
pub(crate) mod agenda;
pub(crate) mod claimer;
pub(crate) mod lookout;
pub(crate) mod taker;
pub(crate) mod runner;
pub(crate) mod keeper;
pub(crate) mod acker;
pub(crate) mod stats;
pub(crate) mod undriven;
#[cfg(test)]
#[path = "../../tests/inside/node/mod.rs"]
pub(crate) mod tests;

use crate::entry::Error;
use crate::node::acker::Ended;
use crate::node::agenda::Agenda;
use crate::node::keeper::Held;
use crate::store::{Place, Store};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::when::{StoreTime, draw};
use stats::Stats;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// What the builder has set.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    /// How many timers are claimed and not acknowledged, at most.
    pub(crate) max_in_flight: u32,
    pub(crate) max_attempts: u32,
    pub(crate) retry_after: Duration,
    pub(crate) time_limit: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(5),
            max_in_flight: 1_000,
            max_attempts: 20,
            retry_after: Duration::from_secs(1),
            time_limit: None,
        }
    }
}

impl Options {
    /// Returns how long after an attempt that failed a handler is called again: twice as long after
    /// each attempt, at most 1024 times as long as after the first; and up to a quarter longer, so
    /// that timers which failed together are not tried together again.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        let doubled = 1 << attempt.saturating_sub(1).min(10);
        let after = self.retry_after.saturating_mul(doubled);
        // A quarter, in 1,024 steps.
        after.saturating_add(after / 4_096 * (draw() & 1_023) as u32)
    }

    /// Returns how long an answer may take. The rest of a claim's lease is for its first renewal.
    pub(crate) fn patience(&self) -> Duration {
        self.lease / 2
    }
}

/// What the tasks of a node share.
pub(crate) struct Node<S> {
    pub(crate) store: S,
    pub(crate) timer: Timer,
    pub(crate) options: Options,
    pub(crate) agenda: Agenda,
    /// How much claims and takeovers ask for.
    pub(crate) claims: Share,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) held: Held,
    /// Where acknowledgements wait. At most one for each place.
    pub(crate) ended: mpsc::UnboundedSender<Ended>,
    /// Since when claims, takeovers and renewals have been answered in time, and looks at all.
    pub(crate) settled: Mutex<Instant>,
    /// Told when claims have run out.
    pub(crate) lapsed: Notify,
    pub(crate) leaving: watch::Sender<bool>,
    /// Whether the handlers have ended for which a drain waits: they may call until then. Relaxed:
    /// a call at that moment may be refused or not.
    pub(crate) drained: AtomicBool,
    pub(crate) counters: Mutex<Stats>,
}

/// How long a task waits before it repeats a call that has failed, and how long after its first
/// failure in a row.
pub(crate) const LAST_PAUSE: Duration = Duration::from_millis(500);
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// When a row is tried again that a transaction has locked, and an acknowledgement that was
/// refused.
pub(crate) const LOCKED: Duration = Duration::from_secs(1);

impl<S> Node<S> {
    pub(crate) fn new(
        store: S,
        shown: StoreTime,
        timer: Timer,
        options: Options,
        ended: mpsc::UnboundedSender<Ended>,
    ) -> Self {
        let now = timer.now();
        Node {
            store,
            agenda: Agenda::new(timer.clone(), shown),
            claims: Share::default(),
            room: Arc::new(Semaphore::new(options.max_in_flight as usize)),
            held: Held::new(timer.clone()),
            ended,
            settled: Mutex::new(now),
            lapsed: Notify::new(),
            leaving: watch::Sender::new(false),
            drained: AtomicBool::new(false),
            counters: Mutex::default(),
            timer,
            options,
        }
    }

    pub(crate) fn count(&self) -> MutexGuard<'_, Stats> {
        lock(&self.counters)
    }

    /// Counts a call to the store that failed.
    pub(crate) fn failed(&self, error: &Error, what: &str) {
        self.count().errors += 1;
        tracing::warn!(%error, "{what}");
    }

    /// Returns whether the store has answered a call, and in time. A refusal is an answer.
    pub(crate) fn in_time<A>(&self, asked: Instant, answer: &Result<A, Error>) -> bool {
        let is_lost = matches!(answer, Err(Error::Unavailable(_) | Error::Uncertain(_)));
        let took = self.timer.now().saturating_duration_since(asked);
        !is_lost && took <= self.options.patience()
    }

    /// Returns why a batch of acknowledgements or renewals has failed. A trigger may fail by what
    /// else means that a database is not ready: what the store does not do, though it answers on
    /// the same way, it refuses. After a lost answer it is not asked: that has taken long enough.
    pub(crate) async fn why(&self, error: Error) -> Error
    where
        S: Store,
    {
        match error {
            Error::Unavailable(cause) if self.store.renew(Vec::new()).await.is_ok() => {
                Error::Refused(cause)
            }
            error => error,
        }
    }

    /// Notes how a claim, a takeover, a renewal or a look was answered: see [`taker`].
    pub(crate) fn note_answer(&self, in_time: bool) {
        if !in_time {
            *lock(&self.settled) = self.timer.now();
        }
    }

    /// Waits for a future, unless the node is drained before.
    pub(crate) async fn unless_leaving<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut leaving = self.leaving.subscribe();
        tokio::select! {
            biased;
            _ = leaving.wait_for(|leaving| *leaving) => None,
            output = future => Some(output),
        }
    }

    /// Waits, and returns whether to go on: the node is not drained, and its timer runs.
    pub(crate) async fn pause(&self, pause: Duration) -> bool {
        let slept = self.unless_leaving(self.timer.sleep(pause)).await;
        matches!(slept, Some(Ok(_)))
    }

    /// Takes places for up to so many timers, without waiting.
    pub(crate) fn more_places(&self, places: &mut OwnedSemaphorePermit, most: usize) {
        let more = most.saturating_sub(places.num_permits());
        // More than are free would be refused as a whole.
        let more = more.min(self.room.available_permits());
        // Another task may take them first: then the claim is a smaller one.
        if let Ok(more) = Arc::clone(&self.room).try_acquire_many_owned(more as u32) {
            places.merge(more);
        }
    }

    /// Returns whether other nodes are to be told of so many timers: if this one has no room for
    /// them, or claims no more. Not always, as commits that notify wait for each other in the whole
    /// server.
    pub(crate) fn tells(&self, timers: usize) -> bool {
        *self.leaving.borrow() || self.room.available_permits() < timers
    }

    /// Notes a row that can be claimed, now or later, given the store's clock.
    pub(crate) fn note(&self, now: StoreTime, first: Option<Place>) {
        if let Some(place) = first {
            self.agenda.note(Some(now), place, false);
        }
    }
}

/// How much is asked of the store at once: all, or half as much after each answer that was late or
/// lost, until one was in time.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Shared by tasks that ask for the same. A share that is off by one does no harm: relaxed.
    halved: AtomicU32,
}

impl Share {
    /// Returns the share of so much, at least one.
    pub(crate) fn of(&self, all: usize) -> usize {
        (all >> self.halved.load(Relaxed)).max(1)
    }

    /// Returns whether the last answer was late or lost.
    pub(crate) fn is_halved(&self) -> bool {
        self.halved.load(Relaxed) > 0
    }

    pub(crate) fn note(&self, in_time: bool) {
        let halved = self.halved.load(Relaxed);
        // Twenty halves make one of a million.
        let halved = match in_time {
            true => halved.saturating_sub(1),
            false => (halved + 1).min(20),
        };
        self.halved.store(halved, Relaxed);
    }
}
