//! Runs the handlers of claimed timers, one at a time for each name.

use crate::contained::{contained, event};
use crate::entry::{Due, Outcome};
use crate::node::acker::Ended;
use crate::node::keeper::Lease;
use crate::node::{Drain, Node};
use crate::store::{Claimed, Claims, Ending, Name, Store};
use crate::sync::{JoinSet, Mutex, lock};
use crate::when::{Moment, When};
use std::any::Any;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};
use tickwheel::future::TimedError;
use tokio::sync::OwnedSemaphorePermit;

type Run = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The user's handler, with a boxed future.
pub(crate) type Handler = Box<dyn Fn(Due) -> Run + Send + Sync>;

pub(crate) struct Runner<S> {
    node: Arc<Node<S>>,
    /// The user's node: it ends with its last clone.
    owner: Weak<dyn Any + Send + Sync>,
    handler: Handler,
    /// The names whose handlers run. If this node's claim of a name runs out and the node claims
    /// the timer again, the later claim waits here for the end of the handler. Locked for a lookup.
    running: Mutex<HashMap<Name, Option<Work>>>,
}

/// A claimed timer and its place.
struct Work {
    row: Claimed,
    late_by: Duration,
    lease: Arc<Lease>,
    place: OwnedSemaphorePermit,
}

impl<S: Store> Runner<S> {
    pub(crate) fn new(
        node: Arc<Node<S>>,
        owner: Weak<dyn Any + Send + Sync>,
        handler: Handler,
    ) -> Self {
        Runner {
            node,
            owner,
            handler,
            running: Mutex::default(),
        }
    }

    /// Runs the handlers of claimed timers. `share` returns a suspect's share, given its crashes.
    pub(crate) fn begin(
        self: &Arc<Self>,
        claims: Claims,
        asked: Instant,
        mut places: OwnedSemaphorePermit,
        mut share: impl FnMut(u32) -> Option<OwnedSemaphorePermit>,
        runs: &mut JoinSet<()>,
    ) {
        let node = &self.node;
        let mut counted = node.count();
        counted.claimed += claims.rows.len() as u64;
        counted.expired += claims.expired;
        for row in &claims.rows {
            counted.lateness.record(claims.now.since(row.due));
        }
        drop(counted);
        // After a late answer the claims may run out before their first renewal.
        let took = node.timer.now().saturating_duration_since(asked);
        let is_late = took > node.options.patience();
        if is_late {
            event!(
                warn,
                ?took,
                "claims are given back: the answer took over half a lease"
            );
        }
        let is_over = is_late || node.is_leaving();
        for row in claims.rows {
            // Never: a store returns no more rows than there are places.
            let Some(place) = places.split(1) else { return };
            let share = share(row.crashes);
            let work = Work {
                lease: node.held.begin(&row, asked, node.options.lease, share),
                late_by: claims.now.since(row.due),
                row,
                place,
            };
            if is_over {
                self.end(work, Ending::GiveBack);
            } else if let Some(work) = self.unless_running(work) {
                runs.spawn(Arc::clone(self).run(work));
            }
        }
    }

    /// Returns the timer, unless a handler of its name is running: then the timer waits.
    fn unless_running(&self, work: Work) -> Option<Work> {
        // The claim of a running handler may have run out, and this node has taken it over.
        let mut running = lock(&self.running);
        let Some(waiting) = running.get_mut(&work.row.name) else {
            running.insert(work.row.name.clone(), None);
            return Some(work);
        };
        let former = waiting.replace(work);
        drop(running);
        // Another claim that has waited. The later claim shows that it has run out: there is
        // nothing to acknowledge.
        drop(former);
        None
    }

    async fn run(self: Arc<Self>, work: Work) {
        let mut next = Some(work);
        while let Some(work) = next.take() {
            let name = work.row.name.clone();
            if self.node.is_leaving() {
                self.end(work, Ending::GiveBack);
            } else if work.lease.has_ended() {
                // The claim has run out while it waited. Another node may have the timer.
                self.node.held.end(&name, work.row.token);
            } else {
                let ending = self.handle(&work).await;
                self.end(work, ending);
            }
            let mut running = lock(&self.running);
            next = running.get_mut(&name).and_then(Option::take);
            if next.is_none() {
                running.remove(&name);
            }
        }
    }

