//! The world of the models of keyed timers.

use crate::futures::builder;
use crate::limbo::KeyHasher;
use crate::world::{Book, End, Job};
use shuttle::thread;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{AddError, ManualClock, Task, Timer, TimerBuilder, TimerEntry};

pub(crate) type Keyed = KeyedTimer<u64, Job, KeyHasher>;

/// Keyed timers on a timer that is driven by hand, with a tick of a nanosecond, and their book.
pub(crate) struct Stand {
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
    pub(crate) start: Instant,
    pub(crate) book: Arc<Book>,
    pub(crate) keyed: Keyed,
}

impl Stand {
    pub(crate) fn new(build: impl FnOnce(TimerBuilder<Task>) -> TimerBuilder<Task>) -> Arc<Self> {
        let (builder, clock) = builder();
        let book = Arc::new(Book::default());
        let start = clock.now();
        let time = clock.clone();
        let timer = build(builder).build().expect("it can be built");
        let expired = move |_, mut job: Job| {
            let at = (time.now() - start).as_nanos() as u64;
            let then = job.then.take();
            job.end(End::Fired {
                at,
                by: thread::current().id(),
            });
            then.into_iter().for_each(|then| then());
        };
        let keyed = Keyed::with_hasher(&timer, KeyHasher::default(), expired);
        Arc::new(Stand {
            timer,
            clock,
            start,
            book,
            keyed,
        })
    }

    /// Creates a stand whose timer runs its tasks in place.
    pub(crate) fn in_place() -> Arc<Self> {
        Self::new(|builder| builder)
    }

    /// Creates a stand whose timer hands its tasks on; [`run`] runs them.
    pub(crate) fn queued() -> (Arc<Self>, Arc<Queue>) {
        let queue = Arc::new(Queue::default());
        let tasks = Arc::clone(&queue);
        let push = move |task| tasks.lock().unwrap().push(task);
        (Self::new(|builder| builder.executor(push)), queue)
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock.now() - self.start).as_nanos() as u64
    }

    pub(crate) fn turn(&self) {
        self.timer.advance_clock(Duration::ZERO);
    }

    /// Lets time pass and expires what is due.
    pub(crate) fn pass(&self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
        self.turn();
    }

    /// Returns task `id`, for time `at`. It runs `then` once it has expired.
    pub(crate) fn entry(
        &self,
        id: u32,
        at: u64,
        then: impl FnOnce() + Send + 'static,
    ) -> TimerEntry<Job> {
        self.book.write(id, |record| record.earliest = at);
        let job = Job {
            id,
            book: Some(Arc::clone(&self.book)),
            then: Some(Box::new(then)),
        };
        TimerEntry::at(self.start + Duration::from_nanos(at), job)
    }

    /// Returns whether it replaced a task, which ends here.
    pub(crate) fn schedule(&self, key: u64, id: u32, at: u64) -> bool {
        returned(accepted(self.add(key, self.entry(id, at, || ()))))
    }

    pub(crate) fn add(
        &self,
        key: u64,
        entry: TimerEntry<Job>,
    ) -> Result<Option<Job>, AddError<Job>> {
        self.keyed.add(key, entry.when(), entry.into_task())
    }

    /// Returns whether the key had no task.
    pub(crate) fn add_if_absent(&self, key: u64, id: u32, at: u64) -> bool {
        let entry = self.entry(id, at, || ());
        match self.keyed.entry(key) {
            Entry::Vacant(vacant) => {
                returned(accepted(vacant.add(entry.when(), entry.into_task())));
                true
            }
            Entry::Occupied(_) => {
                entry.into_task().end(End::Refused);
                false
            }
        }
    }

    /// Returns whether it took a task back, which ends here.
    pub(crate) fn cancel(&self, key: u64) -> bool {
        returned(self.keyed.cancel(&key))
    }

    /// Asserts at quiescence that each key is one timer.
    pub(crate) fn assert_sound(&self) {
        self.keyed.assert_invariants();
        self.timer.assert_invariants();
        assert_eq!(self.timer.len(), self.keyed.len(), "timers and keys");
    }

    /// Expires at `at`, at quiescence, what is left. Checks that every task has ended once, not too
    /// early and for a definite reason, and that nothing is left. Returns how they ended.
    pub(crate) fn finish(&self, at: u64) -> String {
        self.assert_sound();
        self.pass(at - self.now());
        self.settle()
    }

    pub(crate) fn settle(&self) -> String {
        let (ends, _) = self.book.settle();
        assert!(!ends.contains("Dropped"), "{ends}");
        self.assert_sound();
        assert!(
            self.timer.is_empty() && self.keyed.is_empty(),
            "something is left behind"
        );
        assert_eq!(self.timer.stats().panicked, 0);
        ends
    }

    pub(crate) fn ends(&self, id: u32) -> Vec<End> {
        self.book.write(id, |record| record.ends.clone())
    }

    pub(crate) fn has_fired(&self, id: u32) -> bool {
        matches!(self.ends(id)[..], [End::Fired { .. }])
    }
}

/// Tasks on their way. std's lock, because it is never held for a step of a schedule.
pub(crate) type Queue = std::sync::Mutex<Vec<Task>>;

pub(crate) fn run(queue: &Queue) {
    let tasks = std::mem::take(&mut *queue.lock().unwrap());
    tasks.into_iter().for_each(Task::run);
}

/// Ends a task that was taken back.
pub(crate) fn returned(job: Option<Job>) -> bool {
    job.is_some_and(|mut job| {
        job.end(End::Returned);
        true
    })
}

/// Unwraps what the timer accepted.
pub(crate) fn accepted<R>(answer: Result<R, AddError<Job>>) -> R {
    answer.unwrap_or_else(|error| panic!("{error}"))
}
