//! A keyed queue against an ordered map: random steps are done to both, and after each all that can
//! be seen is compared.

use crate::Fixture;
use crate::times::{Config, How, Moment, NEVER, Span};
use quickcheck::{Arbitrary, Gen};
use std::collections::BTreeMap;
use std::mem;
use std::task::Poll;
use std::time::{Duration, Instant};
use tickwheel::When;
use tickwheel::queue::{Entry, Expired};

const KEYS: u32 = 6;

/// The tick of a queue in nanoseconds.
const TICK: u64 = 1_000_000;

struct Expected {
    value: u32,
    /// In nanoseconds since the queue was made.
    deadline: u64,
    /// The tick with whose keys it comes at the latest, if its deadline is not later.
    filed: u64,
}

struct Run {
    fixture: Fixture<u32, u32>,
    origin: Instant,
    now: Moment,
    model: BTreeMap<u32, Expected>,
    values: u32,
    /// Whether nothing has woken the task since it has polled.
    waits: bool,
    /// Until when the queue sleeps, if not for ever.
    sleeps_until: Option<Instant>,
}

impl Run {
    fn new() -> Self {
        let fixture = Fixture::new();
        let origin = fixture.clock.now();
        let now = Moment::new(0, TICK);
        Run {
            fixture,
            origin,
            now,
            model: BTreeMap::new(),
            values: 0,
            waits: false,
            sleeps_until: None,
        }
    }

    fn apply(&mut self, step: Step) {
        let before = self.first();
        let was_any = !self.model.is_empty();
        match step {
            Step::Insert(key, span, how) => {
                let (when, deadline) = self.when(span, how);
                self.values += 1;
                let former = self.fixture.queue.insert(key, when, self.values);
                let expected = self.expect(key, deadline);
                assert_eq!(former, expected.map(|expected| expected.value));
            }
            Step::InsertIfAbsent(key, span, how) => {
                let (when, deadline) = self.when(span, how);
                self.values += 1;
                match self.fixture.queue.entry(key) {
                    Entry::Vacant(entry) => {
                        entry.insert(when, self.values);
                        assert!(self.expect(key, deadline).is_none());
                    }
                    Entry::Occupied(entry) => assert_eq!(*entry.key(), key),
                }
            }
            Step::Remove(key) => {
                let expected = self.model.remove(&key).map(|expected| expected.value);
                assert_eq!(self.fixture.queue.remove(&key), expected);
            }
            Step::Change(change, key, span, how) => self.change(change, key, span, how),
            Step::Move(span) => {
                let to = self.moment(span).saturating_sub(self.now.nanos);
                self.fixture.clock.advance(Duration::from_nanos(to));
                let now = self.fixture.clock.now() - self.origin;
                self.now = Moment::new(now.as_nanos() as u64, TICK);
                let now = self.fixture.clock.now();
                self.waits &= self.sleeps_until.is_none_or(|until| until > now);
            }
            Step::Poll => {
                self.poll();
                return self.compare(self.first(), false);
            }
            Step::Retain(kept) => {
                let is_kept = |key: u32| kept >> key & 1 == 1;
                self.fixture.queue.retain(|key, _, _| is_kept(*key));
                self.model.retain(|key, _| is_kept(*key));
            }
            Step::Drain => {
                let drained = self
                    .fixture
                    .queue
                    .drain()
                    .map(|(key, value, _)| (key, value));
                let model = mem::take(&mut self.model);
                let expected: BTreeMap<_, _> =
                    model.into_iter().map(|(key, it)| (key, it.value)).collect();
                assert_eq!(drained.collect::<BTreeMap<_, _>>(), expected);
            }
        }
        self.compare(before, was_any);
    }

    fn change(&mut self, change: Change, key: u32, span: Span, how: How) {
        let (when, deadline) = self.when(span, how);
        let queue = &mut self.fixture.queue;
        let was_there = match (change, self.values % 2) {
            (Change::Touch, 0) => queue.touch(&key, when),
            (Change::Hasten, 0) => queue.hasten(&key, when),
            (Change::Reschedule, 0) => queue.reschedule(&key, when),
            _ => match queue.entry(key) {
                Entry::Occupied(mut entry) => {
                    match change {
                        Change::Touch => entry.touch(when),
                        Change::Hasten => entry.hasten(when),
                        Change::Reschedule => entry.reschedule(when),
                    }
                    true
                }
                Entry::Vacant(_) => false,
            },
        };
        let expected = self.model.get_mut(&key);
        assert_eq!(was_there, expected.is_some());
        let Some(expected) = expected else { return };
        let is_changed = match change {
            Change::Touch => deadline > expected.deadline,
            Change::Hasten => deadline < expected.deadline,
            Change::Reschedule => true,
        };
        if is_changed {
            expected.filed = filed(&self.now, Some(expected), deadline);
            expected.deadline = deadline;
        }
    }

    fn expect(&mut self, key: u32, deadline: u64) -> Option<Expected> {
        let filed = filed(&self.now, self.model.get(&key), deadline);
        self.model.insert(
            key,
            Expected {
                value: self.values,
                deadline,
                filed,
            },
        )
    }

    /// Returns the tick of the first deadline.
    fn first(&self) -> Option<u64> {
        let deadlines = self.model.values().map(|expected| expected.deadline);
        deadlines
            .filter(|it| *it < NEVER)
            .map(|it| self.now.tick_of(it))
            .min()
    }

    fn moment(&self, span: Span) -> u64 {
        let like: Vec<u64> = self
            .model
            .values()
            .map(|expected| expected.deadline)
            .collect();
        let config = Config {
            tick: TICK,
            wheel_size: 64,
            shards: 1,
            max_pending: None,
            before: 0,
            seed: 0,
        };
        span.resolve(self.now.nanos, &config, &like).min(NEVER - 1)
    }

