//! Failback: its rules, in virtual time.

use backon::ExponentialBuilder;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timer};
use tickwheel_services::retry::{Attempt, Failback, Operation};

const MS: Duration = Duration::from_millis(1);

/// What the operation does with an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Fails,
    Panics,
    Succeeds,
    /// Keeps it, to answer it later.
    Stalls,
}

#[derive(Default)]
struct Seen {
    mood: Mood,
    /// In milliseconds since the start; without the last digit, as the backoff rounds.
    attempts: Vec<(u64, u32)>,
    gave_up: Vec<(u64, u32)>,
    stalled: Vec<Attempt<u32>>,
}

struct Scripted(Arc<Mutex<Seen>>, ManualClock, Instant);

impl Scripted {
    fn at(&self, key: u32) -> (u64, u32) {
        ((self.1.now() - self.2).as_millis() as u64 / 10 * 10, key)
    }
}

impl Operation<u32> for Scripted {
    fn attempt(&self, attempt: Attempt<u32>) {
        let mut seen = self.0.lock().unwrap();
        seen.attempts.push(self.at(*attempt.key()));
        let mood = seen.mood;
        if mood == Mood::Stalls {
            return seen.stalled.push(attempt);
        }
        drop(seen);
        match mood {
            Mood::Succeeds => attempt.succeeded(),
            Mood::Panics => panic!("the operation panics"),
            _ => attempt.failed(),
        }
    }

    fn gave_up(&self, key: u32) {
        self.0.lock().unwrap().gave_up.push(self.at(key));
    }
}

struct Fixture {
    failback: Failback<u32>,
    seen: Arc<Mutex<Seen>>,
    timer: Timer,
    clock: ManualClock,
}

impl Fixture {
    /// Creates three retries, after 100, 200 and 400 ms.
    fn new() -> Self {
        Self::with(|backoff| backoff)
    }

    fn with(change: impl FnOnce(ExponentialBuilder) -> ExponentialBuilder) -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().shards(1).max_pending(100);
        let timer = builder.clock(clock.clone()).build().unwrap();
        let backoff = change(
            ExponentialBuilder::new()
                .with_min_delay(100 * MS)
                .with_max_times(3),
        );
        let seen = Arc::new(Mutex::new(Seen::default()));
        let operation = Scripted(Arc::clone(&seen), clock.clone(), clock.now());
        let failback = Failback::new(&timer, backoff, Arc::new(operation));
        Fixture {
            failback,
            seen,
            timer,
            clock,
        }
    }

    fn set(&self, mood: Mood) {
        self.seen.lock().unwrap().mood = mood;
    }

    fn pass(&self, millis: u32) {
        self.clock.run_for(MS * millis);
    }

    fn take_attempts(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.seen.lock().unwrap().attempts)
    }

    fn take_gave_up(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.seen.lock().unwrap().gave_up)
    }
}

#[test]
fn what_fails_is_tried_again_later_and_later_until_it_is_given_up_and_forgotten() {
    for mood in [Mood::Fails, Mood::Panics] {
        let fixture = Fixture::new();
        fixture.set(mood);
        fixture.failback.failed(1);
        fixture.pass(2000);
        assert_eq!(
            fixture.take_attempts(),
            [(100, 1), (300, 1), (700, 1)],
            "{mood:?}"
        );
        assert_eq!(fixture.take_gave_up(), [(700, 1)]);
        assert_eq!((fixture.failback.waiting(), fixture.timer.len()), (0, 0));

        fixture.failback.failed(1);
        fixture.pass(2000);
        assert_eq!(
            fixture.take_attempts(),
            [(2100, 1), (2300, 1), (2700, 1)],
            "armed anew"
        );
        assert_eq!(fixture.take_gave_up(), [(2700, 1)]);
    }
}

#[test]
fn success_ends_the_retries_whoever_had_it() {
    let fixture = Fixture::new();
    fixture.set(Mood::Succeeds);
    fixture.failback.failed(1);
    fixture.failback.failed(2);
    assert!(fixture.failback.succeeded(&2) && !fixture.failback.succeeded(&2));
    fixture.pass(2000);
    assert_eq!(fixture.take_attempts(), [(100, 1)]);
    assert_eq!((fixture.take_gave_up(), fixture.timer.len()), (vec![], 0));
}

#[test]
fn an_operation_has_at_most_one_retry_that_waits() {
    let fixture = Fixture::new();
    fixture.failback.failed(1);
    fixture.pass(50);
    fixture.failback.failed(1);
    assert_eq!((fixture.failback.waiting(), fixture.timer.len()), (1, 1));
    fixture.set(Mood::Stalls);
    fixture.pass(50);
    assert_eq!(
        (fixture.take_attempts(), fixture.failback.waiting()),
        (vec![(100, 1)], 0)
    );
    // It fails elsewhere while the retry is under way, and then that fails as well.
    fixture.failback.failed(1);
    let stalled = fixture.seen.lock().unwrap().stalled.pop().unwrap();
    stalled.failed();
    assert_eq!(fixture.failback.waiting(), 1);
    fixture.set(Mood::Succeeds);
    fixture.pass(2000);
    assert_eq!(
        (fixture.take_attempts(), fixture.timer.len()),
        (vec![(200, 1)], 0)
    );
}

/// Seen to fail: each failure put off the retry that was due.
#[test]
fn a_retry_whose_time_is_up_takes_place_however_often_the_operation_fails() {
    let fixture = Fixture::new();
    fixture.set(Mood::Stalls);
    fixture.failback.failed(1);
    fixture.clock.advance(100 * MS); // No turn comes.
    (0..3).for_each(|_| fixture.failback.failed(1));
    fixture.pass(0);
    assert_eq!(
        (fixture.take_attempts(), fixture.failback.waiting()),
        (vec![(100, 1)], 0)
    );
}

#[test]
fn jitter_spreads_those_that_failed_together() {
    let fixture = Fixture::with(ExponentialBuilder::with_jitter);
    fixture.set(Mood::Succeeds);
    (0..100).for_each(|key| fixture.failback.failed(key));
    fixture.pass(200);
    let mut times: Vec<u64> = fixture.take_attempts().iter().map(|(at, _)| *at).collect();
    assert_eq!(times.len(), 100);
    assert!(times.iter().all(|at| (100..=200).contains(at)), "{times:?}");
    times.dedup();
    assert!(times.len() > 5, "a storm at {times:?}");
}

#[test]
fn what_the_timer_refuses_is_given_up_and_said_so() {
    let fixture = Fixture::new();
    (0..100).for_each(|key| fixture.failback.failed(key));
    fixture.failback.failed(100);
    assert_eq!(fixture.take_gave_up(), [(0, 100)], "the timer is full");
    assert!(fixture.failback.succeeded(&1));
    fixture.failback.failed(100);
    assert_eq!(
        (fixture.take_gave_up(), fixture.failback.waiting()),
        (vec![], 100)
    );
}

#[test]
fn dropped_it_tries_nothing_and_keeps_nothing() {
    let fixture = Fixture::new();
    fixture.set(Mood::Stalls);
    fixture.failback.failed(1);
    fixture.pass(100);
    fixture.failback.failed(2);
    let Fixture {
        failback,
        seen,
        timer,
        ..
    } = fixture;
    drop(failback);
    assert!(timer.is_empty());
    let stalled = std::mem::take(&mut seen.lock().unwrap().stalled);
    stalled.into_iter().for_each(Attempt::failed);
    assert!(timer.is_empty() && seen.lock().unwrap().gave_up.is_empty());
    assert_eq!(Arc::strong_count(&seen), 1, "something keeps the operation");
}
