//! A node among others: its lease, its fair share of the slots, how it rests and how it goes.
//!
//! A node rests while nothing of the namespace is due soon: it owns nothing, has no lease to renew,
//! and asks nothing. It is told of each timer that is written meanwhile and due before the first
//! one that it knows, and joins again soon before that. So all nodes rest and wake together.

use crate::entry::Error;
use crate::node::batcher::insist;
use crate::node::{Node, draw};
use crate::store::{First, NodeId, Page, Place, Store, StoreTime};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// How many slots are given up in one round: the others go on meanwhile.
const HANDED_OVER: usize = 64;

/// What the leases' watchdog calls: it must not wait, so it hands renewals on.
struct Watchdog {
    renewals: mpsc::UnboundedSender<Renewal<NodeId>>,
}

impl LeaseStore<NodeId> for Watchdog {
    fn renew(&self, batch: Vec<Renewal<NodeId>>) {
        for renewal in batch {
            let _ = self.renewals.send(renewal); // What is dropped has failed.
        }
    }

    /// Does nothing: the node finds out from the lease itself, whose clock is exact.
    fn lost(&self, _: NodeId) {}
}

/// Renews by a task that does nothing else: no load of a window may keep it.
async fn renew<S: Store>(
    node: Arc<Node<S>>,
    mut renewals: mpsc::UnboundedReceiver<Renewal<NodeId>>,
) {
    while let Some(renewal) = renewals.recv().await {
        match node.store.renew(*renewal.key(), node.options.lease).await {
            Ok(true) => renewal.renewed(),
            Ok(false) => renewal.gone(),
            Err(error) => {
                node.failed(&error, "the lease was not renewed");
                renewal.failed();
            }
        }
    }
}

/// Joins, and joins again as another node whenever the lease was lost, until it has to leave.
pub(crate) async fn run<S: Store>(node: Arc<Node<S>>, mut leave: watch::Receiver<bool>) {
    let (renewals, queue) = mpsc::unbounded_channel();
    // Ends with this task, even if that is aborted: the two would keep the node forever.
    let mut renewing = JoinSet::new();
    renewing.spawn(renew(Arc::clone(&node), queue));
    let terms = LeaseTerms::new(node.options.lease);
    let leases = Leases::new(&node.timer, terms, Watchdog { renewals });
    while !*leave.borrow() {
        let id = NodeId(draw());
        let asked = node.timer.now();
        if let Err(error) = node.store.join(id, node.options.lease).await {
            node.failed(&error, "the node could not join");
            if node
                .timer
                .sleep(POLL.min(node.options.lease / 6))
                .await
                .is_err()
            {
                break;
            }
            continue;
        }
        let Ok(lease) = leases.hold_since(id, asked) else {
            break;
        };
        node.slots.begin(lease, asked);
        let rests = rounds(&node, id, &mut leave).await;
        if !node.slots.end() {
            node.counters.lock().leases_lost += 1;
            tracing::warn!("the lease was lost");
        }
        if rests && rest(&node, &mut leave).await.is_none() {
            break;
        }
    }
}

/// How far away the first timer has to be for a node to rest; how long it has nothing to do before.
const FAR: Duration = Duration::from_secs(10);

/// How long before it a node wakes: time to join and to load.
const LEAD: Duration = Duration::from_secs(2);

/// How long a node that rests is told of nothing before it looks; how long it looks more often than
/// that, and how often: for what was begun before it rested.
const CEILING: Duration = Duration::from_secs(900);
const SETTLING: Duration = Duration::from_secs(40);
const OPEN: Duration = Duration::from_secs(10);

/// The same where nobody can tell it, and after an error; and how long a node that joins or leaves
/// waits, whatever its lease.
const POLL: Duration = Duration::from_secs(1);

/// Returns whether nothing is due soon, and nothing is in anybody's hands.
async fn is_quiet<S: Store>(node: &Node<S>) -> Result<bool, Error> {
    if node.slots.in_flight() > 0 || node.window.ready.len() > 0 {
        return Ok(false);
    }
    // Soon told where something is due soon: to look for the first one reads all dead rows.
    let now = node.clock.earliest();
    let (slots, after, before) = (node.slots.all(), Place::before(now), now.plus(FAR));
    if !node
        .store
        .load(Page {
            slots,
            after,
            before,
            limit: 1,
        })
        .await?
        .is_empty()
    {
        return Ok(false);
    }
    let first = node.store.first().await?;
    Ok(first.due > first.now.plus(FAR))
}

