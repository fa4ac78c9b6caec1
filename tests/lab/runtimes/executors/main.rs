//! Closures as executors: tokio, rayon, and a channel into the caller's own loop. Time is a
//! `ManualClock`: what expires, expires in `expire`.

mod pool;
#[path = "../../../common/until.rs"]
mod until;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{Executor, ManualClock, Timer, TimerEntry};
pub(crate) use until::until;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// What became of a job. Each ends once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Ran,
    Panicked,
    Refused,
    Dropped,
}

/// What became of each job, in the order in which they ended.
pub(crate) type Book = Arc<Mutex<Vec<(u32, End)>>>;

/// A task that books its end.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: u32,
    book: Option<Book>,
}

impl Job {
    pub(crate) fn new(id: u32, book: &Book) -> Self {
        Job { id, book: Some(Arc::clone(book)) }
    }

    fn end(&mut self, end: End) {
        if let Some(book) = self.book.take() {
            book.lock().unwrap().push((self.id, end));
        }
    }

    /// Runs the job. Every tenth panics.
    pub(crate) fn run(mut self) {
        if panics(self.id) {
            self.end(End::Panicked);
            panic!("job {}, which is what the test is about", self.id);
        }
        self.end(End::Ran);
    }

    pub(crate) fn refuse(mut self) {
        self.end(End::Refused);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

pub(crate) fn panics(id: u32) -> bool {
    id % 10 == 3
}

pub(crate) struct Fixture {
    pub(crate) timer: Timer<Job>,
    pub(crate) clock: ManualClock,
    pub(crate) book: Book,
}

impl Fixture {
    pub(crate) fn new(executor: impl Executor<Job>) -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().clock(clock.clone()).executor(executor);
        let timer = builder.on_refused(Job::refuse).build().unwrap();
        Fixture { timer, clock, book: Book::default() }
    }

    /// Lets jobs of these numbers expire, one each millisecond.
    pub(crate) fn expire(&self, ids: std::ops::Range<u32>) {
        for (n, id) in (1..).zip(ids.clone()) {
            let _ = self.timer.add(TimerEntry::after(MS * n, Job::new(id, &self.book))).unwrap();
        }
        self.clock.advance(MS * ids.len() as u32);
        assert_eq!(self.timer.advance_clock(Duration::ZERO), ids.len());
        self.timer.assert_invariants();
    }

    /// Returns how many refusals and panics the timer has seen.
    pub(crate) fn failures(&self) -> (u64, u64) {
        let stats = self.timer.stats();
        (stats.refused, stats.panicked)
    }
}

/// Waits until the jobs of these numbers, and no others, have ended, each once, and as `end` says.
pub(crate) fn ended(book: &Book, ids: std::ops::Range<u32>, end: impl Fn(u32) -> End) {
    until("all jobs end", || book.lock().unwrap().len() >= ids.len());
    let mut ends = book.lock().unwrap().clone();
    ends.sort_unstable_by_key(|(id, _)| *id);
    assert!(ends.iter().copied().eq(ids.map(|id| (id, end(id)))), "{ends:?}");
}

/// Returns how a job ends that an executor has run.
pub(crate) fn run(id: u32) -> End {
    if panics(id) { End::Panicked } else { End::Ran }
}

/// Returns a timer whose jobs go into a channel for `room` of them.
fn channel(room: usize) -> (Fixture, Receiver<Job>) {
    let (sender, jobs) = sync_channel(room);
    let executor = move |job| {
        sender.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    };
    (Fixture::new(executor), jobs)
}

#[test]
fn a_full_channel_hands_the_task_back_and_takes_more_when_the_loop_has_gone_on() {
    let (fixture, jobs) = channel(4);
    for round in 0..5 {
        fixture.book.lock().unwrap().clear();
        fixture.expire(10..20);
        assert_eq!(fixture.failures(), (6 * (round + 1), 0));
        jobs.try_iter().for_each(|job| drop(catch_unwind(AssertUnwindSafe(|| job.run()))));
        ended(&fixture.book, 10..20, |id| if id < 14 { run(id) } else { End::Refused });
    }
}

#[test]
fn a_shutdown_of_the_timer_leaves_the_loop_what_it_has_and_its_end_ends_the_loop() {
    let (fixture, jobs) = channel(1000);
    fixture.expire(0..3);
    let _ = fixture.timer.add(TimerEntry::after(MS, Job::new(3, &fixture.book))).unwrap();
    assert!(fixture.timer.shutdown().iter().map(|entry| entry.task().id).eq([3]));
    (0..3).for_each(|_| jobs.try_recv().unwrap().run());
    assert_eq!(jobs.try_recv().map(drop), Err(TryRecvError::Empty), "the executor is there");
    let Fixture { timer, book, .. } = fixture;
    drop(timer);
    assert_eq!(jobs.try_recv().map(drop), Err(TryRecvError::Disconnected), "the loop ends");
    ended(&book, 0..4, |id| if id == 3 { End::Dropped } else { End::Ran });
}
