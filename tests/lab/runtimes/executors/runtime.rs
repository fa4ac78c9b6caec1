//! tokio: tasks as spawned futures, on its threads for blocking work, and by way of a channel.

use crate::{End, Fixture, HANG, Job, ended, panics, run, until};
use std::sync::mpsc::{Receiver, channel};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).max_blocking_threads(2).build().unwrap()
}

/// How a job is given to a runtime.
type Spawn = fn(&Handle, Job) -> JoinHandle<()>;

const SPAWNS: [Spawn; 2] = [
    |runtime, job| runtime.spawn(async { job.run() }),
    |runtime, job| runtime.spawn_blocking(|| job.run()),
];

/// Returns a timer that spawns its jobs on `runtime`, and the join handle of each of them.
fn spawning(runtime: &Runtime, spawn: Spawn) -> (Fixture, Receiver<(u32, JoinHandle<()>)>) {
    let (handle, (sender, spawned)) = (runtime.handle().clone(), channel());
    let executor = move |job: Job| {
        let id = job.id;
        let _ = sender.send((id, spawn(&handle, job)));
    };
    (Fixture::new(executor), spawned)
}

#[test]
fn spawned_tasks_run_once_and_the_runtime_contains_and_reports_their_panics() {
    for spawn in SPAWNS {
        let runtime = runtime();
        let (fixture, spawned) = spawning(&runtime, spawn);
        fixture.expire(0..500);
        ended(&fixture.book, 0..500, run);
        for (id, handle) in spawned.try_iter() {
            let result = runtime.block_on(handle);
            assert_eq!(result.is_err_and(|error| error.is_panic()), panics(id), "job {id}");
        }
        assert_eq!(fixture.failures(), (0, 0), "the timer has handed them on, and sees nothing");
    }
}

/// A runtime that was shut down drops what is spawned, and says so to nobody but a join handle.
#[test]
fn what_is_spawned_on_a_runtime_that_was_shut_down_is_dropped_and_the_timer_goes_on() {
    for spawn in SPAWNS {
        let runtime = runtime();
        let (fixture, spawned) = spawning(&runtime, spawn);
        fixture.expire(0..1);
        ended(&fixture.book, 0..1, run);
        runtime.shutdown_timeout(HANG);
        fixture.expire(1..10);
        ended(&fixture.book, 0..10, |id| if id == 0 { End::Ran } else { End::Dropped });
        drop(spawned);
        assert_eq!(fixture.failures(), (0, 0));
    }
}

/// Returns a timer whose jobs go through a channel for `room` of them to a task that spawns them.
fn feed(runtime: &Runtime, room: usize) -> Fixture {
    let (sender, mut jobs) = mpsc::channel::<Job>(room);
    runtime.spawn(async move {
        while let Some(job) = jobs.recv().await {
            tokio::spawn(async { job.run() });
        }
    });
    Fixture::new(move |job| sender.try_send(job).map_err(mpsc::error::TrySendError::into_inner))
}

/// Runs what is on a runtime without threads of its own, until `done`.
fn drive(runtime: &Runtime, done: impl Fn() -> bool) {
    until("the runtime does it", || {
        runtime.block_on(tokio::task::yield_now());
        done()
    });
}

#[test]
fn a_channel_into_a_runtime_refuses_what_does_not_fit() {
    // Its only thread is this one: nothing runs outside of `block_on`.
    let runtime = Builder::new_current_thread().build().unwrap();
    let fixture = feed(&runtime, 4);
    fixture.expire(10..20);
    assert_eq!(fixture.failures(), (6, 0));
    drive(&runtime, || fixture.book.lock().unwrap().len() == 10);
    let refused = |id: u32| if id < 14 { run(id) } else { End::Refused };
    ended(&fixture.book, 10..20, refused);
}

#[test]
fn a_channel_into_a_runtime_hands_everything_back_once_that_was_shut_down() {
    let runtime = runtime();
    let fixture = feed(&runtime, 1000);
    fixture.expire(0..100);
    ended(&fixture.book, 0..100, run);
    runtime.shutdown_timeout(HANG);
    fixture.expire(100..200);
    assert_eq!(fixture.failures(), (100, 0));
    ended(&fixture.book, 0..200, |id| if id < 100 { run(id) } else { End::Refused });
}
