//! Calls of many callers, put together into one for the store.

use crate::entry::Error;
use crate::node::Node;
use crate::store::{BATCH_BYTES, KeyName, NewRow, Store, StoreTime};
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::Timer;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;

/// What may stand in a batch beside others: each key once.
pub(crate) trait Request: Clone + Send + 'static {
    fn key(&self) -> Option<KeyName>;

    /// Returns how long its payload is.
    fn bytes(&self) -> usize {
        0
    }
}

impl Request for NewRow {
    fn key(&self) -> Option<KeyName> {
        self.key.clone().map(|key| KeyName {
            slot: self.place.slot,
            key,
        })
    }

    fn bytes(&self) -> usize {
        self.payload.len()
    }
}

impl Request for KeyName {
    fn key(&self) -> Option<KeyName> {
        Some(self.clone())
    }
}

impl Request for (KeyName, StoreTime) {
    fn key(&self) -> Option<KeyName> {
        Some(self.0.clone())
    }
}

/// How many requests one batch holds: larger ones are no faster, and keep their rows for longer.
pub(crate) const BATCH: usize = 1_000;

/// How many requests wait before callers do.
const WAITING: usize = 10_000;

/// How many batches are under way, of claimers and ackers too: while one waits for its commit, the
/// next is sent.
pub(crate) const WORKERS: usize = 2;

type Waiting<R, A> = (R, oneshot::Sender<Result<A, Error>>);

pub(crate) struct Batcher<R, A> {
    requests: mpsc::Sender<Waiting<R, A>>,
}

impl<R: Request, A: Send + 'static> Batcher<R, A> {
    /// Spawns the workers. `call` answers each request of a batch, in order, but those whose rows
    /// are locked.
    pub(crate) fn spawn<S: Store, F>(
        tasks: &mut JoinSet<()>,
        node: &Arc<Node<S>>,
        call: impl Fn(Arc<Node<S>>, Vec<R>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Vec<Option<A>>, Error>> + Send + 'static,
    {
        let (requests, queue) = mpsc::channel(WAITING);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..WORKERS {
            let (timer, node, call) = (node.timer.clone(), Arc::clone(node), call.clone());
            let call = move |requests| call(Arc::clone(&node), requests);
            tasks.spawn(work(Arc::clone(&queue), timer, call));
        }
        Batcher { requests }
    }

    pub(crate) async fn call(&self, request: R) -> Result<A, Error> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send((request, answer))
            .await
            .map_err(|_| Error::Closed)?;
        answered
            .await
            .unwrap_or_else(|_| Err(Error::uncertain("the node was dropped meanwhile")))
    }
}

async fn work<R: Request, A: Send + 'static, F>(
    queue: Arc<Mutex<mpsc::Receiver<Waiting<R, A>>>>,
    timer: Timer,
    call: impl Fn(Vec<R>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = Result<Vec<Option<A>>, Error>> + Send + 'static,
{
    let mut kept = VecDeque::new();
    let mut locked = JoinSet::new(); // Ends with this task.
    while let Some(batch) = next_batch(&queue, &mut kept).await {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let requests = part.iter().map(|(request, _)| request.clone()).collect();
            let results = match call(requests).await {
                // Each half alone, down to the one that is not taken.
                Err(Error::Refused(_)) if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                    continue;
                }
                Err(error) => part.iter().map(|_| Err(error.clone())).collect(),
                Ok(results) => results.into_iter().map(Ok).collect::<Vec<_>>(),
            };
            for ((request, answer), result) in part.into_iter().zip(results) {
                if let Some(result) = result.transpose() {
                    let _ = answer.send(result); // Nobody waits any more: dropped.
                    continue;
                }
                let (timer, call) = (timer.clone(), call.clone());
                locked.spawn(async move {
                    let results = look_again(&timer, call, vec![request], vec![None]).await;
                    let one = results.and_then(|mut all| all.pop().ok_or_else(is_locked));
                    drop(answer.send(one));
                });
            }
        }
        while locked.try_join_next().is_some() {}
    }
}

pub(crate) fn is_locked() -> Error {
    Error::unavailable("another transaction has the timer locked")
}

/// Returns the pauses between looks at rows that are locked: five seconds in all.
pub(crate) fn looks() -> impl Iterator<Item = Duration> {
    (0..14_u32).map(|n| (FIRST_PAUSE * (1 << n.min(5))).min(LAST_PAUSE))
}

/// Calls until each request has an answer, again and again for those whose rows are locked.
pub(crate) async fn look_again<R: Clone, A, F>(
    timer: &Timer,
    call: impl Fn(Vec<R>) -> F,
    requests: Vec<R>,
    mut answers: Vec<Option<A>>,
) -> Result<Vec<A>, Error>
where
    F: Future<Output = Result<Vec<Option<A>>, Error>>,
{
    for pause in looks() {
        let open = answers
            .iter()
            .zip(&requests)
            .filter(|(answer, _)| answer.is_none());
        let open: Vec<R> = open.map(|(_, request)| request.clone()).collect();
        if open.is_empty() {
            break;
        }
        timer.sleep(pause).await.map_err(|_| Error::Closed)?;
        // What has an answer was done.
        let partly = answers.iter().any(Option::is_some);
        let lost = |error| {
            if partly {
                Error::uncertain(error)
            } else {
                error
            }
        };
        let mut news = call(open).await.map_err(lost)?.into_iter();
        let open = answers.iter_mut().filter(|answer| answer.is_none());
        open.for_each(|answer| *answer = news.next().flatten());
    }
    answers
        .into_iter()
        .collect::<Option<Vec<A>>>()
        .ok_or_else(is_locked)
}

