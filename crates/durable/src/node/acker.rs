//! Acknowledges claims whose handlers have ended. An acknowledgement that the store refuses is
//! tried alone, and holds up no other.

use crate::contained::event;
use crate::entry::Error;
use crate::node::batcher::{BATCH, Request, take_batch};
use crate::node::{FIRST_PAUSE, LAST_PAUSE, LOCKED, Node, Share};
use crate::store::{Ack, Changed, Claimed, Ending, Name, Store};
use crate::sync::JoinSet;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};

/// How many bytes of a dead timer's reason are kept.
const LONGEST_REASON: usize = 8 << 10;
/// How often an acknowledgement is refused before it is given up.
const REFUSALS: u32 = 10;
/// After how long a timer is due again whose acknowledgement was given up.
const PUT_BACK: Duration = Duration::from_secs(3_600);

/// A claim to be acknowledged. Its place is free again once this is dropped.
pub(crate) struct Ended {
    ack: Ack,
    _place: OwnedSemaphorePermit,
    refusals: u32,
    /// How often another transaction had the row locked.
    locked: u32,
    /// Whether an answer was lost: the claim may be acknowledged already.
    lost: bool,
}

impl Ended {
    pub(crate) fn new(row: Claimed, ending: Ending, place: OwnedSemaphorePermit) -> Self {
        let ending = match ending {
            Ending::Dead(reason) => Ending::Dead(cut(reason)),
            ending => ending,
        };
        let Claimed { name, token, .. } = row;
        Ended {
            ack: Ack {
                name,
                token,
                ending,
            },
            _place: place,
            refusals: 0,
            locked: 0,
            lost: false,
        }
    }
}

impl Request for Ended {
    fn name(&self) -> &Name {
        &self.ack.name
    }

    fn bytes(&self) -> usize {
        match &self.ack.ending {
            Ending::Again(_, payload) => payload.len(),
            Ending::Dead(reason) => reason.len(),
            _ => 0,
        }
    }
}