    fn end(&self, work: Work, ending: Ending) {
        let ended = Ended::new(work.row, ending, work.place);
        // Fails once the node has ended.
        let _ = self.node.ended.send(ended);
    }

    async fn handle(&self, work: &Work) -> Ending {
        let node = &self.node;
        let attempts = work.row.attempts;
        // The last attempt has crashed. No handler could answer that it was the last one.
        if attempts > node.options.max_attempts {
            return Ending::Dead(format!("{} attempts crashed or failed", attempts - 1));
        }
        let name = &work.row.name.0;
        let outcome = match self.outcome(self.due(work)).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ending::GiveBack,
            Err(panic) => {
                node.count().panicked += 1;
                event!(error, panic, name, "a handler panicked");
                Outcome::Failed(panic)
            }
        };
        if let Outcome::Failed(reason) | Outcome::RetryAt(_, reason) = &outcome {
            event!(debug, name, attempts, reason, "an attempt failed");
        }
        self.ending(outcome, attempts)
    }

    /// Calls the handler, and returns the message of a panic as an error; `None` if a drain has
    /// dropped the handler. The call, each poll and the drop are the user's code. Each is contained
    /// alone: a drop that panics while a panic unwinds would abort the process.
    async fn outcome(&self, due: Due) -> Result<Option<Outcome>, String> {
        let node = &self.node;
        let mut run = contained(|| (self.handler)(due))?;
        let mut polls = poll_fn(|context| match contained(|| run.as_mut().poll(context)) {
            Ok(poll) => poll.map(Ok),
            // Ready: the future is not polled again.
            Err(panic) => Poll::Ready(Err(panic)),
        });
        let limited = async {
            let Some(limit) = node.options.time_limit else {
                return polls.await;
            };
            match node.timer.timeout(limit, &mut polls).await {
                Ok(outcome) => outcome,
                Err(TimedError::Elapsed) => {
                    Ok(Outcome::Failed(format!("it took longer than {limit:?}")))
                }
                // The timer was shut down: there is no limit any more.
                Err(_) => polls.await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = limited => outcome.map(Some),
            () = node.reaches(Drain::Drops) => Ok(None),
        };
        let dropped = contained(|| drop(run));
        match outcome {
            // Given back, whatever the drop does.
            Ok(None) => outcome,
            _ => dropped.and(outcome),
        }
    }

    fn due(&self, work: &Work) -> Due {
        let row = &work.row;
        Due {
            key: row.name.key().map(str::to_owned),
            tag: row.tag.clone(),
            payload: row.payload.clone(),
            id: row.id,
            at: row.due,
            planned: row.planned,
            attempt: row.attempts,
            late_by: work.late_by,
            token: row.token,
            name: row.name.0.clone(),
            owner: self.owner.clone(),
            lease: Arc::clone(&work.lease),
        }
    }

    fn ending(&self, outcome: Outcome, attempts: u32) -> Ending {
        let is_last = attempts >= self.node.options.max_attempts;
        match outcome {
            Outcome::Done => Ending::Done,
            Outcome::RetryAt(_, reason) | Outcome::Failed(reason) if is_last => {
                Ending::Dead(format!("{attempts} attempts failed: {reason}"))
            }
            Outcome::Failed(_) => {
                let after = self.node.options.backoff(attempts);
                Ending::Retry(Moment::from(When::After(after)))
            }
            Outcome::RetryAt(when, _) => Ending::Retry(when.into()),
            Outcome::Again(when, payload) => match Ending::again(when, payload) {
                Ok(again) => again,
                Err(error) => Ending::Dead(error.to_string()),
            },
            Outcome::Dead(reason) => Ending::Dead(reason),
        }
    }
}
