//! Runs handlers on what was claimed, one for a key at a time, and acknowledges what has ended.

use crate::entry::{Due, Error, Outcome, Token, When, check_payload};
use crate::node::Node;
use crate::node::batcher::{BATCH, fitting, insist};
use crate::node::deadline::Deadline;
use crate::store::{Ack, ClaimedRow, Ending, Place, Store};
use crate::sync::{Mutex, lock, spawn};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::future::TimedError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The user's handler, whatever its future.
pub(crate) type Handler =
    Box<dyn Fn(Due) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// What is to be acknowledged. The permits are given back when it was.
pub(crate) type Ended = (Ack, Permits);

pub(crate) struct Runner<S> {
    node: Arc<Node<S>>,
    /// The node as its user has it: it ends with the last of those.
    owner: Weak<dyn Any + Send + Sync>,
    handler: Handler,
    per_key: PerKey,
    /// Bounded by the permits.
    ended: mpsc::UnboundedSender<Ended>,
}

impl<S: Store> Runner<S> {
    pub(crate) fn new(
        node: Arc<Node<S>>,
        owner: Weak<dyn Any + Send + Sync>,
        handler: Handler,
        ended: mpsc::UnboundedSender<Ended>,
    ) -> Self {
        Runner {
            node,
            owner,
            handler,
            per_key: PerKey::default(),
            ended,
        }
    }

    /// Runs the handler on a timer, on a task of its own; one after the other for each key.
    pub(crate) fn begin(self: &Arc<Self>, work: Work) {
        if let Some(work) = self.per_key.begin(work) {
            let runner = Arc::clone(self);
            spawn(async move {
                let mut next = Some(work);
                while let Some((row, permits)) = next {
                    let key = row.key.clone();
                    runner.run(row, permits).await;
                    next = runner.per_key.end(key.as_deref());
                }
            });
        }
    }

    async fn run(self: &Arc<Self>, row: ClaimedRow, permits: Permits) {
        let claim = row.claim;
        // The last look before the handler: what was lost while this waited is another node's.
        if !self.node.slots.holds(&claim) {
            self.node.slots.end_claim(&claim);
            self.node.window.ready.finish([&claim.place]);
            self.node.note(claim.place); // If it is this node's again, in a later epoch.
            return;
        }
        let attempts = own_attempts(&row);
        let ending = match attempts > self.node.options.max_attempts {
            true => Ending::Dead(format!("{} attempts crashed or failed", row.attempts - 1)),
            false => self.call(row).await,
        };
        let _ = self.ended.send((Ack { claim, ending }, permits)); // Dropped only with the node.
    }

    async fn call(self: &Arc<Self>, row: ClaimedRow) -> Ending {
        let attempts = own_attempts(&row);
        let limit = self.node.options.time_limit;
        let limit = limit.map(|limit| Arc::new(Deadline::new(&self.node.timer, limit)));
        let due = self.due(row, limit.clone());
        // Of one that was held back the pace is the reason.
        if !due.at.is_marked() {
            self.node.counters.lock().lateness.record(due.late_by);
        }
        let runner = Arc::clone(self);
        // A task of its own contains the panic, of the handler and of its future.
        let mut handler = spawn(async move { (runner.handler)(due).await });
        let in_time = match &limit {
            Some(limit) => limit.wait(&mut handler).await,
            None => Ok((&mut handler).await),
        };
        let outcome = match in_time {
            Ok(outcome) => outcome,
            Err(TimedError::Elapsed) => {
                handler.abort();
                // Only once it has ended: until then the next of its key would run beside it.
                let outcome = handler.await;
                let limit = limit.map(|limit| limit.allowed()).unwrap_or_default();
                let late = |_| Outcome::Failed(format!("it took longer than {limit:?}"));
                Ok(outcome.unwrap_or_else(late))
            }
            Err(_) => handler.await, // The timer has ended.
        };
        let outcome = outcome.unwrap_or_else(|error| {
            self.node.counters.lock().panicked += 1;
            tracing::error!(%error, "a handler panicked");
            Outcome::Failed(error.to_string())
        });
        self.ending(outcome, attempts)
    }

    fn due(&self, row: ClaimedRow, deadline: Option<Arc<Deadline>>) -> Due {
        let ClaimedRow {
            claim,
            key,
            tag,
            attempts: attempt,
            payload,
            planned,
            ..
        } = row;
        let place = claim.place;
        let late_by = self.node.clock.earliest().since(place.due);
        let partition = place.slot - self.node.store.slot(0);
        let token = Token {
            partition,
            epoch: claim.epoch,
        };
        Due {
            key,
            tag,
            payload,
            id: place.id,
            at: place.due,
            planned,
            attempt,
            late_by,
            token,
            #[cfg(feature = "postgres")]
            slot: place.slot,
            #[cfg(feature = "postgres")]
            schema: self.node.store.schema(),
            owner: self.owner.clone(),
            deadline,
        }
    }

    fn ending(&self, outcome: Outcome, attempts: u32) -> Ending {
        let now = || self.node.clock.now();
        let is_last = attempts >= self.node.options.max_attempts;
        match outcome {
            Outcome::Done => Ending::Done,
            Outcome::RetryAt(_, reason) | Outcome::Failed(reason) if is_last => Ending::Dead(
                format!("{attempts} attempts failed: {}", reason.replace('\0', "")),
            ),
            Outcome::Failed(_) => {
                let after = self.node.options.backoff(attempts);
                Ending::Retry(When::After(after).resolve(now()))
            }
            Outcome::RetryAt(when, _) => Ending::Retry(when.resolve(now())),
            Outcome::Again(when, payload) => match check_payload(&payload) {
                Ok(()) => {
                    let due = when.resolve(now());
                    Ending::Again {
                        due,
                        planned: when.planned(due),
                        payload,
                    }
                }
                Err(error) => Ending::Dead(error.to_string()),
            },
            Outcome::Dead(reason) => Ending::Dead(reason.replace('\0', "")),
        }
    }
}

