//! Looks for the first row, also below the cursor of the claims, where rows lie that were locked,
//! that were committed late, or that no node was told of; and for claims that have run out. Puts
//! off what claims have left of the timers that pauses hold.
//!
//! While nothing is due, looks are all that a node asks: they cost the store a quarter of a claim.

use crate::node::Node;
use crate::node::batcher::BATCH;
use crate::store::{Place, Store, Want};
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
        let mut held = None;
        let answer = node.store.look().await;
        // A slow look is no sign of an outage: it may read millions of dead entries.
        node.note_answer(answer.is_ok());
        match answer {
            Ok(look) => {
                node.agenda.note_look(look.now);
                held = look.first.filter(|_| look.held);
                if let Some(place) = look.first.filter(|_| !look.held) {
                    // No claim would have come there again.
                    let is_swept = place < cursor;
                    node.count().swept += u64::from(is_swept);
                    // Other nodes see what is yet to come as well.
                    node.agenda.note(None, place, !is_swept);
                }
                if look.lapsed {
                    node.lapsed.notify_one();
                }
            }
            Err(error) => node.failed(&error, "a look failed"),
        }
        let took = node.timer.now().saturating_duration_since(asked);
        // One slow look alone, as at a failover, must not blind the node; nor must many for longer
        // than a lease, which is what timers of the dead wait for anyway.
        let pause = (took.min(former) * PART).min(node.options.lease);
        former = took;
        let mut pause = pause.max(EVERY);
        if let Some(first) = held {
            let has_more = put_off(&node, first).await;
            if has_more {
                pause = Duration::ZERO;
            } else {
                // What could not be put off must hide no other row. Before, a claim would begin
                // with all that is held, each time.
                node.agenda.note(None, first, false);
            }
        }
        if !node.pause(pause).await {
            return;
        }
    }
}

/// Puts off what pauses hold and claims have passed over, for as long as the next look can wait;
/// returns whether there is more.
async fn put_off<S: Store>(node: &Node<S>, first: Place) -> bool {
    let begun = node.timer.now();
    let mut from = first;
    while node.timer.now().saturating_duration_since(begun) < EVERY {
        let want = Want {
            from,
            limit: 0,
            holds: BATCH as u32,
            bytes: 0,
            lease: node.options.lease,
        };
        match node.store.claim(want).await {
            Ok(claims) => {
                node.note(claims.now, claims.next);
                if !claims.more {
                    return false;
                }
                from = claims.from;
            }
            Err(error) => {
                node.failed(&error, "nothing was put off");
                return false;
            }
        }
    }
    true
}
