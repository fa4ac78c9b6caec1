//! Keyed timers against a model that anybody can check by reading, an ordered map. Random steps,
//! biased to the edges of ticks, slots and levels, are done to both; after each all that can be
//! seen is compared. The executor is busy at times: keys leave at the flush, and what was flushed
//! waits in its queue.

use crate::busy::Busy;
use crate::times::{Config, How, Moment, NEVER, Span};
use quickcheck::{Arbitrary, Gen};
use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{AddError, ManualClock, Timer, TimerEntry, When};

/// What a key has.
struct Expected {
    task: u32,
    /// In nanoseconds since the timer was built.
    deadline: u64,
    /// The key has expired after the turn of this tick.
    by: u64,
}

impl Expected {
    fn new(task: u32, deadline: u64, now: &Moment) -> Self {
        let mut expected = Expected {
            task,
            deadline,
            by: 0,
        };
        expected.move_to(deadline, now);
        expected
    }

    fn move_to(&mut self, deadline: u64, now: &Moment) {
        self.deadline = deadline;
        let is_due = deadline <= now.nanos;
        self.by = if is_due {
            now.rounded_down()
        } else {
            now.tick_of(deadline)
        };
    }

    /// It stays where it is until that is looked at.
    fn extend(&mut self, deadline: u64, now: &Moment) {
        self.deadline = deadline;
        self.by = self.by.max(now.tick_of(deadline));
    }
}

struct Run {
    config: Config,
    keyed: KeyedTimer<u32, u32>,
    timer: Timer,
    clock: ManualClock,
    origin: Instant,
    now: Moment,
    expired: Arc<Mutex<Vec<(u32, u32)>>>,
    /// The executor.
    busy: Busy,
    model: BTreeMap<u32, Expected>,
    /// Keys that were flushed, whose closures have not been called.
    flushed: Vec<(u32, u32)>,
    tasks: u32,
}

