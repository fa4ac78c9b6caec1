//! Executors on rayon and tokio: tasks as spawned futures, on threads for blocking work, and by way
//! of a channel. Time is a `ManualClock`: what expires, expires in `expire`.

#[path = "../../common/until.rs"]
mod until;

use rayon::ThreadPoolBuilder;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{Executor, ManualClock, Timer, TimerEntry};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use until::until;

const MS: Duration = Duration::from_millis(1);
const HANG: Duration = Duration::from_secs(20);

/// What became of a job. Each ends once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Ran,
    Panicked,
    Refused,
    Dropped,
}

/// What became of each job, in the order in which they ended.
type Book = Arc<Mutex<Vec<(u32, End)>>>;

/// A task that books its end.
#[derive(Debug)]
struct Job {
    id: u32,
    book: Option<Book>,
}

impl Job {
    fn new(id: u32, book: &Book) -> Self {
        Job {
            id,
            book: Some(Arc::clone(book)),
        }
    }

    fn end(&mut self, end: End) {
        if let Some(book) = self.book.take() {
            book.lock().unwrap().push((self.id, end));
        }
    }

    /// Runs the job. Every tenth panics.
    fn run(mut self) {
        if panics(self.id) {
            self.end(End::Panicked);
            panic!("job {}, which is what the test is about", self.id);
        }
        self.end(End::Ran);
    }

    fn refuse(mut self) {
        self.end(End::Refused);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

fn panics(id: u32) -> bool {
    id % 10 == 3
}

struct Fixture {
    timer: Timer<Job>,
    clock: ManualClock,
    book: Book,
}

impl Fixture {
    fn new(executor: impl Executor<Job>) -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().clock(clock.clone()).executor(executor);
        let timer = builder.on_refused(Job::refuse).build().unwrap();
        Fixture {
            timer,
            clock,
            book: Book::default(),
        }
    }

    /// Lets jobs of these numbers expire, one each millisecond.
    fn expire(&self, ids: std::ops::Range<u32>) {
        for (n, id) in (1..).zip(ids.clone()) {
            let _ = self
                .timer
                .add(TimerEntry::after(MS * n, Job::new(id, &self.book)))
                .unwrap();
        }
        self.clock.advance(MS * ids.len() as u32);
        assert_eq!(self.timer.advance_clock(Duration::ZERO), ids.len());
        self.timer.assert_invariants();
    }

    /// Returns how many refusals and panics the timer has seen.
    fn failures(&self) -> (u64, u64) {
        let stats = self.timer.stats();
        (stats.refused, stats.panicked)
    }
}

/// Waits until the jobs of these numbers, and no others, have ended, each once, and as `end` says.
fn ended(book: &Book, ids: std::ops::Range<u32>, end: impl Fn(u32) -> End) {
    until("all jobs end", || book.lock().unwrap().len() >= ids.len());
    let mut ends = book.lock().unwrap().clone();
    ends.sort_unstable_by_key(|(id, _)| *id);
    assert!(
        ends.iter().copied().eq(ids.map(|id| (id, end(id)))),
        "{ends:?}"
    );
}

/// Returns how a job ends that an executor has run.
fn run(id: u32) -> End {
    if panics(id) { End::Panicked } else { End::Ran }
}

/// Without a handler of panics, one would end the process.
#[test]
fn spawned_tasks_run_once_and_the_pool_contains_and_reports_their_panics() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let handler = move |_| _ = counted.fetch_add(1, Relaxed);
    let pool = ThreadPoolBuilder::new()
        .num_threads(2)
        .panic_handler(handler)
        .build()
        .unwrap();
    let fixture = Fixture::new(move |job: Job| pool.spawn(|| job.run()));
    fixture.expire(0..500);
    ended(&fixture.book, 0..500, run);
    until("the handler has seen every panic", || {
        count.load(Relaxed) == 50
    });
    assert_eq!(
        fixture.failures(),
        (0, 0),
        "the timer has handed them on, and sees nothing"
    );
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .build()
        .unwrap()
}

/// How a job is given to a runtime.
type Spawn = fn(&Handle, Job) -> JoinHandle<()>;

const SPAWNS: [Spawn; 2] = [
    |runtime, job| runtime.spawn(async { job.run() }),
    |runtime, job| runtime.spawn_blocking(|| job.run()),
];

/// Returns a timer that spawns its jobs on `runtime`, and the join handle of each of them.
fn spawning(runtime: &Runtime, spawn: Spawn) -> (Fixture, Receiver<(u32, JoinHandle<()>)>) {
    let handle = runtime.handle().clone();
    let (sender, spawned) = channel();
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
            assert_eq!(
                result.is_err_and(|error| error.is_panic()),
                panics(id),
                "job {id}"
            );
        }
        assert_eq!(
            fixture.failures(),
            (0, 0),
            "the timer has handed them on, and sees nothing"
        );
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
        ended(&fixture.book, 0..10, |id| {
            if id == 0 { End::Ran } else { End::Dropped }
        });
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
    Fixture::new(move |job| {
        sender
            .try_send(job)
            .map_err(mpsc::error::TrySendError::into_inner)
    })
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
    ended(&fixture.book, 0..200, |id| {
        if id < 100 { run(id) } else { End::Refused }
    });
}

/// A burst that a channel has room for, and a runtime that has not come to it yet: its only thread
/// is this one.
fn burst() -> (Runtime, Fixture, JoinHandle<()>) {
    let runtime = Builder::new_current_thread().build().unwrap();
    let (sender, mut jobs) = mpsc::channel::<Job>(1024);
    let receives = runtime.spawn(async move {
        while let Some(mut job) = jobs.recv().await {
            job.end(End::Ran);
        }
    });
    let send = move |job| {
        sender
            .try_send(job)
            .map_err(mpsc::error::TrySendError::into_inner)
    };
    let fixture = Fixture::new(send);
    fixture.expire(0..1_010);
    (runtime, fixture, receives)
}

#[test]
fn what_is_in_a_channel_is_received_if_the_timer_ends_before_the_runtime() {
    let (runtime, fixture, receives) = burst();
    assert!(fixture.timer.shutdown().is_empty());
    drop(fixture.timer);
    runtime.block_on(receives).unwrap();
    ended(&fixture.book, 0..1_010, |_| End::Ran);
}

#[test]
fn what_is_in_a_channel_is_dropped_with_its_runtime() {
    let (runtime, fixture, _) = burst();
    drop(runtime);
    ended(&fixture.book, 0..1_010, |_| End::Dropped);
    assert_eq!(fixture.failures(), (0, 0));
}
