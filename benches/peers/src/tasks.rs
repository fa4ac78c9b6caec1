//! Sleeps in tasks of tokio: S_task, in which tasks yield now and then; S_kept, what stays when one
//! poll makes and drops very many; and S_held_up, how late a sleep ends whose worker blocks.

use crate::Bench;
use crate::memory::allocated;
use crate::sleeps::Sleeper;
use crate::work::nanos_per;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;

const DELAY: Duration = Duration::from_secs(600);
/// So many sleeps are made between two yields.
const BATCH: u64 = 32;
/// How long a worker blocks, and how long a sleep lasts meanwhile.
const BLOCKS: Duration = Duration::from_millis(500);
const SHORT: Duration = Duration::from_millis(20);

/// Who makes sleeps for tasks.
pub trait TaskSleeper: Sleeper {
    fn task_sleep(&self, delay: Duration) -> impl Future<Output: Send> + Send + 'static;

    /// Returns a runtime for the tasks.
    fn runtime(workers: usize) -> Runtime;
}

fn make_and_drop<S: TaskSleeper>(sleeper: &S, count: u64, context: &mut Context<'_>) {
    for _ in 0..count {
        let sleep = pin!(sleeper.task_sleep(black_box(DELAY)));
        assert!(sleep.poll(context).is_pending());
    }
}

/// Makes a sleep, polls it once and drops it, `count` times in a task on each of so many workers.
/// Returns nanoseconds for all three, per task.
fn churn<S: TaskSleeper>(workers: u64, count: u64) -> f64 {
    let runtime = S::runtime(workers as usize);
    let sleeper = Arc::new(S::new());
    let spawn = |_| {
        let sleeper = Arc::clone(&sleeper);
        runtime.spawn(unconstrained(async move {
            let started = Instant::now();
            for _ in 0..count / BATCH {
                poll_fn(|context| {
                    make_and_drop(&*sleeper, BATCH, context);
                    Poll::Ready(())
                })
                .await;
                yield_now().await;
            }
            nanos_per(started, count)
        }))
    };
    let tasks: Vec<_> = (0..workers).map(spawn).collect();
    let each = tasks
        .into_iter()
        .map(|task| runtime.block_on(task).expect("no panic"));
    each.sum::<f64>() / workers as f64
}

/// Returns the mebibytes that are in use when one poll has made and dropped so many sleeps.
fn kept<S: TaskSleeper>(count: u64) -> f64 {
    let runtime = S::runtime(1);
    let sleeper = Arc::new(S::new());
    let within = Arc::clone(&sleeper);
    let polled = runtime.spawn(unconstrained(poll_fn(move |context| {
        let before = allocated();
        make_and_drop(&*within, count, context);
        Poll::Ready(allocated() - before)
    })));
    runtime.block_on(polled).expect("no panic") / f64::from(1 << 20)
}

/// Returns after how many milliseconds a sleep of 20 ends, if the worker that has polled it first
/// blocks for 500, and somebody else waits for it.
fn held_up<S: TaskSleeper>() -> f64 {
    let runtime = S::runtime(2);
    let sleeper = S::new();
    let inside = runtime.enter();
    let mut sleep = Box::pin(sleeper.task_sleep(SHORT));
    drop(inside);
    let (hand_on, handed_on) = mpsc::channel();
    runtime.spawn(async move {
        let first = poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context))).await;
        assert!(first.is_pending());
        hand_on.send(sleep).expect("it is waited for");
        thread::sleep(BLOCKS);
    });
    let started = Instant::now();
    runtime.block_on(handed_on.recv().expect("it was polled"));
    started.elapsed().as_secs_f64() * 1e3
}

impl Bench {
    pub fn tasks<S: TaskSleeper>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        for workers in crate::thread_counts() {
            let work = format!("S_task_{workers}");
            if self.wants(&work) {
                self.ns(&work, who, churn::<S>(workers, self.count()));
            }
        }
        if self.wants("S_kept") && self.round == 1 {
            self.sample("S_kept", who, "MiB", kept::<S>(1_000_000));
        }
        if self.wants("S_held_up") {
            self.sample("S_held_up", who, "ms", held_up::<S>());
        }
    }
}
