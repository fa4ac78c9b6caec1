//! A node among others: its lease, its fair share of the slots, and how it goes.

use crate::node::batcher::insist;
use crate::node::{Node, draw};
use crate::store::{NodeId, Store};
use std::sync::Arc;
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// How many slots are given up in one round: the others go on meanwhile.
const HANDED_OVER: usize = 64;

/// What the leases' watchdog calls: it must not wait, so it hands renewals on.
struct Watchdog {
    renewals: mpsc::UnboundedSender<Renewal<NodeId>>,
}

impl LeaseStore<NodeId> for Watchdog {
    fn renew(&self, batch: Vec<Renewal<NodeId>>) {
        for renewal in batch {
            let _ = self.renewals.send(renewal); // What is dropped has failed.
        }
    }

    /// Does nothing: the node finds out from the lease itself, whose clock is exact.
    fn lost(&self, _: NodeId) {}
}

/// Renews by a task that does nothing else: no load of a window may keep it.
async fn renew<S: Store>(
    node: Arc<Node<S>>,
    mut renewals: mpsc::UnboundedReceiver<Renewal<NodeId>>,
) {
    while let Some(renewal) = renewals.recv().await {
        match node.store.renew(*renewal.key(), node.options.lease).await {
            Ok(true) => renewal.renewed(),
            Ok(false) => renewal.gone(),
            Err(error) => {
                node.failed(&error, "the lease was not renewed");
                renewal.failed();
            }
        }
    }
}

/// Joins, and joins again as another node whenever the lease was lost, until it has to leave.
pub(crate) async fn run<S: Store>(node: Arc<Node<S>>, mut leave: watch::Receiver<bool>) {
    let (renewals, queue) = mpsc::unbounded_channel();
    // Ends with this task, even if that is aborted: the two would keep the node forever.
    let mut renewing = JoinSet::new();
    renewing.spawn(renew(Arc::clone(&node), queue));
    let terms = LeaseTerms::new(node.options.lease);
    let leases = Leases::new(&node.timer, terms, Watchdog { renewals });
    while !*leave.borrow() {
        let id = NodeId(draw());
        let asked = node.timer.now();
        if let Err(error) = node.store.join(id, node.options.lease).await {
            node.failed(&error, "the node could not join");
            if node.timer.sleep(node.options.lease / 6).await.is_err() {
                break;
            }
            continue;
        }
        let Ok(lease) = leases.hold_since(id, asked) else { break };
        node.slots.begin(lease, asked);
        rounds(&node, id, &mut leave).await;
        if !node.slots.end() {
            node.counters.leases_lost.add(1);
            tracing::warn!("the lease was lost");
        }
    }
}

/// Keeps the node's share of the slots, until its lease is lost or it has left.
async fn rounds<S: Store>(node: &Node<S>, id: NodeId, leave: &mut watch::Receiver<bool>) {
    while node.slots.node() == Some(id) {
        let leaving = *leave.borrow();
        match round(node, id, leaving).await {
            Ok(true) => {
                let held = || node.slots.node() == Some(id);
                let go = || node.store.leave(id);
                insist(node, "the node could not leave", go, held).await;
                return;
            }
            Ok(false) => {}
            Err(error) => {
                node.failed(&error, "the slots could not be looked at");
            }
        }
        // A drain is soon done.
        let pause = if leaving { node.options.lease / 100 } else { node.options.lease / 6 };
        tokio::select! {
            rest = node.timer.sleep(pause) => if rest.is_err() { return },
            // Fails when the node is dropped, which ends this task.
            _ = leave.changed(), if !leaving => {}
        }
    }
}

/// Looks once at who owns what; returns whether the node has left.
pub(crate) async fn round<S: Store>(
    node: &Node<S>,
    id: NodeId,
    leaving: bool,
) -> Result<bool, crate::entry::Error> {
    let survey = node.store.survey(id).await?;
    node.slots.reconcile(&survey.owned);
    let owned = u32::try_from(survey.owned.len()).unwrap_or(u32::MAX);
    let share = if leaving { 0 } else { survey.slots.div_ceil(survey.live.max(1)) };
    if owned < share && survey.free > 0 {
        let taken = node.store.take(id, share - owned).await?;
        let all = [survey.owned, taken].concat();
        node.slots.reconcile(&all);
    }
    let at_most = if leaving { usize::MAX } else { HANDED_OVER };
    node.slots.leave(share as usize, at_most);
    let left = node.slots.take_left();
    if !left.is_empty() {
        node.store.release(id, left).await?;
    }
    Ok(leaving && node.slots.len() == 0)
}
