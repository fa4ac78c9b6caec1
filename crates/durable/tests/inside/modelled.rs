//! What a node uses of std's locks and maps and tokio's tasks, in a model: shuttle's.

use shuttle::future::{AbortHandle, JoinHandle, spawn};
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
use std::collections::hash_map::DefaultHasher;
use std::future::{Future, poll_fn};
use std::hash::BuildHasherDefault;
use std::pin::Pin;
use std::task::Poll;

/// Draws a number that the schedule decides.
pub(crate) fn random() -> u64 {
    shuttle::rand::RngCore::next_u64(&mut shuttle::rand::thread_rng())
}

/// Draws a timer's number, as a counter would outlive the schedule.
pub(crate) fn next_id() -> i64 {
    (random() >> 1) as i64
}

/// A map whose order is the same in each run of a schedule.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// What a node uses of tokio's.
#[derive(Debug)]
pub(crate) struct JoinSet<T>(Vec<JoinHandle<T>>);

impl JoinSet<()> {
    pub(crate) fn new() -> Self {
        JoinSet(Vec::new())
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let task = spawn(task);
        let handle = task.abort_handle();
        self.0.push(task);
        handle
    }

    pub(crate) fn try_join_next(&mut self) -> Option<()> {
        let ended = self.0.iter().position(JoinHandle::is_finished)?;
        drop(self.0.remove(ended));
        Some(())
    }

    pub(crate) async fn join_next(&mut self) -> Option<()> {
        poll_fn(|context| {
            let mut tasks = self.0.iter_mut();
            let ended = tasks.position(|task| Pin::new(task).poll(context).is_ready());
            let Some(ended) = ended else {
                return if self.0.is_empty() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            };
            drop(self.0.remove(ended));
            Poll::Ready(Some(()))
        })
        .await
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
