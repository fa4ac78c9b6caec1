//! The claims of this node, and their renewal.

use crate::entry::Error;
use crate::node::batcher::BATCH;
use crate::node::{Node, Share};
use crate::store::{Claimed, Name, Renewal, Store};
use crate::sync::{HashMap, Mutex, lock};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::sync::OwnedSemaphorePermit;

/// The longest term of a claim, unless the lease is longer. Each renewal doubles the term, so that
/// a long handler costs few renewals.
const LONGEST_TERM: Duration = Duration::from_secs(60);

/// Until when a claim lasts by this node's clock. That is no later than by the store's clock, as it
/// is counted from before the call, unless one of the clocks leaps.
pub(crate) struct Lease {
    timer: Timer,
    /// Locked to read or set it.
    until: Mutex<Instant>,
}

impl Lease {
    pub(crate) fn has_ended(&self) -> bool {
        self.timer.now() >= *lock(&self.until)
    }

    /// Ends the claim, and returns whether it had run out.
    fn end(&self) -> bool {
        let now = self.timer.now();
        let mut until = lock(&self.until);
        let ran_out = now >= *until;
        *until = now;
        ran_out
    }
}

/// The claims of this node that are not acknowledged.
pub(crate) struct Held {
    timer: Timer,
    /// Locked for one entry; to go over all of them once in an eighth of a lease, or eight times as
    /// often while rows are locked.
    claims: Mutex<HashMap<Name, Claim>>,
}

struct Claim {
    token: i64,
    term: Duration,
    lease: Arc<Lease>,
    /// The claim's share of the room for suspects: see [`taker`](crate::node::taker). Given back if
    /// the timer still runs at `suspect_until`.
    share: Option<OwnedSemaphorePermit>,
    suspect_until: Instant,
}

/// After how many leases a running timer that was in crashes is no suspect any more. A long handler
/// must not keep other timers of dead nodes waiting.
pub(crate) const SUSPECT: u32 = 12;

impl Held {
    pub(crate) fn new(timer: Timer) -> Self {
        Held {
            timer,
            claims: Mutex::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.claims).len()
    }

    /// Begins to renew a claim that was asked for at `asked`.
    pub(crate) fn begin(
        &self,
        row: &Claimed,
        asked: Instant,
        term: Duration,
        share: Option<OwnedSemaphorePermit>,
    ) -> Arc<Lease> {
        let lease = Arc::new(Lease {
            timer: self.timer.clone(),
            until: Mutex::new(asked + term),
        });
        let claim = Claim {
            token: row.token,
            term,
            lease: Arc::clone(&lease),
            share,
            suspect_until: asked + term * SUSPECT,
        };
        let former = lock(&self.claims).insert(row.name.clone(), claim);
        if let Some(former) = former {
            // The store has given the timer another token: the former claim is over.
            former.lease.end();
        }
        lease
    }

    /// Stops to renew a claim, and returns whether it had run out. `false` if a renewal has counted
    /// that already, or if this node has claimed the timer again.
    pub(crate) fn end(&self, name: &Name, token: i64) -> bool {
        let mut claims = lock(&self.claims);
        if claims.get(name).is_none_or(|claim| claim.token != token) {
            return false;
        }
        // What the handler has spawned may go on, and ask.
        let claim = claims.remove(name);
        claim.is_some_and(|claim| claim.lease.end())
    }

    /// Returns the renewals of all claims whose terms are half over.
    fn stale(&self) -> Vec<Renewal> {
        let now = self.timer.now();
        let claims = lock(&self.claims);
        let stale = claims.iter().filter_map(|(name, claim)| {
            let left = lock(&claim.lease.until).saturating_duration_since(now);
            (left <= claim.term / 2).then(|| Renewal {
                name: name.clone(),
                token: claim.token,
                // A lease longer than a minute keeps its length.
                term: claim.term.max(LONGEST_TERM.min(claim.term * 2)),
            })
        });
        stale.collect()
    }

    /// Notes the answer to a renewal that was asked for at `asked`. Returns whether the claim is
    /// lost.
    fn note(&self, renewal: &Renewal, renewed: bool, asked: Instant) -> bool {
        let mut claims = lock(&self.claims);
        let Some(claim) = claims.get_mut(&renewal.name) else {
            return false;
        };
        if claim.token != renewal.token {
            return false;
        }
        if renewed {
            if asked >= claim.suspect_until {
                claim.share = None;
            }
            claim.term = renewal.term;
            *lock(&claim.lease.until) = asked + renewal.term;
            return false;
        }
        // A claim that has not run out does not count as lost. Either its handler has acknowledged
        // the timer in a transaction, or the store's clock has leapt and another node has the
        // timer. `Due::is_lost` tells the handler from now on.
        let is_lost = claim.lease.end();
        claims.remove(&renewal.name);
        is_lost
    }
}

/// Renews claims until the node is dropped: a node that is being drained still runs handlers.
pub(crate) async fn run<S: Store>(node: Arc<Node<S>>) {
    let share = Share::default();
    // A claim is renewed when half of its term is left: after that three rounds may fail.
    let round = node.options.lease / 8;
    let mut pause = round;
    while node.timer.sleep(pause).await.is_ok() {
        pause = round;
        let mut stale = node.held.stale();
        while !stale.is_empty() {
            let count = stale.len().min(share.of(BATCH));
            let any_locked = renew(&node, stale.drain(..count).collect(), &share).await;
            if any_locked {
                // A key that many calls schedule is locked most of the time, each time for a
                // moment. Three tries alone might meet no moment without a lock.
                pause = round / 8;
            }
        }
    }
}

/// Renews a batch, and returns whether another transaction has some of its rows locked. If the
/// store refuses the batch, tries each half alone, so that one claim does not hold up the others.
async fn renew<S: Store>(node: &Node<S>, batch: Vec<Renewal>, share: &Share) -> bool {
    let mut any_locked = false;
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let asked = node.timer.now();
        let answer = node.store.renew(part.clone()).await;
        let in_time = node.judge(asked, &answer, share);
        node.note_answer(in_time);
        match answer {
            Ok(changed) => {
                for (renewal, answer) in part.iter().zip(changed.answers) {
                    let Some(renewed) = answer else {
                        any_locked = true;
                        continue;
                    };
                    let is_lost = node.held.note(renewal, renewed, asked);
                    node.count().claims_lost += u64::from(is_lost);
                }
            }
            Err(error) => {
                node.failed(&error, "claims were not renewed");
                if matches!(error, Error::Refused(_)) && part.len() > 1 {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                }
            }
        }
    }
    any_locked
}