/// Counts the attempts that are a timer's own: not those which ended in a crash beside others.
fn own_attempts(row: &ClaimedRow) -> u32 {
    row.attempts.saturating_sub(row.crashes)
}

/// A timer's place among those in flight, and a suspect's among suspects.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// A claimed timer, and its places.
type Work = (ClaimedRow, Permits);

/// The keys whose handlers run, and what waits for each: a key that was scheduled again while its
/// handler ran.
#[derive(Default)]
struct PerKey {
    /// Locked for a look-up.
    running: Mutex<HashMap<String, VecDeque<Work>>>,
}

impl PerKey {
    /// Begins with a timer, unless one of its key is running: then it waits.
    fn begin(&self, work: Work) -> Option<Work> {
        let Some(key) = work.0.key.clone() else {
            return Some(work);
        };
        let mut running = lock(&self.running);
        if let Some(waiting) = running.get_mut(&key) {
            waiting.push_back(work);
            return None;
        }
        running.insert(key, VecDeque::new());
        Some(work)
    }

    /// Ends with a timer, and returns the next one of its key.
    fn end(&self, key: Option<&str>) -> Option<Work> {
        let key = key?;
        let mut running = lock(&self.running);
        let next = running.get_mut(key).and_then(VecDeque::pop_front);
        if next.is_none() {
            running.remove(key);
        }
        next
    }
}

pub(crate) type Queue = Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Ended>>>;

/// When it is looked again whether a row is still locked, or one that waits was cancelled.
pub(crate) const LOCKED: Duration = Duration::from_secs(1);

/// Acknowledges what comes out of the queue; `again` leads back into it, and does not keep it open.
pub(crate) async fn run_acker<S: Store>(
    node: Arc<Node<S>>,
    queue: Queue,
    again: mpsc::WeakUnboundedSender<Ended>,
) {
    loop {
        let mut ended = Vec::new();
        // Released before the store is asked: so the other acker has the next batch meanwhile.
        if queue.lock().await.recv_many(&mut ended, BATCH).await == 0 {
            return;
        }
        let mut locked = Vec::new();
        while !ended.is_empty() {
            let count = fitting(ended.iter().map(|(ack, _)| ack.ending.bytes()));
            locked.extend(acknowledge(&node, ended.drain(..count).collect()).await);
        }
        if !locked.is_empty() {
            let (node, again) = (Arc::clone(&node), again.clone());
            spawn(async move {
                node.sleep(LOCKED).await;
                if let Some(again) = again.upgrade() {
                    locked.into_iter().for_each(|ended| drop(again.send(ended)));
                }
            });
        }
    }
}

/// Acknowledges a batch, and returns what of it somebody has locked.
#[tracing::instrument(level = "debug", skip_all, fields(acks = ended.len()))]
async fn acknowledge<S: Store>(node: &Node<S>, ended: Vec<Ended>) -> Vec<Ended> {
    let acks: Vec<Ack> = ended.iter().map(|(ack, _)| ack.clone()).collect();
    let held = || acks.iter().any(|ack| node.slots.holds(&ack.claim));
    let call = async || match node.store.acknowledge(acks.clone()).await {
        Err(Error::Refused(_)) => node.store.acknowledge(escaped(&acks)).await,
        answer => answer,
    };
    let answer = insist(node, "a batch was not acknowledged", call, held).await;
    let locked = answer.as_deref().unwrap_or_default();
    let (locked, ended): (Vec<Ended>, _) = ended
        .into_iter()
        .partition(|(ack, _)| locked.contains(&ack.claim));
    let (acks, permits): (Vec<Ack>, Vec<_>) = ended.into_iter().unzip();
    for ack in &acks {
        node.slots.end_claim(&ack.claim);
    }
    node.window
        .ready
        .finish(acks.iter().map(|ack| &ack.claim.place));
    drop(permits);
    // Without an answer the next owner runs them again: at least once. That may be this node,
    // which passed over them as it loaded, since they were in its own hands.
    match answer {
        Some(_) => acks.iter().for_each(|ack| settle(node, ack)),
        None => acks.iter().for_each(|ack| node.note(ack.claim.place)),
    }
    locked
}

/// Returns the same, with reasons that a database of any encoding takes.
fn escaped(acks: &[Ack]) -> Vec<Ack> {
    let escape = |ack: &Ack| match &ack.ending {
        Ending::Dead(reason) => Ack {
            ending: Ending::Dead(reason.escape_default().to_string()),
            ..ack.clone()
        },
        _ => ack.clone(),
    };
    acks.iter().map(escape).collect()
}

fn settle<S: Store>(node: &Node<S>, ack: &Ack) {
    let mut counters = node.counters.lock();
    match ack.ending {
        Ending::Done | Ending::Again { .. } => counters.done += 1,
        Ending::Dead(_) => counters.dead += 1,
        Ending::Retry(_) => counters.retried += 1,
    }
    drop(counters);
    if let Ending::Retry(due) | Ending::Again { due, .. } = ack.ending {
        node.note(Place {
            due,
            ..ack.claim.place
        });
    }
}
