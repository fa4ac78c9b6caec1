//! Where a contender's work runs: on plain threads, or elsewhere (`tokio_runner`).

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

pub trait Runner {
    fn new(threads: usize) -> Self;

    /// Runs each on a thread of its own, all at once, as many as there are threads.
    fn run<W>(&self, works: Vec<W>) -> Vec<W::Output>
    where
        W: Future<Output: Send> + Send + 'static;
}

/// For work that never waits.
pub struct Threads;

impl Runner for Threads {
    fn new(_threads: usize) -> Self {
        Threads
    }

    fn run<W>(&self, works: Vec<W>) -> Vec<W::Output>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let poll = |work: W| match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the work waits"),
        };
        let running: Vec<_> =
            works.into_iter().map(|work| thread::spawn(move || poll(work))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }
}
