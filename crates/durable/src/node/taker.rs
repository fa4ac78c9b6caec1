//! Takes claims over that have run out.
//!
//! Timers that were in flight as a process went down are taken over few at a time, so that the one
//! which brought it down is found, and the others leave. One that was alone in a crash waits until
//! the process has lived without it for a while. Where it does not live so long, the crashes are
//! not the timer's, and it is neither tried nor given up. One that has run for as long without a
//! crash is no suspect any more.

use crate::node::batcher::BATCH;
use crate::node::keeper::SUSPECT;
use crate::node::runner::Runner;
use crate::node::{Node, Options};
use crate::store::{ALONE, Store};
use crate::sync::{JoinSet, lock};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many run at once that were in no crash before; of those in one a tenth, and of those in
/// more one.
const SHARES: usize = 100;

/// Takes over until the node is drained, and waits for the handlers that it has called.
pub(crate) async fn run<S: Store>(node: Arc<Node<S>>, runner: Arc<Runner<S>>) {
    let begun = node.timer.now();
    let shares = Arc::new(Semaphore::new(SHARES));
    let mut runs = JoinSet::new();
    while node.unless_leaving(node.lapsed.notified()).await.is_some() {
        loop {
            while runs.try_join_next().is_some() {}
            let now = node.timer.now();
            // After an outage nobody could renew: those who live do so first.
            let settles = *lock(&node.settled) + node.options.lease;
            if now < settles {
                if node.pause(settles.saturating_duration_since(now)).await {
                    continue;
                }
                break;
            }
            let room = node.unless_leaving(places(&node, &shares)).await;
            let Some(Some((places, shares))) = room else {
                break;
            };
            let lived = now.saturating_duration_since(begun);
            let more = take_over(&node, &runner, places, shares, lived, &mut runs).await;
            if !more {
                break;
            }
        }
    }
    while runs.join_next().await.is_some() {}
}

/// Waits for a place and a share, and takes what more are free.
async fn places<S>(
    node: &Node<S>,
    shares: &Arc<Semaphore>,
) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let mut share = Arc::clone(shares).acquire_owned().await.ok()?;
    let mut places = Arc::clone(&node.room).acquire_owned().await.ok()?;
    // Only this task takes shares: what is free stays so.
    let free = shares.available_permits() as u32;
    share.merge(Arc::clone(shares).try_acquire_many_owned(free).ok()?);
    node.more_places(&mut places, node.claims.of(BATCH).min(share.num_permits()));
    Some((places, share))
}

/// Takes over as many as there are places and shares for; returns whether there are more.
async fn take_over<S: Store>(
    node: &Arc<Node<S>>,
    runner: &Arc<Runner<S>>,
    places: OwnedSemaphorePermit,
    mut shares: OwnedSemaphorePermit,
    lived: Duration,
    runs: &mut JoinSet<()>,
) -> bool {
    // The store takes a tenth, and a hundredth, rounded up: there must be shares for one.
    let (most, part) = match shares.num_permits() {
        SHARES => (node.options.most_crashes(lived), SHARES),
        free if free >= SHARES / 10 => (1, free / 10 * 10),
        free => (0, free),
    };
    let limit = places.num_permits().min(part) as u32;
    let asked = node.timer.now();
    let answer = node.store.take_over(most, limit, node.options.lease).await;
    let in_time = node.in_time(asked, &answer);
    node.note_answer(in_time);
    node.claims.note(in_time);
    match answer {
        Ok(claims) => {
            let more = claims.more && in_time;
            node.count().taken_over += claims.rows.len() as u64;
            node.note(claims.now, claims.next);
            runner.begin(
                claims,
                asked,
                places,
                |crashes| shares.split(share(crashes)),
                runs,
            );
            more
        }
        Err(error) => {
            node.failed(&error, "nothing was taken over");
            false
        }
    }
}

/// Returns the share of a timer in the room for suspects; `crashes` counts the last one too.
fn share(crashes: u32) -> usize {
    match crashes {
        0 | 1 => 1,
        2 => SHARES / 10,
        _ => SHARES,
    }
}

impl Options {
    /// Returns how many crashes a timer may have had for a process that has `lived` so long to take
    /// it over. A timer that crashed alone waits for twelve leases, and after each further crash
    /// twice as long, up to 192 leases.
    fn most_crashes(&self, lived: Duration) -> u32 {
        let waits = (0..5).map(|n| self.lease.saturating_mul(SUSPECT << n));
        match waits.filter(|wait| *wait <= lived).count() as u32 {
            5 => u32::MAX,
            passed => ALONE - 1 + passed,
        }
    }
}