/// Returns how many of those that have so many bytes go into one batch, at least one.
pub(crate) fn fitting(bytes: impl Iterator<Item = usize>) -> usize {
    let before = bytes.scan(0, |sum, bytes| Some(mem::replace(sum, *sum + bytes)));
    before
        .take(BATCH)
        .take_while(|before| *before < BATCH_BYTES)
        .count()
}

/// Returns how many of these rows go into one batch, in which each key stands once.
pub(crate) fn fitting_rows<'a>(rows: impl Iterator<Item = &'a NewRow>) -> usize {
    let mut keys = HashSet::new();
    let is_new = |row: &&'a NewRow| row.key.as_deref().is_none_or(|key| keys.insert(key));
    fitting(rows.take_while(is_new).map(Request::bytes))
}

/// Takes what waits, at least one. A key that is in the batch already is kept for the next one, and
/// so is what has enough bytes before it.
async fn next_batch<R: Request, A>(
    queue: &Mutex<mpsc::Receiver<Waiting<R, A>>>,
    kept: &mut VecDeque<Waiting<R, A>>,
) -> Option<Vec<Waiting<R, A>>> {
    // The other worker keeps the lock while it waits for a request: what is here does not.
    let mut free = if kept.is_empty() {
        Some(queue.lock().await)
    } else {
        queue.try_lock().ok()
    };
    if let Some(queue) = &mut free {
        if kept.is_empty() {
            kept.push_back(queue.recv().await?);
        }
        while kept.len() < BATCH {
            let Ok(next) = queue.try_recv() else { break };
            kept.push_back(next);
        }
    }
    drop(free);
    let fitting = fitting(kept.iter().map(|(request, _)| request.bytes()));
    let rest = kept.split_off(fitting);
    let mut keys = HashSet::new();
    let (batch, again) = mem::replace(kept, rest)
        .into_iter()
        .partition::<Vec<_>, _>(|(request, _)| request.key().is_none_or(|key| keys.insert(key)));
    again
        .into_iter()
        .rev()
        .for_each(|next| kept.push_front(next));
    Some(batch)
}

/// Calls until it succeeds or `go_on` says no; waits a little longer after each failure, of which
/// the log says `what` it was.
pub(crate) async fn insist<S, A, F: Future<Output = Result<A, Error>>>(
    node: &Node<S>,
    what: &str,
    mut call: impl FnMut() -> F,
    go_on: impl Fn() -> bool,
) -> Option<A> {
    let mut pause = FIRST_PAUSE;
    loop {
        match call().await {
            Ok(answer) => return Some(answer),
            Err(error) => node.failed(&error, what),
        }
        if !go_on() || node.timer.sleep(pause).await.is_err() {
            return None;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;

    #[test]
    fn a_batch_ends_after_so_many_bytes_and_before_a_key_that_it_has() {
        let row = |number: usize, bytes| NewRow {
            place: Place::before(StoreTime::MIN),
            key: Some(number.to_string()),
            payload: vec![0; bytes],
            ..NewRow::default()
        };
        let count = |rows: &[NewRow]| fitting_rows(rows.iter());
        let rows = |bytes| {
            (0..2 * BATCH)
                .map(|n| row(n % 1_500, bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (count(&[]), count(&rows(1)), count(&rows(BATCH_BYTES))),
            (0, BATCH, 1)
        );
        assert_eq!(
            (
                count(&rows(BATCH_BYTES / 4)),
                count(&rows(BATCH_BYTES / 4 - 1))
            ),
            (4, 5)
        );
        assert_eq!(count(&rows(1)[BATCH..]), 500 + 500);
        assert_eq!(count(&[row(1, 1), row(2, 1), row(1, 1)]), 2);
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_for_the_next_batch() {
        let (sender, queue) = mpsc::channel(10);
        for number in 0..5 {
            let (place, payload) = (Place::before(StoreTime::MIN), vec![0; BATCH_BYTES / 2]);
            let key = Some(if number == 3 {
                "2".into()
            } else {
                number.to_string()
            });
            let row = NewRow {
                place,
                key,
                payload,
                ..NewRow::default()
            };
            sender
                .try_send((row, oneshot::channel::<Result<(), Error>>().0))
                .unwrap();
        }
        let (queue, mut kept) = (Mutex::new(queue), VecDeque::new());
        for keys in [&["0", "1"][..], &["2"], &["2", "4"]] {
            let batch = next_batch(&queue, &mut kept).await.unwrap();
            let found: Vec<_> = batch
                .iter()
                .map(|(row, _)| row.key.as_deref().unwrap())
                .collect();
            assert_eq!(found, keys);
        }
    }
}
