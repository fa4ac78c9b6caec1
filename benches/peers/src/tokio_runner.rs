//! The runner for work that is tasks of tokio.

use crate::runner::Runner;
use std::future::Future;
use tokio::runtime::{Builder, Runtime};

/// A runtime with a worker for each work.
pub struct Tokio(Runtime);

impl Runner for Tokio {
    fn new(threads: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_time().build();
        Tokio(runtime.expect("a runtime"))
    }

    fn run<W>(&self, works: Vec<W>) -> Vec<W::Output>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let running: Vec<_> = works.into_iter().map(|work| self.0.spawn(work)).collect();
        running.into_iter().map(|task| self.0.block_on(task).expect("no panic")).collect()
    }
}
