//! rayon and tokio: a pool of threads, with and without a limit to what waits for it; tasks as
//! spawned futures, on threads for blocking work, and by way of a channel.

use crate::{End, Fixture, HANG, Job, MS, ended, panics, run, until};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use tickwheel::{Executor, TimerEntry};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Returns a pool, and how many panics it has seen. Without a handler a panic would end the
/// process.
fn pool() -> (ThreadPool, Arc<AtomicUsize>) {
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&panics);
    let count = move |_| _ = counted.fetch_add(1, Relaxed);
    let builder = ThreadPoolBuilder::new().num_threads(2).panic_handler(count);
    (builder.build().unwrap(), panics)
}

#[test]
fn spawned_tasks_run_once_and_the_pool_contains_and_reports_their_panics() {
    let (pool, count) = pool();
    let fixture = Fixture::new(move |job: Job| pool.spawn(|| job.run()));
    fixture.expire(0..500);
    ended(&fixture.book, 0..500, run);
    until("the handler has seen every panic", || count.load(Relaxed) == 50);
    assert_eq!(fixture.failures(), (0, 0), "the timer has handed them on, and sees nothing");
}

/// Takes at most `room` jobs that have not ended. One that panics gives its place back as well.
fn bounded(pool: ThreadPool, room: usize) -> impl Executor<Job> {
    let places = Arc::new(());
    move |job: Job| {
        // The executor's own, and one for each job. Only the timer's thread adds one.
        if Arc::strong_count(&places) > room {
            return Err(job);
        }
        let place = Arc::clone(&places);
        pool.spawn(move || {
            let _place = place;
            job.run();
        });
        Ok(())
    }
}

/// Lets the pool's two threads wait until the sender goes, or sends to each.
fn block(pool: &ThreadPool, release: Receiver<()>) {
    let release = Arc::new(Mutex::new(release));
    for _ in 0..2 {
        let release = Arc::clone(&release);
        pool.spawn(move || _ = release.lock().unwrap().recv());
    }
}

#[test]
fn a_pool_with_a_limit_refuses_what_does_not_fit_and_has_room_again_after_panics() {
    let (pool, _) = pool();
    let (release, released) = channel();
    block(&pool, released);
    let fixture = Fixture::new(bounded(pool, 4));
    fixture.expire(0..10); // The fourth, number 3, will panic.
    assert_eq!(fixture.failures(), (6, 0));
    drop(release);
    ended(&fixture.book, 0..10, |id| if id < 4 { run(id) } else { End::Refused });
    for id in 10..30 {
        until("there is room", || {
            let before = fixture.timer.stats().refused;
            let again = Job::new(id, &Arc::default());
            let _ = fixture.timer.add(TimerEntry::after(MS, again)).unwrap();
            fixture.clock.advance(MS);
            fixture.timer.advance_clock(MS);
            fixture.timer.stats().refused == before
        });
    }
}

#[test]
fn a_pool_that_goes_with_its_timer_runs_what_it_has() {
    let (pool, _) = pool();
    let (release, released) = channel();
    block(&pool, released);
    let fixture = Fixture::new(move |job: Job| pool.spawn(|| job.run()));
    fixture.expire(0..20);
    let _ = fixture.timer.add(TimerEntry::after(MS, Job::new(20, &fixture.book))).unwrap();
    let pending = fixture.timer.shutdown();
    assert!(pending.iter().map(|entry| entry.task().id).eq([20]), "what had not expired");
    drop(pending);
    let Fixture { timer, book, .. } = fixture;
    drop(timer); // And the pool with it, while its threads are busy: nobody waits for them.
    assert_eq!(*book.lock().unwrap(), [(20, End::Dropped)]);
    drop(release);
    ended(&book, 0..21, |id| if id == 20 { End::Dropped } else { run(id) });
}

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
