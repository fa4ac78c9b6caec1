//! Acknowledges what handlers have ended, a batch at a time.

use crate::node::Node;
use crate::node::batcher::{BATCH, insist};
use crate::node::runner::Ended;
use crate::store::{Ack, Ending, Place, Store};
use crate::sync::spawn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};

pub(crate) type Queue = Arc<Mutex<mpsc::UnboundedReceiver<Ended>>>;

/// When it is looked again whether a row is still locked.
const LOCKED: Duration = Duration::from_secs(1);

/// Acknowledges what comes out of the queue; `again` leads back into it, and does not keep it open.
pub(crate) async fn run<S: Store>(
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
        let locked = acknowledge(&node, ended).await;
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
    let call = || node.store.acknowledge(acks.clone());
    let answer = insist(&node.timer, &node.counters.errors, call, held).await;
    let locked = answer.as_deref().unwrap_or_default();
    let (locked, ended): (Vec<Ended>, _) =
        ended.into_iter().partition(|(ack, _)| locked.contains(&ack.claim));
    let (acks, permits): (Vec<Ack>, Vec<_>) = ended.into_iter().unzip();
    for ack in &acks {
        node.slots.end_claim(&ack.claim);
    }
    node.window.ready.finish(acks.iter().map(|ack| &ack.claim.place));
    drop(permits);
    // Without an answer the next owner runs them again: at least once. That may be this node,
    // which passed over them as it loaded, since they were in its own hands.
    match answer {
        Some(_) => acks.iter().for_each(|ack| settle(node, ack)),
        None => acks.iter().for_each(|ack| node.note(ack.claim.place)),
    }
    locked
}

fn settle<S: Store>(node: &Node<S>, ack: &Ack) {
    let counters = &node.counters;
    let due = match ack.ending {
        Ending::Done => return counters.done.add(1),
        Ending::Dead(_) => return counters.dead.add(1),
        Ending::Retry(due) => {
            counters.retried.add(1);
            due
        }
        Ending::Again(due, _) => {
            counters.done.add(1);
            due
        }
    };
    node.note(Place { due, ..ack.claim.place });
}