impl Run {
    fn new(config: Config) -> Self {
        let clock = ManualClock::seeded(config.seed);
        let busy = Busy::default();
        let own = busy.clone();
        let builder = config
            .builder(&clock)
            .executor(move |task| own.execute(task));
        let timer = builder.build().expect("the options are in their ranges");
        let expired = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&expired);
        let tick = config.tick;
        let keyed = KeyedTimer::new(&timer, move |key, task| {
            sink.lock().unwrap().push((key, task));
            let (delay, task) = kept(task)?;
            Some((
                key,
                TimerEntry::after(Duration::from_nanos(delay * tick), task),
            ))
        });
        let origin = clock.now();
        let now = Moment::new(0, config.tick);
        let model = BTreeMap::new();
        let flushed = Vec::new();
        let tasks = 0;
        Run {
            config,
            keyed,
            timer,
            clock,
            origin,
            now,
            expired,
            busy,
            model,
            flushed,
            tasks,
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Add(key, span, how) => self.add(key, span, how),
            Step::AddIfAbsent(key, span, how) => self.add_if_absent(key, span, how),
            Step::Cancel(key) => {
                let expected = self.model.remove(&key).map(|expected| expected.task);
                assert_eq!(self.keyed.cancel(&key), expected, "cancel of {key}");
            }
            Step::Move(key, span, how, to) => self.move_to(key, span, how, to),
            Step::Clock(span) => self.set_clock(self.moment(span)),
            Step::Advance => self.advance(),
            Step::Follow => {
                if let Some(next) = self.timer.next_expiration() {
                    self.set_clock(nanos(next.saturating_duration_since(self.origin)));
                    self.advance();
                }
            }
            Step::CancelAll => self.cancel_all(),
            Step::Retain(kept) => self.retain(kept),
            Step::Busy => self.busy.begin(),
            Step::WorkOff => self.work_off(),
        }
        self.compare();
    }

    /// Returns the nanoseconds since the timer was built.
    fn moment(&self, span: Span) -> u64 {
        let like: Vec<u64> = self
            .model
            .values()
            .map(|expected| expected.deadline)
            .collect();
        span.resolve(self.now.nanos, &self.config, &like)
    }

    /// Returns what to tell the timer, and what it is to understand.
    fn when(&self, span: Span, how: How) -> (When, u64) {
        let (when, deadline) = how.when(self.moment(span), self.now.nanos, self.origin);
        (when, deadline.min(NEVER))
    }

    /// Returns what is seen of a key: nothing any more when its time is up.
    fn seen(&self, key: u32) -> Option<&Expected> {
        self.model
            .get(&key)
            .filter(|expected| expected.deadline > self.now.nanos)
    }

    fn has_room(&self) -> bool {
        self.config
            .max_pending
            .is_none_or(|max| self.model.len() < max)
    }

    fn add(&mut self, key: u32, span: Span, how: How) {
        let (when, deadline) = self.when(span, how);
        self.tasks += 1;
        let added = self.keyed.add(key, when, self.tasks);
        self.added(key, when, deadline, added);
    }

    fn add_if_absent(&mut self, key: u32, span: Span, how: How) {
        let (when, deadline) = self.when(span, how);
        self.tasks += 1;
        let is_absent = self.seen(key).is_none();
        let Entry::Vacant(vacant) = self.keyed.entry(key) else {
            return assert!(!is_absent, "{key} has no task");
        };
        assert!(is_absent, "{key} has a task");
        let added = vacant.add(when, self.tasks);
        self.added(key, when, deadline, added);
    }

    /// Follows an `add` of the latest task, which replaces what is there, seen or not.
    fn added(
        &mut self,
        key: u32,
        when: When,
        deadline: u64,
        added: Result<Option<u32>, AddError<u32>>,
    ) {
        let room = self.has_room();
        let task = self.tasks;
        match (added, self.model.get_mut(&key)) {
            (Ok(former), Some(expected)) => {
                assert_eq!(former, Some(expected.task), "the task that {key} had");
                expected.task = task;
                expected.move_to(deadline, &self.now);
            }
            (Ok(former), None) => {
                assert_eq!((former, room), (None, true), "{key} is new");
                self.insert(key, task, deadline);
            }
            (Err(AddError::Full(entry)), None) => {
                let entry = entry.into_inner();
                assert!(!room, "refused, and there is room");
                assert_eq!((entry.when(), entry.into_task()), (when, task));
            }
            (Err(error), _) => panic!("{error}"),
        }
    }

    fn insert(&mut self, key: u32, task: u32, deadline: u64) {
        self.model
            .insert(key, Expected::new(task, deadline, &self.now));
    }

    fn move_to(&mut self, key: u32, span: Span, how: How, to: To) {
        let (when, deadline) = self.when(span, how);
        let was_seen = match to {
            To::Later => self.keyed.touch(&key, when),
            To::Earlier => self.keyed.hasten(&key, when),
            To::Any => self.keyed.reschedule(&key, when),
        };
        assert_eq!(was_seen, self.seen(key).is_some(), "move of {key}");
        let Some(expected) = self.model.get_mut(&key).filter(|_| was_seen) else {
            return;
        };
        match to {
            To::Later if deadline > expected.deadline => expected.extend(deadline, &self.now),
            To::Earlier if deadline < expected.deadline => expected.move_to(deadline, &self.now),
            To::Any => expected.move_to(deadline, &self.now),
            To::Later | To::Earlier => (),
        }
    }

    fn set_clock(&mut self, now: u64) {
        self.clock
            .advance(Duration::from_nanos(now.saturating_sub(self.now.nanos)));
        self.now = Moment::new(nanos(self.clock.now() - self.origin), self.config.tick);
    }

    fn advance(&mut self) {
        self.timer.advance_clock(Duration::ZERO);
        if self.busy.is_busy() {
            self.leave();
        }
        let mut kept_now = Vec::new();
        let expired = mem::take(&mut *self.expired.lock().unwrap());
        for (key, task) in expired {
            let expected = self.model.remove(&key).expect("it has a task");
            assert_eq!(task, expected.task, "of {key}");
            assert!(expected.deadline <= self.now.nanos, "{key} is early");
            if let Some((delay, task)) = kept(task) {
                let deadline = self.now.nanos.saturating_add(delay * self.config.tick);
                self.insert(key, task, deadline.min(NEVER));
                // Without a delay it expires in this turn, if its tick was over, or in the next.
                kept_now.push(key);
            }
        }
        for (key, expected) in &self.model {
            let is_left = expected.by > self.now.rounded_down() || kept_now.contains(key);
            assert!(is_left, "{key} is late at {}", self.now.nanos);
        }
    }

    /// Follows the keys that a flush took out while the executor is busy.
    fn leave(&mut self) {
        let Run {
            keyed,
            model,
            flushed,
            now,
            ..
        } = self;
        model.retain(|key, expected| {
            let mut is_left = false; // Whether it is seen or not.
            keyed.cancel_if(key, |_, _| mem::replace(&mut is_left, true));
            if !is_left {
                assert!(expected.deadline <= now.nanos, "{key} is early");
                flushed.push((*key, expected.task));
            }
            is_left
        });
    }

    /// Has the executor run what waits. A key that is kept is added unless it is there by now.
    fn work_off(&mut self) {
        for task in self.busy.end() {
            task.run();
            let ran = self
                .expired
                .lock()
                .unwrap()
                .pop()
                .expect("its closure was called");
            let waited = self.flushed.iter().position(|flushed| *flushed == ran);
            let (key, task) = self.flushed.swap_remove(waited.expect("it was flushed"));
            if let Some((delay, task)) = kept(task).filter(|_| !self.model.contains_key(&key)) {
                let deadline = self.now.nanos.saturating_add(delay * self.config.tick);
                self.insert(key, task, deadline.min(NEVER));
            }
        }
        assert_eq!(self.flushed, [], "flushed, and never called");
    }

    fn cancel_all(&mut self) {
        let mut all = self.keyed.cancel_all();
        all.sort_unstable();
        let expected = mem::take(&mut self.model).into_iter();
        let expected: Vec<_> = expected
            .map(|(key, expected)| (key, expected.task))
            .collect();
        assert_eq!(all, expected);
    }

    /// Keeps the keys whose bits are set, also those whose time is up.
    fn retain(&mut self, kept: u8) {
        let is_kept = |key: u32| kept >> key & 1 == 1;
        let mut asked = Vec::new();
        self.keyed.retain(|key, task, _| {
            asked.push((*key, *task));
            is_kept(*key)
        });
        asked.sort_unstable();
        let expected = self.model.iter().map(|(key, it)| (*key, it.task));
        assert!(asked.iter().copied().eq(expected), "{asked:?}");
        self.model.retain(|key, _| is_kept(*key));
    }

    fn compare(&self) {
        assert_eq!(
            *self.expired.lock().unwrap(),
            [],
            "a task ran outside of advance_clock"
        );
        assert_eq!(
            (self.keyed.len(), self.timer.len()),
            (self.model.len(), self.model.len())
        );
        let instant = |expected: &Expected| {
            let comes = expected.deadline < NEVER;
            comes.then(|| self.origin + Duration::from_nanos(expected.deadline))
        };
        for key in 0..KEYS {
            let expected = self.seen(key);
            assert_eq!(self.keyed.contains(&key), expected.is_some(), "{key}");
            assert_eq!(
                self.keyed.deadline(&key),
                expected.and_then(instant),
                "deadline of {key}"
            );
        }
        let mut all = Vec::new();
        self.keyed
            .for_each(|key, task, at| all.push((*key, *task, at)));
        all.sort_unstable();
        let expected = self
            .model
            .keys()
            .filter_map(|key| Some((*key, self.seen(*key)?)));
        let expected = expected.map(|(key, it)| (key, it.task, instant(it)));
        assert!(all.iter().copied().eq(expected), "{all:?}");
        // Looks at every slot of every level.
        if self.config.wheel_size <= 64 || self.tasks % 8 == 0 {
            self.keyed.assert_invariants();
            self.timer.assert_invariants();
        }
    }
}

