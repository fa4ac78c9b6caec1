//! The world of a model: a timer on a manual clock, whose book holds it to its promises.

use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;
use shuttle::thread::ThreadId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tickwheel::{
    AddError, BuildError, Cancel, ManualClock, Timeout, Timer, TimerBuilder, TimerEntry, When,
};

/// A timer on a manual clock, with wheels of four slots and a tick of a nanosecond, and its book.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) timer: Timer<Job>,
    pub(crate) clock: ManualClock,
    start: Instant,
    pub(crate) book: Arc<Book>,
}

impl World {
    /// Creates a world whose timer is built by `build`.
    pub(crate) fn new(
        build: impl FnOnce(TimerBuilder<Job>) -> Result<Timer<Job>, BuildError>,
    ) -> Self {
        let clock = ManualClock::new();
        let book = Arc::new(Book::default());
        let start = clock.now();
        let time = clock.clone();
        let run = move |mut job: Job| {
            let at = nanos(time.now() - start);
            let then = job.then.take();
            job.end(End::Fired {
                at,
                by: thread::current().id(),
            });
            then.into_iter().for_each(|then| then());
        };
        let builder = Timer::builder()
            .tick(Duration::from_nanos(1))
            .wheel_size(4)
            .shards(1);
        let timer = build(builder.clock(clock.clone()).executor(run)).expect("it can be built");
        World {
            timer,
            clock,
            start,
            book,
        }
    }

    /// Creates a world that is driven by hand.
    pub(crate) fn by_hand() -> Self {
        Self::new(TimerBuilder::build)
    }

    /// Creates a world with a reaper.
    pub(crate) fn with_reaper() -> Self {
        Self::new(TimerBuilder::start)
    }

    pub(crate) fn now(&self) -> u64 {
        nanos(self.clock.now() - self.start)
    }

    pub(crate) fn pass(&self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
    }

    /// Adds timer `id`, `delay` from now.
    pub(crate) fn add(&self, id: u32, delay: u64) -> Timeout<Job> {
        self.try_add(id, delay).expect("it is accepted")
    }

    /// Adds it, unless it is refused.
    pub(crate) fn try_add(&self, id: u32, delay: u64) -> Option<Timeout<Job>> {
        let entry = TimerEntry::after(Duration::from_nanos(delay), self.job(id, || ()));
        self.offer(id, self.now() + delay, entry, || self.now() + delay)
    }

    /// Adds timer `id` at time `at`.
    pub(crate) fn add_at(&self, id: u32, at: u64) -> Timeout<Job> {
        self.add_with(id, at, || ())
    }

    /// Adds a timer that runs `then` once it has fired.
    pub(crate) fn add_with(
        &self,
        id: u32,
        at: u64,
        then: impl FnOnce() + Send + 'static,
    ) -> Timeout<Job> {
        let entry = TimerEntry::at(self.start + Duration::from_nanos(at), self.job(id, then));
        self.offer(id, at, entry, || at).expect("it is accepted")
    }

    fn job(&self, id: u32, then: impl FnOnce() + Send + 'static) -> Job {
        Job {
            id,
            book: Some(Arc::clone(&self.book)),
            then: Some(Box::new(then)),
        }
    }

