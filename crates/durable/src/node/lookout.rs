//! Looks for the first free row, and for claims that have run out. Unlike claims, looks also find
//! rows before the cursor: rows that were locked or committed late, or that no node was told of.
//! Also puts off the held rows that claims have passed over.
//!
//! While nothing is due, a node makes no other calls. A look costs the store a quarter of a claim.

use crate::node::Node;
use crate::node::batcher::BATCH;
use crate::store::{Place, Store, Want};
use std::sync::Arc;
use std::time::Duration;

/// How often a node looks: more often than [`claimer`](crate::node::claimer) claims for nothing, so
/// that looks replace these claims.
const EVERY: Duration = Duration::from_secs(1);
/// The largest part of the time in which a node looks, as a divisor. A look takes long over
/// millions of dead entries in an index, which cannot be removed while a snapshot is held.
const PART: u32 = 20;

pub(crate) async fn run<S: Store>(node: Arc<Node<S>>) {
    let mut former = Duration::ZERO;
    loop {
        let asked = node.timer.now();
        let cursor = node.agenda.cursor();
        let mut held = None;
        let answer = node.store.look().await;
        // Only failures count: a slow look is no sign of an outage.
        node.note_answer(answer.is_ok());
        match answer {
            Ok(look) => {
                node.agenda.note_look(look.now);
                held = look.first.filter(|_| look.held);
                if let Some(place) = look.first.filter(|_| !look.held) {
                    // Claims begin after this row: only this look finds it.
                    let is_swept = place < cursor;
                    node.count().swept += u64::from(is_swept);
                    // Other nodes know of a row after their cursors as well.
                    node.agenda.note(None, place, !is_swept);
                }
                if look.lapsed {
                    node.lapsed.notify_one();
                }
            }
            Err(error) => node.failed(&error, "a look failed"),
        }
        let took = node.timer.now().saturating_duration_since(asked);
        // The shorter one of two looks counts: a single slow look, as at a failover, causes no long
        // pause. At most a lease, which timers of dead nodes wait for anyway.
        let pause = (took.min(former) * PART).min(node.options.lease);
        former = took;
        let mut pause = pause.max(EVERY);
        if let Some(first) = held {
            let has_more = put_off(&node, first).await;
            if has_more {
                pause = Duration::ZERO;
            } else {
                // Other rows may lie behind a row that could not be put off. Not noted before: each
                // claim would begin with all held rows.
                node.agenda.note(None, first, false);
            }
        }
        if !node.pause(pause).await {
            return;
        }
    }
}

/// Puts off rows that pauses hold and that claims have passed over, until the next look is due.
/// Returns whether there may be more of them.
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
