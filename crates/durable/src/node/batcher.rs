//! Puts calls of many callers together into one for the store.

use crate::entry::Error;
use crate::node::{FIRST_PAUSE, LAST_PAUSE, Node, Share};
use crate::store::{Answer, Name, NewTimer, Store};
use crate::sync::JoinSet;
use std::collections::{HashSet, VecDeque};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::sync::{Mutex, mpsc, oneshot};

/// How many requests a batch has at most. Larger batches are not faster, and lock rows for longer.
pub(crate) const BATCH: usize = 1_000;

/// How many bytes of payloads a batch has at most, unless it is one request.
const BATCH_BYTES: usize = 1 << 20;

/// How many requests wait in the queue. Further callers wait for room.
const WAITING: usize = 10_000;

/// How many batches are under way, also of acknowledgements: while one waits for its commit, the
/// next one is sent.
pub(crate) const WORKERS: usize = 2;

/// A part of a batch, in which each name stands once.
pub(crate) trait Request {
    fn name(&self) -> &Name;

    /// Returns how long its payload is.
    fn bytes(&self) -> usize {
        0
    }
}

impl Request for NewTimer {
    fn name(&self) -> &Name {
        &self.name
    }

    fn bytes(&self) -> usize {
        self.payload.len()
    }
}

impl Request for Name {
    fn name(&self) -> &Name {
        self
    }
}

/// A request with something that belongs to it.
impl<R: Request, A> Request for (R, A) {
    fn name(&self) -> &Name {
        self.0.name()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// A request of a user's call.
pub(crate) trait Call: Request + Clone + Send + Sync + 'static {
    type Answer: Send + 'static;

    /// Asks the store, and returns an answer for each request, in order; `None` for a locked row.
    fn call<S: Store>(node: &Node<S>, batch: Vec<Self>) -> impl Answer<Vec<Option<Self::Answer>>>;
}

/// How many requests a batch leaves out at most: each batch goes over them again.
const LEFT: usize = 4 * BATCH;

/// Takes a batch of at most `most` requests and [`BATCH_BYTES`], but at least one request. Leaves
/// out requests whose names are in the batch already, and ends after [`LEFT`] of them.
pub(crate) fn take_batch<R: Request>(waiting: &mut VecDeque<R>, most: usize) -> Vec<R> {
    let mut names = HashSet::new();
    let mut batch = Vec::new();
    let mut left = VecDeque::new();
    let mut sum = 0;
    while let Some(next) = waiting.pop_front() {
        sum += next.bytes();
        let is_full = batch.len() == most || (sum > BATCH_BYTES && !batch.is_empty());
        if is_full || left.len() == LEFT {
            waiting.push_front(next);
            break;
        }
        match names.insert(next.name().clone()) {
            true => batch.push(next),
            false => left.push_back(next),
        }
    }
    while let Some(last) = left.pop_back() {
        waiting.push_front(last);
    }
    batch
}

/// A request and its caller.
type Waiting<R> = (R, Caller<<R as Call>::Answer>);

struct Caller<A> {
    asked: Instant,
    answer: oneshot::Sender<Result<A, Error>>,
}

/// How long a request waits for a locked row, and in the queue while the store does not answer.
/// Batches are small then, and each may take as long as a statement: the last request would wait
/// for very long.
const TURN: Duration = Duration::from_secs(5);

pub(crate) struct Batcher<R: Call> {
    requests: mpsc::Sender<Waiting<R>>,
    timer: Timer,
}

impl<R: Call> Batcher<R> {
    /// Spawns the workers.
    pub(crate) fn spawn<S: Store>(tasks: &mut JoinSet<()>, node: &Arc<Node<S>>) -> Self {
        let (requests, queue) = mpsc::channel(WAITING);
        let worker = Arc::new(Worker {
            node: Arc::clone(node),
            queue: Mutex::new(queue),
            share: Share::default(),
        });
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&worker).run());
        }
        Batcher {
            requests,
            timer: node.timer.clone(),
        }
    }

    pub(crate) async fn call(&self, request: R) -> Result<R::Answer, Error> {
        let (answer, answered) = oneshot::channel();
        let caller = Caller {
            asked: self.timer.now(),
            answer,
        };
        let sent = self.requests.send((request, caller)).await;
        sent.map_err(|_| Error::Closed)?;
        answered
            .await
            .unwrap_or_else(|_| Err(Error::uncertain("the node was dropped meanwhile")))
    }
}

struct Worker<S, R: Call> {
    node: Arc<Node<S>>,
    queue: Mutex<mpsc::Receiver<Waiting<R>>>,
    share: Share,
}

