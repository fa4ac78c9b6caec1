//! Takes over claims that have run out.
//!
//! A timer may crash its process. The timers that were in flight at a crash are suspects: fewer and
//! fewer of them run together after each crash, until the culprit runs alone. A timer that has
//! crashed alone waits until the process has lived without it for a while. If the process does not
//! live that long, something else causes the crashes, and the timer is neither tried nor given up.
//! A suspect that has run that long without a crash is none any more.

use crate::node::batcher::BATCH;
use crate::node::keeper::SUSPECT;
use crate::node::runner::Runner;
use crate::node::{Node, Options};
use crate::store::{ALONE, Store};
use crate::sync::{JoinSet, lock};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many suspects run at once after their first crash. After a second crash a tenth of them run
/// at once, and after more crashes one.
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
            // In an outage no node could renew its claims: living nodes must do so first.
            let settled = *lock(&node.settled);
            let settles = settled.unwrap_or(now) + node.options.lease;
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

/// Waits for a place and a share, and takes all that are free besides.
async fn places<S>(
    node: &Node<S>,
    shares: &Arc<Semaphore>,
) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let mut share = Arc::clone(shares).acquire_owned().await.ok()?;
    let mut places = Arc::clone(&node.room).acquire_owned().await.ok()?;
    // Only this task takes shares: free ones stay free.
    let free = shares.available_permits() as u32;
    share.merge(Arc::clone(shares).try_acquire_many_owned(free).ok()?);
    node.more_places(&mut places, node.claims.of(BATCH).min(share.num_permits()));
    Some((places, share))
}

/// Takes over as many claims as there are places and shares for. Returns whether there are more.
async fn take_over<S: Store>(
    node: &Arc<Node<S>>,
    runner: &Arc<Runner<S>>,
    places: OwnedSemaphorePermit,
    mut shares: OwnedSemaphorePermit,
    lived: Duration,
    runs: &mut JoinSet<()>,
) -> bool {
    // The store divides the limit by ten and a hundred and rounds up: there must be enough shares
    // for one timer.
    let (most, part) = match shares.num_permits() {
        SHARES => (node.options.most_crashes(lived), SHARES),
        free if free >= SHARES / 10 => (1, free / 10 * 10),
        free => (0, free),
    };
    let limit = places.num_permits().min(part) as u32;
    let asked = node.timer.now();
    let answer = node.store.take_over(most, limit, node.options.lease).await;
    let in_time = node.judge(asked, &answer, &node.claims);
    node.note_answer(in_time);
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

/// Returns how many shares a suspect takes. `crashes` includes the last one.
fn share(crashes: u32) -> usize {
    match crashes {
        0 | 1 => 1,
        2 => SHARES / 10,
        _ => SHARES,
    }
}

impl Options {
    /// Returns the most crashes of a timer that a process may take over after it has `lived` so
    /// long. A timer that has crashed alone waits for twelve leases, and after each further crash
    /// twice as long, up to 192 leases.
    fn most_crashes(&self, lived: Duration) -> u32 {
        let waits = (0..5).map(|n| self.lease.saturating_mul(SUSPECT << n));
        match waits.filter(|wait| *wait <= lived).count() as u32 {
            5 => u32::MAX,
            passed => ALONE - 1 + passed,
        }
    }
}