/// Rests until something is due soon, or the node has to leave. `None` if the timer was shut down.
async fn rest<S: Store>(node: &Node<S>, leave: &mut watch::Receiver<bool>) -> Option<()> {
    let begun = node.timer.now();
    let mut resting = Resting {
        id: NodeId(draw()),
        until: None,
        asked: begun,
        told: false,
    };
    tracing::debug!("nothing is due soon: the node rests");
    while !*leave.borrow() {
        let pause = match resting.look(node).await {
            Ok(first) if first.due <= first.now.plus(LEAD) => break,
            Ok(_) if !resting.told => POLL,
            Ok(first) => {
                let settles = first.open || node.timer.now() < begun + SETTLING;
                let ceiling = if settles { OPEN } else { CEILING };
                first.due.since(first.now.plus(LEAD)).min(ceiling)
            }
            Err(error) => {
                node.failed(&error, "the node that rests could not look");
                break; // Awake it needs to be told of nothing.
            }
        };
        tokio::select! {
            slept = node.timer.sleep(pause) => slept.ok()?,
            told = node.store.told(resting.id) => if told.is_err() {
                resting.until = None; // What it asked for may be lost.
            },
            () = node.stirred.notified() => {}
            _ = leave.changed() => {}
        }
    }
    node.rests_until.store(0, Relaxed);
    if let Err(error) = node.store.leave(resting.id).await {
        node.failed(&error, "who rested was not struck off");
    }
    Some(())
}

struct Resting {
    id: NodeId,
    /// Before when timers have to be due to be told of, if that is known to the store.
    until: Option<StoreTime>,
    /// When it asked for that.
    asked: Instant,
    /// Whether it is told of any.
    told: bool,
}

impl Resting {
    /// Returns the first timer, having asked to be told of each earlier one.
    async fn look<S: Store>(&mut self, node: &Node<S>) -> Result<First, Error> {
        if node.timer.now() >= self.asked + CEILING {
            self.until = None; // Who is silent for long is struck off.
        }
        loop {
            let until = match self.until {
                Some(until) => until,
                // Of all, until it is known which is the first.
                None => self.ask(node, StoreTime::MAX).await?,
            };
            let asked = node.timer.now();
            let first = node.store.first().await?;
            node.clock.observe(asked, first.now);
            if first.due > until {
                self.until = None; // One between the two might come meanwhile.
                continue;
            }
            if first.due < until {
                self.ask(node, first.due).await?;
            }
            return Ok(first);
        }
    }

    async fn ask<S: Store>(
        &mut self,
        node: &Node<S>,
        until: StoreTime,
    ) -> Result<StoreTime, Error> {
        self.told = node.store.rest(self.id, until).await?;
        node.rests_until.store(until.as_micros(), Relaxed);
        (self.until, self.asked) = (Some(until), node.timer.now());
        Ok(until)
    }
}

/// Keeps the node's share of the slots, until its lease is lost or it has left. Returns whether it
/// has left to rest.
async fn rounds<S: Store>(node: &Node<S>, id: NodeId, leave: &mut watch::Receiver<bool>) -> bool {
    let (mut rests, mut look) = (false, node.timer.now() + FAR);
    let mut retired = false;
    while node.slots.node() == Some(id) {
        let leaving = rests || *leave.borrow();
        if leaving && !retired {
            // Or its last handler would keep the others from what it gives up.
            retired = node.store.retire(id).await.is_ok();
        }
        let mut pause = node.options.lease / 6;
        match round(node, id, leaving).await {
            Ok(None) => {
                let held = || node.slots.node() == Some(id);
                let go = || node.store.leave(id);
                insist(node, "the node could not leave", go, held).await;
                return rests;
            }
            Ok(Some(next_end)) => {
                pause = pause.min(next_end);
                if node.timer.now() >= look {
                    let asked = node.timer.now();
                    rests = is_quiet(node).await.unwrap_or(false); // The next round tells errors.
                    // Others wait meanwhile: for a tenth of the time, where it takes long.
                    look = node.timer.now() + (FAR / 2).max((node.timer.now() - asked) * 10);
                }
            }
            Err(error) => node.failed(&error, "the slots could not be looked at"),
        }
        if leaving || rests {
            pause = POLL.min(node.options.lease / 100); // A drain is soon done.
        }
        tokio::select! {
            slept = node.timer.sleep(pause) => if slept.is_err() { return false },
            // Fails when the node is dropped, which ends this task.
            _ = leave.changed(), if !leaving => {}
            () = node.freed.notified(), if !leaving => {}
        }
    }
    false
}

/// Looks once at who owns what; returns how long it is until another node may be dead. `None` if
/// this one has left.
pub(crate) async fn round<S: Store>(
    node: &Node<S>,
    id: NodeId,
    leaving: bool,
) -> Result<Option<Duration>, Error> {
    let survey = node.store.survey(id).await?;
    node.slots.reconcile(&survey.owned);
    let owned = u32::try_from(survey.owned.len()).unwrap_or(u32::MAX);
    let share = if leaving {
        0
    } else {
        survey.slots.div_ceil(survey.live.max(1))
    };
    if owned < share && survey.free > 0 {
        let taken = node.store.take(id, share - owned).await?;
        let all = [survey.owned, taken].concat();
        node.slots.reconcile(&all);
    }
    let at_most = if leaving { usize::MAX } else { HANDED_OVER };
    node.slots.leave(share as usize, at_most);
    let left = node.slots.take_left();
    if !left.is_empty() {
        node.store.release(id, left).await?;
    }
    let has_left = leaving && node.slots.len() == 0;
    Ok((!has_left).then(|| survey.next_end.unwrap_or(Duration::MAX)))
}
