//! The timer of a round, with its executor.

use crate::config::{Config, Executing};
use crate::ledger::{End, drop_as};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tickwheel::{Batch, Clock, Executor, Task, Timer, Worker};

/// Returns a function that returns true every so many times.
fn sometimes(of: u64) -> impl Fn() -> bool + Send + Sync {
    let count = AtomicU64::new(0);
    move || (count.fetch_add(1, Relaxed) + 1) % of == 0
}

/// Refuses some.
fn refusing() -> impl Fn(Task) -> Result<(), Task> + Send + Sync {
    let refuses = sometimes(5);
    move |task: Task| {
        if refuses() {
            return Err(task);
        }
        task.run();
        Ok(())
    }
}

struct Leaves;

impl Executor<Task> for Leaves {
    fn execute(&self, task: Task) -> Result<(), Task> {
        Err(task)
    }

    fn execute_batch(&self, batch: &mut Batch<'_, Task>) {
        for task in batch.by_ref().take(4) {
            task.run();
        }
    }
}

pub(crate) fn build(config: &Config, clock: Clock) -> Timer {
    let mut builder = Timer::builder()
        .name("torture")
        .tick(config.tick)
        .wheel_size(config.wheel_size)
        .shards(config.shards)
        .clock(clock);
    if let Some(max_pending) = config.max_pending {
        builder = builder.max_pending(max_pending);
    }
    let builder = match config.executing {
        Executing::Inline => builder,
        Executing::Blocking => {
            let blocks = sometimes(40);
            builder.executor(move |task: Task| {
                if blocks() {
                    std::thread::sleep(Duration::from_micros(20));
                }
                task.run();
            })
        }
        Executing::RunsRefused => builder.executor(refusing()).on_refused(Task::run),
        Executing::DropsRefused => {
            builder.executor(refusing()).on_refused(|task| drop_as(End::Rejected, task))
        }
        Executing::Loses => builder.executor(refusing()),
        Executing::Panics => {
            let panics = sometimes(11);
            builder.executor(move |task: Task| {
                assert!(!panics(), "planted");
                task.run();
            })
        }
        Executing::Leaves => builder.executor(Leaves).on_refused(Task::run),
        Executing::Worker => {
            builder.executor(Worker::unbounded("worker", Task::run).expect("a thread"))
        }
        Executing::NarrowWorker => builder
            .executor(Worker::bounded("worker", 3, Task::run).expect("a thread"))
            .on_refused(Task::run),
    };
    let timer = if config.reaper { builder.start() } else { builder.build() };
    timer.expect("the options are valid")
}