    fn offer(
        &self,
        id: u32,
        earliest: u64,
        entry: TimerEntry<Job>,
        latest: impl FnOnce() -> u64,
    ) -> Option<Timeout<Job>> {
        self.book.write(id, |record| record.earliest = earliest);
        match self.timer.add(entry) {
            Ok(timeout) => {
                let latest = latest();
                self.book.write(id, |record| record.latest = latest);
                Some(timeout)
            }
            Err(AddError::Full(entry) | AddError::Shutdown(entry)) => {
                entry.into_inner().into_task().end(End::Refused);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Cancels timer `id`; what the timer answers, without the task.
    pub(crate) fn cancel(&self, id: u32, timeout: &Timeout<Job>) -> Cancel<()> {
        self.book.write(id, |record| record.latest = OPEN);
        match timeout.cancel() {
            Cancel::Cancelled(mut job) => {
                assert_eq!(job.id, id, "another timer was cancelled");
                job.end(End::Cancelled);
                Cancel::Cancelled(())
            }
            Cancel::Expired => Cancel::Expired,
            Cancel::AlreadyCancelled => Cancel::AlreadyCancelled,
        }
    }

    /// Moves timer `id` to `delay` from now, or with `touch` to no earlier than it was.
    pub(crate) fn reschedule(
        &self,
        id: u32,
        timeout: &Timeout<Job>,
        delay: u64,
        touch: bool,
    ) -> bool {
        let from = self.now() + delay;
        let old = self
            .book
            .write(id, |record| std::mem::replace(&mut record.latest, OPEN));
        let by = Duration::from_nanos(delay);
        let moved = if touch {
            timeout.touch(by)
        } else {
            timeout.reschedule(by)
        };
        let until = self.now() + delay;
        if moved {
            self.book.write(id, |record| {
                record.moves += 1;
                record.earliest = if touch {
                    from.max(record.earliest)
                } else {
                    from
                };
                record.latest = if touch { until.max(old) } else { until };
            });
        }
        moved
    }

    /// Advances the timer, which fires everything that is due when it begins. Only if no other
    /// thread advances it meanwhile: that one may have something due in its hands.
    pub(crate) fn turn(&self) {
        let now = self.now();
        let due = self.book.overdue(now);
        self.timer.advance_clock(Duration::ZERO);
        let left = self.book.overdue(now);
        assert!(
            due.iter().all(|timer| !left.contains(timer)),
            "due {due:?}, left {left:?}"
        );
    }

    /// Lets so much time pass and takes a turn, one step after the other.
    pub(crate) fn turns(&self, steps: impl IntoIterator<Item = u64>) {
        for step in steps {
            self.pass(step);
            self.turn();
        }
    }

    /// Shuts the timer down; what it returns ends here.
    pub(crate) fn shutdown(&self) {
        let mut last = self.start;
        for entry in self.timer.shutdown() {
            let When::At(deadline) = entry.when() else {
                panic!("not a time")
            };
            assert!(last <= deadline, "not ordered by deadline");
            last = deadline;
            entry.into_task().end(End::Returned);
        }
    }

    /// Waits until these timers have ended, shuts down and settles.
    pub(crate) fn end_after(&self, ids: impl IntoIterator<Item = u32>) -> String {
        ids.into_iter().for_each(|id| self.book.wait_for(id));
        self.shutdown();
        self.settle()
    }

    /// Returns whether timer `id` has ended.
    pub(crate) fn has_ended(&self, id: u32) -> bool {
        self.book.write(id, |record| !record.ends.is_empty())
    }

    /// Asserts that each thread has fired its timers in the order of the deadlines.
    pub(crate) fn assert_fired_in_order(&self) {
        let records = self.book.records.lock().unwrap();
        let mut last = BTreeMap::new();
        for (by, id) in &*self.book.fired.lock().unwrap() {
            let deadline = records[id].earliest;
            let last = last.insert(format!("{by:?}"), deadline);
            assert!(last <= Some(deadline), "timer {id} was overtaken");
        }
    }

    /// Fires at quiescence what is left, and settles the book.
    pub(crate) fn finish(&self) -> String {
        self.timer.assert_invariants();
        self.turn();
        self.timer.assert_invariants();
        self.pass(1 << 40);
        self.turn();
        assert_eq!(
            self.timer.advance_clock(Duration::ZERO),
            0,
            "one call fires all that is due"
        );
        self.settle()
    }

    /// Checks at quiescence, with nothing pending, that every timer has ended once, not too early,
    /// and that the statistics agree. Returns how they ended.
    pub(crate) fn settle(&self) -> String {
        self.timer.assert_invariants();
        let stats = self.timer.stats();
        let (ends, [fired, cancelled, returned]) = self.book.settle();
        assert_eq!(self.timer.len(), 0);
        assert_eq!((stats.pending, stats.panicked, stats.refused), (0, 0, 0));
        assert_eq!((stats.expired, stats.lateness.count()), (fired, fired));
        assert_eq!((stats.cancelled, stats.returned), (cancelled, returned));
        assert_eq!(stats.added, fired + cancelled + returned);
        format!(
            "{ends}{} cascaded, {} wakeups",
            stats.cascaded, stats.wakeups
        )
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("it is short")
}

/// How a timer ended: exactly one of these for each that was offered to the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fired {
        at: u64,
        by: ThreadId,
    },
    Cancelled,
    Returned,
    Refused,
    /// With the timer that it was pending in.
    Dropped,
}

/// No deadline that the timer has to keep: not added yet, or somebody is changing it.
pub(crate) const OPEN: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Record {
    /// It may not fire earlier than this...
    pub(crate) earliest: u64,
    /// ...and an `advance_clock` that begins at or after this fires it.
    pub(crate) latest: u64,
    /// How often it was moved.
    pub(crate) moves: u32,
    pub(crate) ends: Vec<End>,
}

/// What was offered to a timer, and what became of it.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) records: Mutex<BTreeMap<u32, Record>>,
    ended: Condvar,
    /// In order. std's lock, because it is never held for a step of a schedule.
    pub(crate) fired: std::sync::Mutex<Vec<(ThreadId, u32)>>,
    /// From when on nothing may fire.
    closed: AtomicBool,
}

impl Book {
    pub(crate) fn end(&self, id: u32, end: End) {
        let mut records = self.records.lock().unwrap();
        records.get_mut(&id).expect("it was opened").ends.push(end);
        if let End::Fired { by, .. } = end {
            assert!(
                !self.closed.load(Ordering::Relaxed),
                "timer {id} fired after the end"
            );
            self.fired.lock().unwrap().push((by, id));
        }
        self.ended.notify_all();
    }

