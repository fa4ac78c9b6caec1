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

/// How long a claim lasts at most, unless the lease is longer. Each renewal doubles the term, so
/// that a long handler costs few renewals.
const LONGEST_TERM: Duration = Duration::from_secs(60);

/// Until when a claim lasts, by this node's clock: no later than by the store's, unless one of them
/// leaps.
pub(crate) struct Lease {
    timer: Timer,
    /// Locked for a look.
    until: Mutex<Instant>,
}

impl Lease {
    pub(crate) fn has_ended(&self) -> bool {
        self.timer.now() >= *lock(&self.until)
    }
}

/// What this node has claimed and not acknowledged.
pub(crate) struct Held {
    timer: Timer,
    /// Locked for a look. For a look at all once in an eighth of a lease, or eight times as often
    /// while rows are locked.
    claims: Mutex<HashMap<Name, Claim>>,
}

struct Claim {
    token: i64,
    term: Duration,
    lease: Arc<Lease>,
    /// Whether it took the place of a claim that had run out. Otherwise that one's handler has
    /// acknowledged its timer in a transaction, and goes on.
    follows_lapsed: bool,
    /// Its share of the room for suspects: see [`taker`](crate::node::taker). Given back once the
    /// process has lived with the timer until then.
    share: Option<OwnedSemaphorePermit>,
    suspect_until: Instant,
}

/// For how many leases a process lives with a timer that was in crashes until the timer is no
/// suspect any more: a long handler must not keep the timers of other dead nodes waiting.
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

    /// Begins to hold a claim that was asked for then.
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
        let mut claims = lock(&self.claims);
        let former = claims.get(&row.name);
        let claim = Claim {
            token: row.token,
            term,
            lease: Arc::clone(&lease),
            follows_lapsed: former.is_some_and(|former| former.lease.has_ended()),
            share,
            suspect_until: asked + term * SUSPECT,
        };
        if let Some(former) = former {
            // The store says that it is over.
            *lock(&former.lease.until) = asked;
        }
        claims.insert(row.name.clone(), claim);
        lease
    }

    /// Stops holding a claim. Returns whether it had run out, unless a renewal has counted that.
    pub(crate) fn end(&self, name: &Name, token: i64) -> bool {
        let mut claims = lock(&self.claims);
        match claims.get(name) {
            Some(claim) if claim.token == token => {
                let ended = claim.lease.has_ended();
                claims.remove(name);
                ended
            }
            Some(later) => later.follows_lapsed,
            // A renewal has removed this claim, and counted it if it was lost.
            None => false,
        }
    }

    /// Returns what is to be renewed: claims whose terms are half over.
    fn stale(&self) -> Vec<Renewal> {
        let now = self.timer.now();
        let claims = lock(&self.claims);
        let stale = claims.iter().filter_map(|(name, claim)| {
            let left = lock(&claim.lease.until).saturating_duration_since(now);
            (left <= claim.term / 2).then(|| Renewal {
                name: name.clone(),
                token: claim.token,
                // A lease of over a minute keeps its length.
                term: claim.term.max(LONGEST_TERM.min(claim.term * 2)),
            })
        });
        stale.collect()
    }

    /// Notes how a renewal that was asked for then was answered; returns whether the claim is lost.
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
        // Before the end of its lease the claim does not count as lost: the handler has
        // acknowledged the timer in a transaction, or the store's clock has leapt, and another
        // node has the timer. From here on `Due::is_lost` tells the handler.
        let is_lost = claim.lease.has_ended();
        *lock(&claim.lease.until) = asked;
        claims.remove(&renewal.name);
        is_lost
    }
}

/// Renews claims for as long as the node lives: a node that is drained has handlers too.
pub(crate) async fn run<S: Store>(node: Arc<Node<S>>) {
    let share = Share::default();
    // Of the half of a term that is left, three rounds may fail.
    let round = node.options.lease / 8;
    let mut pause = round;
    while node.timer.sleep(pause).await.is_ok() {
        pause = round;
        let mut stale = node.held.stale();
        while !stale.is_empty() {
            let count = stale.len().min(share.of(BATCH));
            let any_locked = renew(&node, stale.drain(..count).collect(), &share).await;
            if any_locked {
                // A key that many schedule again and again is locked most of the time, but not for
                // long: three rounds alone would not meet a moment without.
                pause = round / 8;
            }
        }
    }
}

/// Renews a batch, and returns whether a transaction has some of its rows locked. Where the store
/// refuses it, each half alone: one must not hold up the others.
async fn renew<S: Store>(node: &Node<S>, batch: Vec<Renewal>, share: &Share) -> bool {
    let mut any_locked = false;
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let asked = node.timer.now();
        let answer = node.store.renew(part.clone()).await;
        let in_time = node.in_time(asked, &answer);
        node.note_answer(in_time);
        share.note(in_time);
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
                let error = node.why(error).await;
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
