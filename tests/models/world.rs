//! The world of a model: a timer on a manual clock, whose book holds it to its promises.

use crate::book::{Book, End, Job, OPEN};
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::Arc;
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
        let (clock, book) = (ManualClock::new(), Arc::new(Book::default()));
        let (start, time) = (clock.now(), clock.clone());
        let run = move |mut job: Job| {
            let at = nanos(time.now() - start);
            let then = job.then.take();
            job.end(End::Fired { at, by: thread::current().id() });
            then.into_iter().for_each(|then| then());
        };
        let builder = Timer::builder().tick(Duration::from_nanos(1)).wheel_size(4).shards(1);
        let timer = build(builder.clock(clock.clone()).executor(run)).expect("it can be built");
        World { timer, clock, start, book }
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
        Job { id, book: Some(Arc::clone(&self.book)), then: Some(Box::new(then)) }
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
                entry.into_task().end(End::Refused);
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
        let old = self.book.write(id, |record| std::mem::replace(&mut record.latest, OPEN));
        let by = Duration::from_nanos(delay);
        let moved = if touch { timeout.touch(by) } else { timeout.reschedule(by) };
        let until = self.now() + delay;
        if moved {
            self.book.write(id, |record| {
                record.moves += 1;
                record.earliest = if touch { from.max(record.earliest) } else { from };
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
        assert!(due.iter().all(|timer| !left.contains(timer)), "due {due:?}, left {left:?}");
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
            let When::At(deadline) = entry.when() else { panic!("not a time") };
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
        assert_eq!(self.timer.advance_clock(Duration::ZERO), 0, "one call fires all that is due");
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
        format!("{ends}{} cascaded, {} wakeups", stats.cascaded, stats.wakeups)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("it is short")
}
