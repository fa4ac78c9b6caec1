//! Claims due timers, as many as there are places for, and calls their handlers at once.

use crate::node::batcher::BATCH;
use crate::node::runner::Runner;
use crate::node::{LAST_PAUSE, Node};
use crate::store::{Store, Want};
use crate::sync::JoinSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// How often a node claims at least, unless a look finds nothing that is due.
const ALWAYS: Duration = Duration::from_millis(1_250);
/// How long after the last claim the next one is made, unless more rows are due: timers of about
/// the same time are claimed together.
const GAP: Duration = Duration::from_millis(2);
/// How many bytes of payloads are claimed at once. While a node reads a long answer slowly, its
/// rows are locked and have no lease yet.
pub(crate) const CLAIM_BYTES: usize = 128 << 10;

/// How many rows that pauses hold a claim puts off besides: as many as become due between two
/// claims. Other timers must not wait for more: looks put off the rest.
const HOLDS: u32 = 100;

/// Claims until the node is drained, and waits for the handlers that it has called.
pub(crate) async fn run<S: Store>(node: Arc<Node<S>>, runner: Arc<Runner<S>>) {
    let mut runs = JoinSet::new();
    // When the last claim was made.
    let mut last = None;
    // Whether more rows were due.
    let mut more = false;
    // A claim itself is not interrupted: nothing would run its rows before a takeover.
    while let Some(Some(places)) = node.unless_leaving(wait(&node, last, more)).await {
        more = claim(&node, &runner, places, &mut runs).await;
        last = Some(node.timer.now());
        while runs.try_join_next().is_some() {}
    }
    while runs.join_next().await.is_some() {}
}

/// Waits until a claim is to be made. `None`: the timer was shut down.
async fn wait_until_due<S>(node: &Node<S>, last: Instant) -> Option<()> {
    loop {
        // A look that found nothing due replaces a claim.
        let always = last.max(node.agenda.looked()) + ALWAYS;
        let next = node.agenda.next().unwrap_or(always);
        let at = next.min(always).max(last + GAP);
        if at <= node.timer.now() {
            return Some(());
        }
        tokio::select! {
            biased; // Not at random: a model must be able to repeat a schedule.
            slept = node.timer.sleep(at) => drop(slept.ok()?),
            () = node.agenda.stirred.notified() => {}
        }
    }
}

/// Waits until it is time, and then for room. `None`: the timer was shut down.
async fn wait<S>(
    node: &Node<S>,
    last: Option<Instant>,
    more: bool,
) -> Option<OwnedSemaphorePermit> {
    let room = || Arc::clone(&node.room);
    if more {
        // While more rows are due, one claim of many rows costs the store less than many claims of
        // a few rows: this waits up to 8 ms for a quarter of the places.
        let share = (node.options.max_in_flight / 4).clamp(1, BATCH as u32);
        let many = room().acquire_many_owned(share);
        if let Ok(Ok(places)) = node.timer.timeout(4 * GAP, many).await {
            return Some(places);
        }
    } else if let Some(last) = last {
        wait_until_due(node, last).await?;
    }
    room().acquire_owned().await.ok()
}

/// Claims, and returns whether more rows are due.
async fn claim<S: Store>(
    node: &Arc<Node<S>>,
    runner: &Arc<Runner<S>>,
    mut places: OwnedSemaphorePermit,
    runs: &mut JoinSet<()>,
) -> bool {
    let limit = node.claims.of(BATCH);
    node.more_places(&mut places, limit);
    let (from, was_due) = node.agenda.begin();
    let want = Want {
        from,
        limit: places.num_permits().min(limit) as u32,
        holds: HOLDS,
        bytes: node.claims.of(CLAIM_BYTES),
        lease: node.options.lease,
    };
    let asked = node.timer.now();
    let answer = node.store.claim(want).await;
    let in_time = node.judge(asked, &answer, &node.claims);
    node.note_answer(in_time);
    match answer {
        Ok(claims) => {
            let more = claims.more;
            node.agenda.end(&claims, was_due);
            runner.begin(claims, asked, places, |_| None, runs);
            more
        }
        Err(error) => {
            node.failed(&error, "nothing was claimed");
            // During the pause, takeovers may use the places, and a drain may end.
            drop(places);
            node.pause(LAST_PAUSE / 4).await;
            // `begin` has taken the noted rows off the agenda. Their first place is noted again.
            node.agenda.note(None, from, false);
            false
        }
    }
}

/// Notes the rows that other nodes tell of.
pub(crate) async fn listen<S: Store>(node: Arc<Node<S>>) {
    loop {
        match node.store.told().await {
            Some(place) => node.agenda.note(None, place, true),
            None if node.pause(ALWAYS).await => {}
            None => return,
        }
    }
}