    /// Notes that nothing may fire from now on: a shutdown has returned, or the last timer was
    /// dropped.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until timer `id` has ended.
    pub(crate) fn wait_for(&self, id: u32) {
        let mut records = self.records.lock().unwrap();
        while records.get(&id).is_none_or(|record| record.ends.is_empty()) {
            records = self.ended.wait(records).unwrap();
        }
    }

    /// Checks that every timer has ended once, and that none has fired too early. Returns how they
    /// ended, and how many were fired, cancelled and returned.
    pub(crate) fn settle(&self) -> (String, [u64; 3]) {
        let mut ends = String::new();
        let mut counts = [0; 3];
        for (id, record) in &*self.records.lock().unwrap() {
            let [end] = record.ends[..] else {
                panic!("timer {id} ends not once: {record:?}")
            };
            match end {
                End::Fired { at, .. } => {
                    assert!(at >= record.earliest, "timer {id} fired early: {record:?}");
                    counts[0] += 1;
                }
                End::Cancelled => counts[1] += 1,
                End::Returned => counts[2] += 1,
                End::Refused | End::Dropped => (),
            }
            ends += &format!("{id} {end:?}; ");
        }
        (ends, counts)
    }

    pub(crate) fn write<R>(&self, id: u32, write: impl FnOnce(&mut Record) -> R) -> R {
        let mut records = self.records.lock().unwrap();
        let new = Record {
            earliest: 0,
            latest: OPEN,
            moves: 0,
            ends: Vec::new(),
        };
        write(records.entry(id).or_insert(new))
    }

    /// Returns those that have to fire by `now` and have not ended, and how often each was moved.
    pub(crate) fn overdue(&self, now: u64) -> Vec<(u32, u32)> {
        let records = self.records.lock().unwrap();
        let overdue = records
            .iter()
            .filter(|(_, r)| r.latest <= now && r.ends.is_empty());
        overdue.map(|(id, record)| (*id, record.moves)).collect()
    }
}

pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// The task of a model's timers. Books its end, also when it is dropped.
pub(crate) struct Job {
    pub(crate) id: u32,
    pub(crate) book: Option<Arc<Book>>,
    pub(crate) then: Option<Then>,
}

impl Job {
    pub(crate) fn end(&mut self, end: End) {
        self.book.take().expect("a job ends once").end(self.id, end);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.book.is_some() && !std::thread::panicking() {
            self.end(End::Dropped);
        }
    }
}
