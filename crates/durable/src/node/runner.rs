//! Runs handlers on what was claimed.

use crate::due::{Due, Outcome, Token};
use crate::entry::{When, check_payload};
use crate::node::Node;
use crate::node::per_key::{PerKey, Permits, Work};
use crate::store::{Ack, ClaimedRow, Ending, Store};
use crate::sync::spawn;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The user's handler, whatever its future.
pub(crate) type Handler =
    Box<dyn Fn(Due) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// What is to be acknowledged. The permits are given back when it was.
pub(crate) type Ended = (Ack, Permits);

pub(crate) struct Runner<S> {
    node: Arc<Node<S>>,
    handler: Handler,
    per_key: PerKey,
    /// Bounded by the permits.
    ended: mpsc::UnboundedSender<Ended>,
}

impl<S: Store> Runner<S> {
    pub(crate) fn new(
        node: Arc<Node<S>>,
        handler: Handler,
        ended: mpsc::UnboundedSender<Ended>,
    ) -> Self {
        Runner { node, handler, per_key: PerKey::default(), ended }
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
        let due = self.due(row);
        self.node.counters.lateness.record(due.late_by);
        let runner = Arc::clone(self);
        // A task of its own contains the panic, of the handler and of its future.
        let outcome = spawn(async move { (runner.handler)(due).await }).await;
        let outcome = outcome.unwrap_or_else(|error| {
            self.node.counters.panicked.add(1);
            tracing::error!(%error, "a handler panicked");
            Outcome::RetryAt(When::After(self.node.options.backoff(attempts)))
        });
        self.ending(outcome, attempts)
    }

    fn due(&self, row: ClaimedRow) -> Due {
        let ClaimedRow { claim, key, attempts: attempt, payload, .. } = row;
        let place = claim.place;
        let late_by = self.node.clock.earliest().since(place.due);
        let partition = place.slot - self.node.store.slot(0);
        let (token, slot) = (Token { partition, epoch: claim.epoch }, place.slot);
        Due { key, payload, id: place.id, at: place.due, attempt, late_by, token, slot }
    }

    fn ending(&self, outcome: Outcome, attempts: u32) -> Ending {
        let now = || self.node.clock.now();
        match outcome {
            Outcome::Done => Ending::Done,
            Outcome::RetryAt(_) if attempts >= self.node.options.max_attempts => {
                Ending::Dead(format!("{attempts} attempts failed"))
            }
            Outcome::RetryAt(when) => Ending::Retry(when.resolve(now())),
            Outcome::Again(when, payload) => match check_payload(&payload) {
                Ok(()) => Ending::Again(when.resolve(now()), payload),
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
