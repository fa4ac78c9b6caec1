//! Claims what is due, a batch at a time, and hands it to handlers.

use crate::node::Node;
use crate::node::batcher::BATCH;
use crate::node::runner::Runner;
use crate::store::{Claim, Place, Store};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long a claimer waits after the store has failed.
const PAUSE: Duration = Duration::from_millis(100);
/// When it is looked again whether a row is still locked.
const LOCKED: Duration = Duration::from_secs(1);

pub(crate) async fn run<S: Store>(
    node: Arc<Node<S>>,
    runner: Arc<Runner<S>>,
    room: Arc<Semaphore>,
) {
    loop {
        node.window.wait().await;
        // First room, then timers: what is taken can be claimed.
        let Ok(mut permits) = Arc::clone(&room).acquire_owned().await else { return };
        let more = room.available_permits().min(BATCH - 1);
        let more = u32::try_from(more).unwrap_or(0);
        if let Ok(more) = Arc::clone(&room).try_acquire_many_owned(more) {
            permits.merge(more);
        }
        let places = node.window.take(permits.num_permits());
        if places.is_empty() {
            continue;
        }
        for row in claim(&node, places).await {
            match permits.split(1) {
                Some(permit) => runner.begin((row, permit)),
                None => unreachable!("a permit was taken for each place"),
            }
        }
    }
}

#[tracing::instrument(level = "debug", skip_all, fields(places = places.len()))]
pub(crate) async fn claim<S: Store>(
    node: &Node<S>,
    places: Vec<Place>,
) -> Vec<crate::store::ClaimedRow> {
    let (claims, refused) = node.slots.begin_claims(places);
    node.window.finish(&refused); // Another node's by now, which finds them.
    let Some(owner) = node.slots.node().filter(|_| !claims.is_empty()) else {
        forget(node, &claims);
        return Vec::new();
    };
    let asked = node.timer.now();
    match node.store.claim(owner, claims.clone()).await {
        Ok(answer) => {
            let claimed: HashSet<Place> = answer.rows.iter().map(|row| row.claim.place).collect();
            let rest = claims.into_iter().filter(|claim| !claimed.contains(&claim.place));
            let rest: Vec<Claim> = rest.collect();
            forget(node, &rest);
            if rest.iter().any(|claim| claim.place.due > answer.now) {
                node.clock.observe(asked, answer.now);
            }
            // Not due yet by the store's clock: again in a moment.
            for claim in rest.iter().filter(|claim| claim.place.due > answer.now) {
                let wait = claim.place.due.since(answer.now).max(Duration::from_millis(1));
                node.window.file(claim.place, node.timer.now() + wait);
            }
            for place in answer.locked {
                node.window.file(place, node.timer.now() + LOCKED);
            }
            node.counters.claimed.add(answer.rows.len());
            tracing::trace!(rows = answer.rows.len(), rest = rest.len(), "claimed");
            answer.rows
        }
        Err(error) => {
            node.counters.errors.add(1);
            tracing::warn!(%error, "a batch was not claimed");
            forget(node, &claims);
            node.sleep(PAUSE).await;
            claims.iter().for_each(|claim| node.note(claim.place));
            Vec::new()
        }
    }
}

/// Ends claims that came to nothing.
fn forget<S>(node: &Node<S>, claims: &[Claim]) {
    node.window.finish(claims.iter().map(|claim| &claim.place));
    claims.iter().for_each(|claim| node.slots.end_claim(claim));
}
