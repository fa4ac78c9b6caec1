//! Claims timers that were in flight as a process went down: few at a time, so that the one which
//! brought it down is found, and the others leave.
//!
//! One that was alone in a crash waits until the process has lived without it for a while. Where it
//! does not live so long, the crashes are not the timer's, and it is neither tried nor given up.

use crate::node::Node;
use crate::node::claimer::{claim, permits};
use crate::node::runner::Runner;
use crate::store::{ALONE, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How many run at once that were in one crash; of those in one more a tenth each time, which after
/// [`ALONE`] of them is one.
const ROOM: u32 = 10_u32.pow(ALONE - 1);

/// How often it is looked again whether the process has lived for long enough.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn run<S: Store>(
    node: Arc<Node<S>>,
    runner: Arc<Runner<S>>,
    room: Arc<Semaphore>,
) {
    let ward = Arc::new(Semaphore::new(ROOM as usize));
    loop {
        let first = node.window.ready.suspicion().await;
        let (crashes, own) = (first.crashes, first.attempts.saturating_sub(first.crashes));
        let alive = node.slots.held_for(node.timer.now());
        if crashes == ALONE && alive < node.options.quarantine(own) {
            if node.timer.sleep(LOOK).await.is_err() {
                return;
            }
            continue;
        }
        let share = 10_u32.pow(crashes.clamp(1, ALONE) - 1);
        let Some(mut shares) = permits(&ward, share, ROOM / share).await else { return };
        let count = shares.num_permits() as u32 / share;
        let Some(mut places) = permits(&room, 1, count).await else { return };
        if crashes == ALONE && own > 0 {
            tracing::warn!(id = first.place.id, own, "a timer is tried that was alone in crashes");
        }
        let suspects = node.window.ready.take_suspects(crashes, places.num_permits());
        for row in claim(&node, suspects, crashes).await {
            if let Some(place) = places.split(1) {
                runner.begin((row, (place, shares.split(share as usize))));
            }
        }
    }
}
