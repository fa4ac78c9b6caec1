//! Looks for the first row, also below the cursor of the claims, where rows lie that were locked,
//! that were committed late, or that no node was told of; and for claims that have run out.
//!
//! While nothing is due, looks are all that a node asks: they cost the store a quarter of a claim.

use crate::node::Node;
use crate::store::Store;
use std::sync::Arc;
use std::time::Duration;

/// How often a node looks: before its next claim would be made for nothing.
const EVERY: Duration = Duration::from_millis(900);
/// What part of the time a node looks, at most: over millions of dead entries of an index that
/// nobody may remove yet, a look takes long.
const PART: u32 = 20;

pub(crate) async fn run<S: Store>(node: Arc<Node<S>>) {
    let mut former = Duration::ZERO;
    loop {
        let asked = node.timer.now();
        let cursor = node.agenda.cursor();
        let answer = node.store.look().await;
        node.note_answer(answer.is_ok());
        match answer {
            Ok(look) => {
                let is_swept = look.first.is_some_and(|first| first < cursor);
                node.count().swept += u64::from(is_swept);
                node.agenda.note_look(look.now);
                if let Some(place) = look.first {
                    // Other nodes see what is yet to come as well.
                    node.agenda.note(None, place, !is_swept);
                }
                if look.left {
                    node.left.notify_one();
                }
            }
            Err(error) => node.failed(&error, "a look failed"),
        }
        let took = node.timer.now().saturating_duration_since(asked);
        // One slow look alone, as at a failover, must not blind the node; nor must many for longer
        // than a lease, which is what timers of the dead wait for anyway.
        let pause = (took.min(former) * PART).min(node.options.lease);
        former = took;
        if !node.pause(pause.max(EVERY)).await {
            return;
        }
    }
}