impl<S: Store, R: Call> Worker<S, R> {
    async fn run(self: Arc<Self>) {
        let mut waiting = VecDeque::new();
        let mut locked = JoinSet::new(); // Ends with this task.
        loop {
            if waiting.is_empty() {
                let mut some = Vec::new();
                // Released before the store is asked: the other worker has the next batch
                // meanwhile.
                if self.queue.lock().await.recv_many(&mut some, BATCH).await == 0 {
                    return;
                }
                waiting.extend(some);
            } else if let Ok(mut queue) = self.queue.try_lock() {
                // Other keys need not wait for the calls of a key that is called many times: each
                // of those is in a batch of its own. Bounded, as each batch goes over all of them.
                let room = LEFT.saturating_sub(waiting.len());
                waiting.extend(iter::from_fn(|| queue.try_recv().ok()).take(room));
            }
            self.give_up(&mut waiting);
            let batch = take_batch(&mut waiting, self.share.of(BATCH));
            if !batch.is_empty() {
                self.answer(batch, &mut locked).await;
            }
            while locked.try_join_next().is_some() {}
        }
    }

    /// Answers requests that have waited too long, if the store does not answer.
    fn give_up(&self, waiting: &mut VecDeque<Waiting<R>>) {
        if !self.share.is_halved() {
            return;
        }
        let now = self.node.timer.now();
        while let Some((request, caller)) = waiting.pop_front() {
            if now.saturating_duration_since(caller.asked) < TURN {
                waiting.push_front((request, caller));
                return;
            }
            let error = Error::unavailable("the store does not answer, and was not asked");
            let _ = caller.answer.send(Err(error)); // Fails if the caller was dropped.
        }
    }

    /// Answers each request of a batch. If the store soon refuses the batch, tries each half alone,
    /// down to single requests.
    async fn answer(&self, batch: Vec<Waiting<R>>, locked: &mut JoinSet<()>) {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let requests = part.iter().map(|(request, _)| request.clone()).collect();
            let asked = self.node.timer.now();
            let answer = R::call(&self.node, requests).await;
            self.node.judge(asked, &answer, &self.share);
            let answer = match answer {
                Err(Error::Refused(cause)) if part.len() > 1 => {
                    let took = self.node.timer.now().saturating_duration_since(asked);
                    if took < TURN {
                        let rest = part.split_off(part.len() / 2);
                        parts.extend([rest, part]);
                        continue;
                    }
                    // Each half would take as long: nobody looks for the request at fault.
                    Err(Error::Unavailable(cause))
                }
                answer => answer,
            };
            let answers = match answer {
                Ok(answers) => answers.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => part.iter().map(|_| Err(error.clone())).collect(),
            };
            for ((request, caller), answer) in part.into_iter().zip(answers) {
                if let Some(answer) = answer.transpose() {
                    let _ = caller.answer.send(answer); // Fails if the caller was dropped.
                    continue;
                }
                let node = Arc::clone(&self.node);
                locked.spawn(async move {
                    drop(caller.answer.send(retry_locked(&node, request).await));
                });
            }
        }
    }
}

pub(crate) fn locked_error() -> Error {
    Error::unavailable("another transaction has the timer locked")
}

/// Returns the pauses before the retries for a locked row: five seconds in all.
pub(crate) fn retry_pauses() -> impl Iterator<Item = Duration> {
    (0..14_u32).map(|n| (FIRST_PAUSE * (1 << n.min(5))).min(LAST_PAUSE))
}

/// Repeats a request whose row is locked, for [`TURN`] at most.
async fn retry_locked<R: Call>(node: &Node<impl Store>, request: R) -> Result<R::Answer, Error> {
    let begun = node.timer.now();
    for pause in retry_pauses() {
        node.timer.sleep(pause).await.map_err(|_| Error::Closed)?;
        // Each such call may wait for a lock on a connection that others' calls use as well.
        let _alone = node.retries.lock().await;
        if node.timer.now().saturating_duration_since(begun) > TURN {
            break;
        }
        let answers = R::call(node, vec![request.clone()]).await?;
        if let Some(answer) = answers.into_iter().next().flatten() {
            return Ok(answer);
        }
    }
    Err(locked_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Request for &(Name, usize) {
        fn name(&self) -> &Name {
            &self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn a_batch_has_each_name_once_and_so_many_bytes() {
        let all = [("a", 1), ("b", 1), ("a", 1), ("c", BATCH_BYTES), ("d", 1)];
        let all = all.map(|(key, bytes)| (Name::of_key(key), bytes));
        let mut waiting: VecDeque<&(Name, usize)> = all.iter().collect();
        let mut next = |most| {
            let batch = take_batch(&mut waiting, most);
            let keys = batch.iter().map(|it| it.0.key().expect("a key").to_owned());
            keys.collect::<Vec<String>>()
        };
        assert_eq!(next(1), ["a"]);
        assert_eq!(next(10), ["b", "a"]);
        assert_eq!(next(10), ["c"], "too long, and alone");
        assert_eq!(next(10), ["d"]);
        assert!(next(10).is_empty());
    }

    #[test]
    fn a_name_that_is_there_waits_for_the_next_batch_in_order() {
        let keys = [("a", 0), ("a", 1), ("b", 2), ("a", 3)];
        let mut waiting: VecDeque<(Name, usize)> = keys.map(|it| (Name::of_key(it.0), it.1)).into();
        for expected in [&[0, 2][..], &[1], &[3]] {
            let batch = take_batch(&mut waiting, 10);
            let found: Vec<usize> = batch.iter().map(|it| it.1).collect();
            assert_eq!(found, expected);
        }
    }
}