/// Returns whether a key that has expired with this task is kept, for how many ticks, and with
/// which task.
fn kept(task: u32) -> Option<(u64, u32)> {
    (task % 4 == 3).then_some((u64::from(task % 3) * 5, task + KEPT))
}

/// Is added to a task that is kept, once.
const KEPT: u32 = (1 << 30) + 1;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("within 584 years")
}

/// Does all this to keyed timers and to the model: also what `tests/lab/fuzz/` does.
pub(crate) fn property(config: Config, steps: Vec<Step>) {
    let mut run = Run::new(config);
    steps.into_iter().for_each(|step| run.apply(step));
    run.work_off();
    run.cancel_all();
    run.advance();
    run.compare();
}

#[test]
fn keyed_timers_do_what_the_model_says_after_every_step() {
    crate::quick::check(property as fn(Config, Vec<Step>), 500, 80);
}

pub(crate) const KEYS: u32 = 5;

#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    Earlier,
    Later,
    Any,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Add(u32, Span, How),
    AddIfAbsent(u32, Span, How),
    Cancel(u32),
    Move(u32, Span, How, To),
    /// Moves the clock, and does not look at what that made due.
    Clock(Span),
    Advance,
    /// To where `next_expiration` says.
    Follow,
    CancelAll,
    Retain(u8),
    /// The executor queues what it gets from now on.
    Busy,
    WorkOff,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let key = u32::arbitrary(g) % KEYS;
        let span = Span::arbitrary(g);
        let how = How::arbitrary(g);
        match u8::arbitrary(g) % 37 {
            0..=7 => Step::Add(key, span, how),
            8..=10 => Step::AddIfAbsent(key, span, how),
            11..=13 => Step::Cancel(key),
            14..=17 => Step::Move(key, span, how, To::Later),
            18..=21 => Step::Move(key, span, how, To::Any),
            22..=23 => Step::Move(key, span, how, To::Earlier),
            24..=27 => Step::Clock(span),
            28..=30 => Step::Advance,
            31..=32 => Step::Follow,
            33 => Step::CancelAll,
            34 => Step::Busy,
            35 => Step::Retain(u8::arbitrary(g)),
            _ => Step::WorkOff,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match *self {
            Step::Add(key, span, how) => {
                Box::new(span.shrink().map(move |span| Step::Add(key, span, how)))
            }
            Step::Move(key, span, how, to) => Box::new(
                span.shrink()
                    .map(move |span| Step::Move(key, span, how, to)),
            ),
            Step::Clock(span) => Box::new(span.shrink().map(Step::Clock)),
            _ => quickcheck::empty_shrinker(),
        }
    }
}
