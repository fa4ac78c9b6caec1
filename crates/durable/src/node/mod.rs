//! The parts of a node besides its calls, in the order in which a timer meets them.

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

use crate::contained::event;
use crate::entry::Error;
use crate::node::acker::Ended;
use crate::node::agenda::Agenda;
use crate::node::keeper::Held;
use crate::store::Place;
use crate::sync::{Mutex, MutexGuard, lock, random};
use crate::when::StoreTime;
use stats::Stats;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// The builder's options.
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
    /// Returns the delay after a failed attempt. The delay doubles with each attempt, up to 1,024
    /// times the first one. Up to a quarter is added at random, so that timers that failed together
    /// are not tried together again.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        let doubled = 1 << attempt.saturating_sub(1).min(10);
        let after = self.retry_after.saturating_mul(doubled);
        // One of 1,024 steps up to a quarter.
        after.saturating_add(after / 4_096 * (random() & 1_023) as u32)
    }

    /// Returns how long an answer may take. The other half of the lease is for the first renewal.
    pub(crate) fn patience(&self) -> Duration {
        self.lease / 2
    }
}

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drain {
    No,
    /// Nothing is claimed any more, and running handlers are waited for.
    Waits,
    /// Running handlers are dropped.
    Drops,
}

/// The state that the tasks of a node share.
pub(crate) struct Node<S> {
    pub(crate) store: S,
    pub(crate) timer: Timer,
    pub(crate) options: Options,
    pub(crate) agenda: Agenda,
    /// How many rows claims and takeovers ask for.
    pub(crate) claims: Share,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) held: Held,
    /// The queue of acknowledgements: at most one for each place.
    pub(crate) ended: mpsc::UnboundedSender<Ended>,
    /// Since when all claims, takeovers and renewals were answered in time, and all looks were
    /// answered; `None` after one that was not.
    pub(crate) settled: Mutex<Option<Instant>>,
    /// Notified if claims have run out.
    pub(crate) lapsed: Notify,
    pub(crate) drain: watch::Sender<Drain>,
    /// Whether a drain has waited for all handlers: they may make calls until then. Relaxed: a call
    /// at that moment may be refused or not.
    pub(crate) drained: AtomicBool,
    /// Locked to repeat a call for a locked row.
    pub(crate) retries: tokio::sync::Mutex<()>,
    pub(crate) counters: Mutex<Stats>,
}

/// How long a task waits at most before it repeats a failed call, and how long after the first of
/// several failures.
pub(crate) const LAST_PAUSE: Duration = Duration::from_millis(500);
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// After how long a locked row is tried again at the latest, and a refused acknowledgement.
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
            settled: Mutex::new(Some(now)),
            lapsed: Notify::new(),
            drain: watch::Sender::new(Drain::No),
            drained: AtomicBool::new(false),
            retries: tokio::sync::Mutex::default(),
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
        event!(warn, %error, "{what}");
    }

    /// Notes for the next call's share whether the store has answered in time, and returns it. A
    /// refusal is an answer.
    pub(crate) fn judge<A>(
        &self,
        asked: Instant,
        answer: &Result<A, Error>,
        share: &Share,
    ) -> bool {
        let is_lost = matches!(answer, Err(Error::Unavailable(_) | Error::Uncertain(_)));
        let took = self.timer.now().saturating_duration_since(asked);
        let in_time = !is_lost && took <= self.options.patience();
        share.note(in_time);
        in_time
    }

    /// Notes whether a claim, a takeover, a renewal or a look was answered in time: see [`taker`].
    pub(crate) fn note_answer(&self, in_time: bool) {
        let mut settled = lock(&self.settled);
        // Not from a failure on: calls may hang after it, as behind a pooler.
        *settled = match in_time {
            true => settled.or_else(|| Some(self.timer.now())),
            false => None,
        };
    }

    /// Returns whether the node claims nothing any more.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.drain.borrow() >= Drain::Waits
    }

    /// Has the drain come that far. Another drain may have come further.
    pub(crate) fn reach(&self, stage: Drain) {
        self.drain
            .send_modify(|reached| *reached = stage.max(*reached));
    }

    /// Waits until a drain has come that far.
    pub(crate) async fn reaches(&self, stage: Drain) {
        let mut drain = self.drain.subscribe();
        // Never fails: the node has the sender.
        let _ = drain.wait_for(|reached| *reached >= stage).await;
    }

    /// Waits for a future. `None` if the node is drained before.
    pub(crate) async fn unless_leaving<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.reaches(Drain::Waits) => None,
            output = future => Some(output),
        }
    }

    /// Waits, and returns whether to go on: the node is not drained, and its timer runs.
    pub(crate) async fn pause(&self, pause: Duration) -> bool {
        let slept = self.unless_leaving(self.timer.sleep(pause)).await;
        matches!(slept, Some(Ok(_)))
    }

    /// Takes places without waiting, up to `most` in all.
    pub(crate) fn more_places(&self, places: &mut OwnedSemaphorePermit, most: usize) {
        let more = most.saturating_sub(places.num_permits());
        // The semaphore gives all of them or none.
        let more = more.min(self.room.available_permits());
        // Another task may take places first: then the claim is a smaller one.
        if let Ok(more) = Arc::clone(&self.room).try_acquire_many_owned(more as u32) {
            places.merge(more);
        }
    }

    /// Returns whether to tell other nodes of so many timers: if this node has no places for them,
    /// or claims no more. Not always, because commits that notify wait for each other in the whole
    /// server.
    pub(crate) fn tells(&self, timers: usize) -> bool {
        self.is_leaving() || self.room.available_permits() < timers
    }

    /// Notes a row that can be claimed now or later, with the time of the store's clock.
    pub(crate) fn note(&self, now: StoreTime, first: Option<Place>) {
        if let Some(place) = first {
            self.agenda.note(Some(now), place, false);
        }
    }
}

/// How much to ask of the store at once. Halved after each answer that was late or lost, and
/// doubled again after each one in time.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Shared by several tasks. Relaxed, and not exchanged: a share that is off by one does no
    /// harm.
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

    fn note(&self, in_time: bool) {
        let halved = self.halved.load(Relaxed);
        // Twenty times, as the most places are about a million.
        let halved = match in_time {
            true => halved.saturating_sub(1),
            false => (halved + 1).min(20),
        };
        self.halved.store(halved, Relaxed);
    }
}