    fn when(&self, span: Span, how: How) -> (When, u64) {
        // A queue tells a deadline before its start as it was given.
        let how = if let How::BeforeTheStart = how {
            How::At
        } else {
            how
        };
        let (when, deadline) = how.when(self.moment(span), self.now.nanos, self.origin);
        (when, deadline.min(NEVER))
    }

    /// Takes out all that is due, in the order of the ticks.
    fn poll(&mut self) {
        let mut tick = 0;
        self.waits = true;
        self.sleeps_until = None;
        loop {
            match self.fixture.poll() {
                Poll::Ready(Some(Expired {
                    key,
                    value,
                    deadline,
                })) => {
                    let expected = self.model.remove(&key).expect("it is there");
                    assert_eq!(value, expected.value);
                    let due = expected.deadline;
                    assert_eq!(deadline, self.origin + Duration::from_nanos(due));
                    assert!(due <= self.now.nanos, "{key} is early");
                    let its = self.now.tick_of(due);
                    let until = its.max(expected.filed);
                    assert!(until >= tick, "{key} of tick {its} comes after tick {tick}");
                    tick = tick.max(its);
                }
                Poll::Ready(None) => return assert!(self.model.is_empty()),
                Poll::Pending => break,
            }
        }
        assert!(!self.model.is_empty());
        assert!(
            self.first()
                .is_none_or(|first| first > self.now.rounded_down()),
            "one is late"
        );
        let asked = self.fixture.sleeps.lock().unwrap();
        // A sleep that is over was not followed by another one.
        let now = self.fixture.clock.now();
        self.sleeps_until = asked.last().copied().filter(|until| *until > now);
        if let Some(first) = self.first() {
            let until = self.origin + Duration::from_millis(first);
            assert!(
                asked.last().is_some_and(|asked| *asked <= until),
                "it sleeps too long"
            );
        }
    }

    fn compare(&mut self, before: Option<u64>, was_any: bool) {
        let woken = self.fixture.woken() > 0;
        let is_earlier = self.first().is_some_and(|first| {
            let first = self.origin + Duration::from_millis(first);
            self.sleeps_until.is_none_or(|until| first < until)
        });
        let is_earlier = is_earlier && before.is_none_or(|before| self.first() < Some(before));
        let must_wake = self.waits && (is_earlier || self.model.is_empty() && was_any);
        // One that was woken before need not be woken again.
        assert!(woken || !must_wake, "nobody was woken");
        self.waits &= !woken;
        let instant = |deadline: u64| {
            (deadline < NEVER).then(|| self.origin + Duration::from_nanos(deadline))
        };
        let mut all: Vec<_> = self
            .fixture
            .queue
            .iter()
            .map(|(k, v, at)| (*k, *v, at))
            .collect();
        all.sort_unstable();
        let expected = self
            .model
            .iter()
            .map(|(key, it)| (*key, it.value, instant(it.deadline)));
        assert!(all.iter().copied().eq(expected), "{all:?}");
        let peeked = self.fixture.queue.peek().map(|(_, _, at)| at);
        let first = self
            .model
            .values()
            .map(|it| self.now.tick_of(it.deadline))
            .min();
        let tick_of = |at: Instant| self.now.tick_of((at - self.origin).as_nanos() as u64);
        let never = self.now.tick_of(NEVER);
        assert_eq!(peeked.map(|at| at.map_or(never, tick_of)), first);
        for key in 0..KEYS {
            let expected = self.model.get(&key);
            assert_eq!(
                self.fixture.queue.get(&key),
                expected.map(|expected| &expected.value)
            );
            assert_eq!(self.fixture.queue.contains(&key), expected.is_some());
            let deadline = expected.and_then(|expected| instant(expected.deadline));
            assert_eq!(self.fixture.queue.deadline(&key), deadline);
        }
    }
}

/// Returns the last tick with whose keys a key may come whose deadline is set now.
fn filed(now: &Moment, former: Option<&Expected>, deadline: u64) -> u64 {
    let tick = now.tick_of(deadline).max(now.rounded_down());
    match former {
        // It may stay where it is until that is looked at.
        Some(former) if now.tick_of(former.deadline) <= tick => former.filed.max(tick),
        _ => tick,
    }
}

#[test]
fn a_queue_does_what_the_model_says_after_every_step() {
    fn property(steps: Vec<Step>) {
        let mut run = Run::new();
        steps.into_iter().for_each(|step| run.apply(step));
    }
    crate::quick::check(property as fn(Vec<Step>), 2_000, 80);
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Touch,
    Hasten,
    Reschedule,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u32, Span, How),
    InsertIfAbsent(u32, Span, How),
    Remove(u32),
    Change(Change, u32, Span, How),
    Move(Span),
    Poll,
    Retain(u8),
    Drain,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let key = u32::arbitrary(g) % KEYS;
        let span = Span::arbitrary(g);
        let how = How::arbitrary(g);
        match u8::arbitrary(g) % 33 {
            0..=7 => Step::Insert(key, span, how),
            8..=10 => Step::InsertIfAbsent(key, span, how),
            11..=13 => Step::Remove(key),
            14..=16 => Step::Change(Change::Touch, key, span, how),
            17..=18 => Step::Change(Change::Hasten, key, span, how),
            19..=21 => Step::Change(Change::Reschedule, key, span, how),
            22..=25 => Step::Move(span),
            26..=30 => Step::Poll,
            31 => Step::Retain(u8::arbitrary(g)),
            _ => Step::Drain,
        }
    }
}