/// Returns the part of a reason that a store can keep.
fn cut(mut reason: String) -> String {
    reason.retain(|character| character != '\0');
    let mut end = reason.len().min(LONGEST_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    reason
}

pub(crate) struct Acker<S> {
    node: Arc<Node<S>>,
    queue: Mutex<mpsc::UnboundedReceiver<Ended>>,
    /// Limits how many refused acknowledgements are tried again at once: they keep their places.
    trials: Semaphore,
    share: Share,
}

impl<S: Store> Acker<S> {
    pub(crate) fn new(node: Arc<Node<S>>, queue: mpsc::UnboundedReceiver<Ended>) -> Self {
        let trials = (node.options.max_in_flight / 10).max(1) as usize;
        Acker {
            node,
            queue: Mutex::new(queue),
            trials: Semaphore::new(trials),
            share: Share::default(),
        }
    }

    pub(crate) async fn run(self: Arc<Self>) {
        let mut tasks = JoinSet::new(); // The tasks end with this one.
        let mut waiting = VecDeque::new();
        loop {
            let mut ended = Vec::new();
            // Released before the store is asked: the other acker has the next batch meanwhile.
            if self.queue.lock().await.recv_many(&mut ended, BATCH).await == 0 {
                return;
            }
            waiting.extend(ended);
            while !waiting.is_empty() {
                let most = self.share.of(BATCH);
                let batch = take_batch(&mut waiting, most);
                self.acknowledge(batch, &mut tasks).await;
            }
            while tasks.try_join_next().is_some() {}
        }
    }

    /// Acknowledges a batch. Spawns tasks for claims that are refused, and for locked rows.
    async fn acknowledge(self: &Arc<Self>, batch: Vec<Ended>, tasks: &mut JoinSet<()>) {
        let mut parts = vec![batch];
        let mut pause = FIRST_PAUSE;
        while let Some(mut part) = parts.pop() {
            let error = match self.call(&mut part).await {
                Ok(changed) => {
                    let locked = self.settle(part, changed);
                    if !locked.is_empty() {
                        tasks.spawn(Arc::clone(self).send_again(locked));
                    }
                    continue;
                }
                Err(error) => error,
            };
            // A refusal is an answer. Otherwise the store is given time to recover.
            let waits = !matches!(error, Error::Refused(_));
            if waits && self.node.timer.sleep(pause).await.is_err() {
                return;
            }
            pause = (pause * 2).min(LAST_PAUSE);
            match error {
                // Refused: one of the claims is at fault. Uncertain: the batch may have been too
                // large.
                Error::Refused(_) | Error::Uncertain(_) if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                }
                Error::Refused(_) | Error::Uncertain(_) => {
                    for one in part {
                        tasks.spawn(Arc::clone(self).insist(one));
                    }
                }
                // The store cannot be reached: the whole batch is tried again.
                _ => parts.push(part),
            }
        }
    }

    /// Tries a claim alone until it is acknowledged, put back or given up.
    async fn insist(self: Arc<Self>, mut one: Ended) {
        // Only a tenth of the places may be taken by refused outcomes. Beyond that an outcome is
        // given up at its first refusal.
        let trial = self.trials.try_acquire();
        let mut most = if trial.is_ok() { REFUSALS } else { 1 };
        loop {
            if one.refusals < most {
                if self.node.timer.sleep(LOCKED).await.is_err() {
                    return;
                }
            } else if matches!(one.ack.ending, Ending::PutBack(_)) {
                // The claim is not renewed any more. A takeover runs the timer again.
                self.held_ends(&one);
                return;
            } else {
                event!(
                    error,
                    name = one.ack.name.0,
                    "an outcome is given up: it runs again"
                );
                self.node.count().refused += 1;
                one.ack.ending = Ending::PutBack(PUT_BACK);
                one.refusals = 0;
                most = 1;
            }
            // `call` has counted a refusal.
            let answer = self.call(std::slice::from_mut(&mut one)).await;
            if let Ok(changed) = answer {
                match self.settle(vec![one], changed).pop() {
                    Some(locked) => one = locked,
                    None => return,
                }
            }
        }
    }

    async fn call(&self, part: &mut [Ended]) -> Result<Changed<bool>, Error> {
        let asked = self.node.timer.now();
        let acks = part.iter().map(|ended| ended.ack.clone()).collect();
        let answer = self.node.store.acknowledge(acks).await;
        self.node.judge(asked, &answer, &self.share);
        let Err(error) = answer else { return answer };
        self.node.failed(&error, "a batch was not acknowledged");
        match (&error, &mut *part) {
            (Error::Uncertain(_), lost) => lost.iter_mut().for_each(|one| one.lost = true),
            (Error::Refused(_), [one]) => one.refusals += 1,
            _ => {}
        }
        Err(error)
    }

    /// Ends the claims that were answered, and returns those whose rows another transaction has
    /// locked.
    fn settle(&self, part: Vec<Ended>, changed: Changed<bool>) -> Vec<Ended> {
        let node = &self.node;
        let mut locked = Vec::new();
        for (mut one, answer) in part.into_iter().zip(changed.answers) {
            let Some(ended) = answer else {
                one.locked += 1;
                locked.push(one);
                continue;
            };
            let ran_out = self.held_ends(&one);
            let mut counted = node.count();
            // After a lost answer the claim may have been ended by an earlier try.
            if !ended && !one.lost {
                // Either another node has taken the timer over, or the handler has acknowledged it
                // in a transaction. A claim that has not run out was not taken over.
                match one.ack.ending {
                    _ if ran_out => counted.claims_lost += 1,
                    Ending::Done => counted.done += 1,
                    Ending::GiveBack | Ending::PutBack(_) => {}
                    _ => {
                        drop(counted); // Not kept while a user's subscriber writes.
                        let name = &one.ack.name.0;
                        event!(
                            warn,
                            name,
                            "an outcome is ignored: the timer has ended before"
                        );
                    }
                }
                continue;
            }
            match one.ack.ending {
                Ending::Done | Ending::Again(..) => counted.done += 1,
                Ending::Retry(_) => counted.retried += 1,
                Ending::GiveBack | Ending::PutBack(_) => {}
                Ending::Dead(reason) => {
                    counted.dead += 1;
                    drop(counted);
                    event!(warn, name = one.ack.name.0, reason, "a timer is given up");
                }
            }
        }
        node.note(changed.now, changed.first);
        locked
    }

    /// Ends the renewal of a claim, and returns whether the claim had run out.
    fn held_ends(&self, one: &Ended) -> bool {
        self.node.held.end(&one.ack.name, one.ack.token)
    }

    /// Acknowledges claims again whose rows were locked. The first pause is short: the lock may be
    /// that of another node's claim, which has met the row and ends soon.
    async fn send_again(self: Arc<Self>, locked: Vec<Ended>) {
        let tries = locked.iter().map(|one| one.locked).min().unwrap_or(1);
        let pause = FIRST_PAUSE * (1 << (tries - 1).min(6));
        if self.node.timer.sleep(pause.min(LOCKED)).await.is_ok() {
            for one in locked {
                // Fails once the node has ended.
                let _ = self.node.ended.send(one);
            }
        }
    }
}
