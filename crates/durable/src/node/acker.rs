//! Acknowledges what handlers have ended, a batch at a time.

use crate::node::Node;
use crate::node::batcher::{BATCH, insist};
use crate::node::runner::Ended;
use crate::store::{Ack, Ending, Place, Store};
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc};

pub(crate) type Queue = Arc<Mutex<mpsc::UnboundedReceiver<Ended>>>;

pub(crate) async fn run<S: Store>(node: Arc<Node<S>>, queue: Queue) {
    loop {
        let mut ended = Vec::new();
        // Released before the store is asked: so the other acker has the next batch meanwhile.
        if queue.lock().await.recv_many(&mut ended, BATCH).await == 0 {
            return;
        }
        let (acks, permits): (Vec<Ack>, Vec<_>) = ended.into_iter().unzip();
        acknowledge(&node, acks, permits).await;
    }
}

#[tracing::instrument(level = "debug", skip_all, fields(acks = acks.len()))]
async fn acknowledge<S: Store>(node: &Node<S>, acks: Vec<Ack>, permits: Vec<OwnedSemaphorePermit>) {
    let held = || acks.iter().any(|ack| node.slots.holds(&ack.claim));
    let call = || node.store.acknowledge(acks.clone());
    let answer = insist(&node.timer, &node.counters.errors, call, held).await;
    for ack in &acks {
        node.slots.end_claim(&ack.claim);
    }
    node.window.finish(acks.iter().map(|ack| &ack.claim.place));
    drop(permits);
    // Without an answer the next owner runs them again: at least once. That may be this node,
    // which passed over them as it loaded, since they were in its own hands.
    match answer {
        Some(()) => acks.iter().for_each(|ack| settle(node, ack)),
        None => acks.iter().for_each(|ack| node.note(ack.claim.place)),
    }
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
