//! Claims what is due, a batch at a time, and hands it to handlers.
//!
//! Timers that were in flight as a process went down are claimed few at a time, so that the one
//! which brought it down is found, and the others leave. One that was alone in a crash waits until
//! the process has lived without it for a while. Where it does not live so long, the crashes are
//! not the timer's, and it is neither tried nor given up.

use crate::node::Node;
use crate::node::batcher::BATCH;
use crate::node::runner::{LOCKED, Runner};
use crate::store::{ALONE, Claim, ClaimedRow, Place, Store};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a claimer waits after the store has failed.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) async fn run<S: Store>(
    node: Arc<Node<S>>,
    runner: Arc<Runner<S>>,
    room: Arc<Semaphore>,
) {
    loop {
        node.window.wait().await;
        // First room, then timers: what is taken can be claimed.
        let Some(mut permits) = permits(&room, 1, BATCH as u32).await else {
            return;
        };
        let places = node.window.take(permits.num_permits());
        if places.is_empty() {
            continue;
        }
        for row in claim(&node, places, 0).await {
            match permits.split(1) {
                Some(permit) => runner.begin((row, (permit, None))),
                None => unreachable!("a permit was taken for each place"),
            }
        }
    }
}

/// Waits for one share of a room, and takes what more are free, up to `at_most` in all. `None` when
/// the room is closed.
async fn permits(room: &Arc<Semaphore>, share: u32, at_most: u32) -> Option<OwnedSemaphorePermit> {
    let mut permits = Arc::clone(room).acquire_many_owned(share).await.ok()?;
    let free = u32::try_from(room.available_permits()).unwrap_or(u32::MAX) / share;
    if let Ok(more) = Arc::clone(room).try_acquire_many_owned(share * free.min(at_most - 1)) {
        permits.merge(more);
    }
    Some(permits)
}

/// Claims what lies at these places and was in no more than so many crashes.
#[tracing::instrument(level = "debug", skip_all, fields(places = places.len()))]
pub(crate) async fn claim<S: Store>(
    node: &Node<S>,
    places: Vec<Place>,
    crashes: u32,
) -> Vec<ClaimedRow> {
    let (claims, refused) = node.slots.begin_claims(places);
    node.window.ready.finish(&refused); // Another node's by now, which finds them.
    let Some(owner) = node.slots.node().filter(|_| !claims.is_empty()) else {
        forget(node, &claims);
        return Vec::new();
    };
    let asked = node.timer.now();
    match node.store.claim(owner, claims.clone(), crashes).await {
        Ok(answer) => {
            let claimed: HashSet<Place> = answer.rows.iter().map(|row| row.claim.place).collect();
            let rest = claims
                .into_iter()
                .filter(|claim| !claimed.contains(&claim.place));
            let suspects: HashSet<Place> = answer.suspects.iter().map(|it| it.place).collect();
            let (wait, rest): (Vec<Claim>, Vec<Claim>) =
                rest.partition(|claim| suspects.contains(&claim.place));
            wait.iter().for_each(|claim| node.slots.end_claim(claim));
            node.window.ready.suspect(answer.suspects);
            forget(node, &rest);
            if rest.iter().any(|claim| claim.place.due > answer.now) {
                node.clock.observe(asked, answer.now);
            }
            // Not due yet by the store's clock: again in a moment.
            for claim in rest.iter().filter(|claim| claim.place.due > answer.now) {
                let wait = claim
                    .place
                    .due
                    .since(answer.now)
                    .max(Duration::from_millis(1));
                node.window.file(claim.place, node.timer.now() + wait);
            }
            answer.held.into_iter().for_each(|place| node.note(place));
            for place in answer.more {
                node.window.file(place, node.timer.now());
            }
            for place in answer.locked {
                node.window.file(place, node.timer.now() + LOCKED);
            }
            node.counters.lock().claimed += answer.rows.len() as u64;
            tracing::trace!(rows = answer.rows.len(), rest = rest.len(), "claimed");
            answer.rows
        }
        Err(error) => {
            node.failed(&error, "a batch was not claimed");
            forget(node, &claims);
            node.sleep(PAUSE).await;
            claims.iter().for_each(|claim| node.note(claim.place));
            Vec::new()
        }
    }
}

/// Ends claims that came to nothing.
fn forget<S>(node: &Node<S>, claims: &[Claim]) {
    node.window
        .ready
        .finish(claims.iter().map(|claim| &claim.place));
    claims.iter().for_each(|claim| node.slots.end_claim(claim));
}

/// How many run at once that were in one crash; of those in one more a tenth each time, which after
/// [`ALONE`] of them is one.
const ROOM: u32 = 10_u32.pow(ALONE - 1);

/// How often it is looked again whether the process has lived for long enough.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn run_suspects<S: Store>(
    node: Arc<Node<S>>,
    runner: Arc<Runner<S>>,
    room: Arc<Semaphore>,
) {
    let ward = Arc::new(Semaphore::new(ROOM as usize));
    let mut looked = node.timer.now();
    loop {
        let first = node.window.ready.suspicion().await;
        let (crashes, own) = (first.crashes, first.attempts.saturating_sub(first.crashes));
        let alive = node.slots.held_for(node.timer.now());
        let waits = crashes == ALONE && alive < node.options.quarantine(own);
        if waits {
            if node.timer.sleep(LOOK).await.is_err() {
                return;
            }
            if node.timer.now() < looked + LOCKED {
                continue;
            }
            looked = node.timer.now();
        }
        let share = 10_u32.pow(crashes.clamp(1, ALONE) - 1);
        let Some(mut shares) = permits(&ward, share, ROOM / share).await else {
            return;
        };
        let count = if waits {
            BATCH as u32
        } else {
            shares.num_permits() as u32 / share
        };
        let Some(mut places) = permits(&room, 1, count).await else {
            return;
        };
        if crashes == ALONE && own > 0 && !waits {
            tracing::warn!(
                id = first.place.id,
                own,
                "a timer is tried that was alone in crashes"
            );
        }
        // Of those that wait none is claimed, but who was cancelled or moved waits no more.
        let most = if waits { 0 } else { crashes };
        let suspects = node
            .window
            .ready
            .take_suspects(crashes, places.num_permits());
        for row in claim(&node, suspects, most).await {
            if let Some(place) = places.split(1) {
                runner.begin((row, (place, shares.split(share as usize))));
            }
        }
    }
}
