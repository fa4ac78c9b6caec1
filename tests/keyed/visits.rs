//! Visits of all keys, a few at a time.

use crate::{Fixture, HOUR, MS};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;
use tickwheel::TimerEntry;

/// Returns the number of visits to every key.
fn visits(fixture: &Fixture) -> BTreeMap<u32, u32> {
    let mut visits = BTreeMap::new();
    fixture.keyed.for_each(|key, _, _| *visits.entry(*key).or_default() += 1);
    visits
}

#[test]
fn every_key_is_visited_once_however_many_there_are() {
    let fixture = Fixture::new();
    assert!(visits(&fixture).is_empty());
    (0..100_000).for_each(|key| assert_eq!(fixture.schedule(key, HOUR, key), None));
    // So that chunks of places become sparse, or are given back.
    let is_kept = |key: u32| key % 1_000 == 0 || (20_000..30_000).contains(&key);
    (0..100_000).filter(|key| !is_kept(*key)).for_each(|key| {
        assert_eq!(fixture.keyed.cancel(&key), Some(key));
    });
    let kept: BTreeMap<u32, u32> =
        (0..100_000).filter(|key| is_kept(*key)).map(|key| (key, 1)).collect();
    assert_eq!(visits(&fixture), kept);
    assert_eq!(visits_in_steps(&fixture), kept);
}

/// Returns every key's visits by `visit_from`, each step of which visits some, but not too many.
fn visits_in_steps(fixture: &Fixture) -> BTreeMap<u32, u32> {
    let (mut visits, mut place) = (BTreeMap::new(), Some(0));
    while let Some(from) = place {
        let mut step = 0;
        place = fixture.keyed.visit_from(from, |key, _, _| {
            *visits.entry(*key).or_default() += 1;
            step += 1;
        });
        assert!(step <= 1024 && (step > 0 || place.is_none()), "{step} keys at {from}");
    }
    visits
}

#[test]
fn any_number_is_a_place() {
    let fixture = Fixture::new();
    assert_eq!(fixture.keyed.visit_from(0, |_, _, _| panic!("there is no key")), None);
    (0..1_000).for_each(|key| assert_eq!(fixture.schedule(key, HOUR, key), None));
    for place in [1, 1 << 31, 1 << 32, (1 << 32) + 7, 1 << 44, 1 << 63, u64::MAX] {
        let (mut from, mut seen) = (Some(place), 0);
        while let Some(place) = from {
            from = fixture.keyed.visit_from(place, |_, _, _| seen += 1);
        }
        assert!(seen <= 1_000, "{seen} keys from {place}");
    }
}

#[test]
fn a_key_whose_time_is_up_is_visited_until_its_task_runs() {
    let fixture = Fixture::new();
    fixture.schedule(1, MS, 11);
    fixture.schedule(2, Duration::MAX, 12);
    fixture.clock.advance(MS);
    let mut seen = Vec::new();
    fixture.keyed.for_each(|key, task, deadline| seen.push((*key, *task, deadline)));
    seen.sort_unstable();
    assert_eq!(seen, [(1, 11, Some(fixture.clock.now())), (2, 12, None)]);
    assert_eq!(fixture.advance(Duration::ZERO), [(1, 11)]);
    assert_eq!(visits(&fixture), BTreeMap::from([(2, 1)]));
}

/// Between two parts of a visit others do as they like.
#[test]
fn a_key_that_stays_is_visited_once_while_others_come_and_go() {
    const STAY: u32 = 2_000;
    const ROUNDS: u32 = 50;
    let fixture = Fixture::new();
    let keyed = &fixture.keyed;
    let schedule = |keys: std::ops::Range<u32>| {
        for key in keys {
            let former = keyed.schedule(key, TimerEntry::after(HOUR, key)).expect("there is room");
            assert_eq!(former, None);
        }
    };
    schedule(0..STAY);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            for _ in 0..ROUNDS {
                schedule(STAY..3 * STAY);
                (STAY..3 * STAY).for_each(|key| assert_eq!(keyed.cancel(&key), Some(key)));
                (0..STAY).for_each(|key| assert!(keyed.reschedule(&key, HOUR)));
            }
        });
        while !others.is_finished() {
            let mut visits = vec![0; STAY as usize];
            keyed.for_each(|key, _, _| {
                visits.get_mut(*key as usize).into_iter().for_each(|it| *it += 1);
            });
            assert!(visits.iter().all(|visits| *visits == 1), "{visits:?}");
        }
    });
}

#[test]
fn a_visit_that_panics_leaves_the_keys_as_they_were() {
    let fixture = Fixture::new();
    fixture.schedule(1, MS, 11);
    let panics = || fixture.keyed.for_each(|_, _, _| panic!("which is what the test is about"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(visits(&fixture), BTreeMap::from([(1, 1)]));
    assert_eq!(fixture.advance(MS), [(1, 11)]);
}
