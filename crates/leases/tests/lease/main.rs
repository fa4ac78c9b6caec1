//! The behaviour of leases, in virtual time, with a store that does what a test wants.

mod bounds;
mod edges;
mod ends;
mod model;
mod panics;
mod storm;

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{BuildError, ManualClock, Task, Timer, TimerBuilder};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};

pub(crate) const S: Duration = Duration::from_secs(1);

/// What the store does with a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Renews,
    Fails,
    Panics,
    /// Keeps it, to answer it later or never.
    Stalls,
    SaysGone,
}

#[derive(Default)]
pub(crate) struct Seen {
    /// When each renewal came, in seconds since the start, and for which key.
    pub(crate) renewals: Vec<(u64, u32)>,
    pub(crate) batches: Vec<usize>,
    pub(crate) lost: Vec<(u64, u32)>,
    pub(crate) stalled: Vec<Renewal<u32>>,
    mood: Option<Mood>,
}

struct Store(Arc<Mutex<Seen>>, ManualClock, std::time::Instant);

impl Store {
    fn seconds(&self) -> u64 {
        self.1.now().duration_since(self.2).as_secs()
    }
}

impl LeaseStore<u32> for Store {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        let now = self.seconds();
        let mut seen = self.0.lock().unwrap();
        seen.batches.push(batch.len());
        seen.renewals
            .extend(batch.iter().map(|renewal| (now, *renewal.key())));
        let mood = seen.mood.unwrap_or(Mood::Renews);
        if mood == Mood::Stalls {
            seen.stalled.extend(batch);
            return;
        }
        drop(seen);
        assert!(mood != Mood::Panics, "the store panics");
        for renewal in batch {
            match mood {
                Mood::Renews => renewal.renewed(),
                Mood::SaysGone => renewal.gone(),
                _ => renewal.failed(),
            }
        }
    }

    fn lost(&self, key: u32) {
        let now = self.seconds();
        self.0.lock().unwrap().lost.push((now, key));
    }
}

pub(crate) struct Fixture {
    pub(crate) leases: Leases<u32>,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
}

impl Fixture {
    /// Creates leases of 30 s, renewed every 10 s, in batches of at most 5.
    pub(crate) fn new() -> Self {
        Self::with(TimerBuilder::build, |terms| terms)
    }

    pub(crate) fn with(
        build: impl FnOnce(TimerBuilder<Task>) -> Result<Timer, BuildError>,
        terms: impl FnOnce(LeaseTerms) -> LeaseTerms,
    ) -> Self {
        let clock = ManualClock::new();
        let timer = build(Timer::builder().shards(2).clock(clock.clone())).unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let store = Store(Arc::clone(&seen), clock.clone(), clock.now());
        let leases = Leases::new(&timer, terms(LeaseTerms::new(30 * S).batch_size(5)), store);
        Fixture {
            leases,
            seen,
            timer,
            clock,
        }
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.seen.lock().unwrap().mood = Some(mood);
    }

    /// Lets so many seconds pass, one by one.
    pub(crate) fn pass(&self, seconds: u32) {
        for _ in 0..seconds {
            self.clock.advance(S);
            turn(&self.timer);
        }
    }

    pub(crate) fn take_renewals(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.seen.lock().unwrap().renewals)
    }

    pub(crate) fn take_lost(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.seen.lock().unwrap().lost)
    }
}

/// Runs what is due: each turn at most one batch.
pub(crate) fn turn(timer: &Timer) {
    while timer.advance_clock(Duration::ZERO) > 0 {}
}

/// Returns a timer in virtual time, for stores of another kind.
pub(crate) fn by_hand() -> (Timer, ManualClock) {
    let clock = ManualClock::new();
    (
        Timer::builder()
            .shards(2)
            .clock(clock.clone())
            .build()
            .unwrap(),
        clock,
    )
}

#[test]
fn a_lease_is_renewed_every_third_of_it_as_long_as_it_is_held() {
    let fixture = Fixture::new();
    let lease = fixture.leases.hold(1).unwrap();
    fixture.pass(65);
    let times: Vec<u64> = fixture.take_renewals().iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [10, 20, 30, 40, 50, 60]);
    assert!(!fixture.leases.is_empty() && lease.is_held() && lease.release());
    fixture.pass(65);
    assert_eq!(
        (fixture.take_renewals(), fixture.take_lost()),
        (vec![], vec![])
    );
    assert!(fixture.leases.is_empty());
}

#[test]
fn many_leases_are_renewed_in_few_calls() {
    let fixture = Fixture::new();
    let leases: Vec<_> = (0..12)
        .map(|key| fixture.leases.hold(key).unwrap())
        .collect();
    fixture.pass(1);
    let later = fixture.leases.hold(12).unwrap();
    fixture.pass(9);
    assert_eq!(
        fixture.seen.lock().unwrap().batches,
        [5, 5, 3],
        "the later one goes along"
    );
    assert!(leases.iter().all(|lease| lease.is_held()) && later.is_held());
    assert_eq!(fixture.timer.len(), 1, "one round is planned for all");
}

#[test]
fn an_answer_to_what_was_released_or_taken_again_does_not_count() {
    let fixture = Fixture::new();
    fixture.set(Mood::Stalls);
    let first = fixture.leases.hold(1).unwrap();
    let released = fixture.leases.hold(2).unwrap();
    fixture.pass(10);
    let stalled = std::mem::take(&mut fixture.seen.lock().unwrap().stalled);
    assert_eq!(stalled.len(), 2);
    assert!(released.release());
    fixture.pass(5);
    let second = fixture.leases.hold(1).unwrap();
    assert!(!first.is_held() && second.is_held());
    fixture.pass(10);
    let in_flight = std::mem::take(&mut fixture.seen.lock().unwrap().stalled);
    assert_eq!(
        in_flight.len(),
        1,
        "of the second generation, while the first one's still is"
    );
    for renewal in stalled {
        renewal.gone();
    }
    assert!(second.is_held() && fixture.take_lost().is_empty());
    assert!(
        !first.release() && second.is_held(),
        "a stale handle is harmless"
    );
    in_flight.into_iter().for_each(Renewal::renewed);
    fixture.take_renewals();
    fixture.set(Mood::Renews);
    fixture.pass(20);
    assert_eq!(
        fixture.take_renewals(),
        [(35, 1), (45, 1)],
        "exactly one a period"
    );
}
