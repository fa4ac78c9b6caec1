//! Looking at a key's task and changing it in one step; visits of all keys, a few at a time.

use crate::{Fixture, HOUR, MS};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{AddError, Timer};

#[test]
fn an_entry_tells_what_there_is_and_changes_it() {
    let fixture = Fixture::new();
    let now = fixture.clock.now();
    match fixture.keyed.entry(1) {
        Entry::Vacant(vacant) => {
            assert_eq!(*vacant.key(), 1);
            vacant.add(10 * MS, 11_u32).expect("there is room");
        }
        Entry::Occupied(entry) => panic!("{entry:?}"),
    }
    let occupied = |change: &dyn Fn(tickwheel::keyed::OccupiedEntry<'_, u32, u32>)| match fixture
        .keyed
        .entry(1)
    {
        Entry::Occupied(entry) => change(entry),
        Entry::Vacant(vacant) => panic!("{vacant:?}"),
    };
    occupied(&|mut entry| {
        assert_eq!((*entry.key(), *entry.get()), (1, 11));
        assert_eq!(entry.deadline(), Some(now + 10 * MS));
        *entry.get_mut() += 1;
        assert_eq!(entry.replace(13), 12);
    });
    occupied(&|mut entry| {
        entry.touch(20 * MS);
        entry.touch(now);
        assert_eq!(
            entry.deadline(),
            Some(now + 20 * MS),
            "it never moves to an earlier one"
        );
        entry.touch(now + 30 * MS);
        assert_eq!(entry.deadline(), Some(now + 30 * MS));
        entry.reschedule(now + HOUR);
        assert_eq!(entry.deadline(), Some(now + HOUR));
        entry.hasten(2 * MS);
        entry.hasten(3 * MS);
        assert_eq!(
            entry.deadline(),
            Some(now + 2 * MS),
            "it never moves to a later one"
        );
    });
    assert_eq!(
        (fixture.advance(MS), fixture.advance(MS)),
        (vec![], vec![(1, 13)])
    );
    fixture.schedule(1, MS, 14);
    occupied(&|entry| assert_eq!(entry.cancel(), 14));
    assert!(fixture.timer.is_empty() && fixture.advance(HOUR).is_empty());
}

#[test]
fn a_vacant_entry_says_what_was_refused() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    fixture.schedule(1, HOUR, 11);
    let schedule = |key| match fixture.keyed.entry(key) {
        Entry::Vacant(vacant) => vacant.add(MS, 12_u32),
        Entry::Occupied(entry) => panic!("{entry:?}"),
    };
    assert!(matches!(schedule(2), Err(AddError::Full(_))));
    assert_eq!(fixture.keyed.cancel(&1), Some(11));
    drop(fixture.timer.shutdown());
    assert!(matches!(schedule(1), Err(AddError::Shutdown(_))));
    assert!(fixture.keyed.is_empty());
}

/// The old connection of a client that has come back closes.
#[test]
fn what_is_cancelled_or_touched_only_if_it_is_the_one() {
    let fixture = Fixture::new();
    let start = fixture.clock.now();
    fixture.schedule(1, 10 * MS, 100);
    fixture.schedule(1, 20 * MS, 200);
    assert_eq!(fixture.keyed.cancel_if(&1, |task, _| *task == 100), None);
    assert_eq!(
        fixture
            .keyed
            .cancel_if(&2, |_, _| unreachable!("there is no such key")),
        None
    );
    assert!(!fixture.keyed.touch_if(&1, HOUR, |task, _| *task == 100));
    assert!(!fixture.keyed.touch_if(&2, HOUR, |_, _| true));
    assert_eq!(fixture.keyed.deadline(&1), Some(start + 20 * MS));
    let is_short = |_: &u32, deadline| deadline < Some(start + 30 * MS);
    assert!(fixture.keyed.touch_if(&1, 30 * MS, is_short));
    assert!(!fixture.keyed.touch_if(&1, HOUR, is_short));
    assert_eq!(fixture.advance(29 * MS), []);
    assert_eq!(
        fixture.keyed.cancel_if(&1, |task, _| *task == 200),
        Some(200)
    );
    assert!(fixture.timer.is_empty());
}

#[test]
fn a_task_is_read_changed_and_taken_with_its_deadline() {
    let fixture = Fixture::new();
    fixture.schedule(1, HOUR, 11);
    let deadline = fixture.clock.now() + HOUR;
    let doubled = fixture.keyed.with(&1, |task, at| {
        *task *= 2;
        (*task, at)
    });
    assert_eq!(doubled, Some((22, Some(deadline))));
    assert_eq!(
        (fixture.keyed.get(&1), fixture.keyed.get(&2)),
        (Some(22), None)
    );
    assert_eq!(fixture.keyed.with(&2, |_, _| ()), None);
    assert_eq!(fixture.keyed.cancel(&1), Some(22));
    assert!(fixture.keyed.find(&1).is_none() && fixture.timer.is_empty());
}

#[test]
fn a_deadline_that_never_comes_is_none() {
    let fixture = Fixture::new();
    fixture.schedule(1, Duration::MAX, 11);
    assert_eq!(
        (fixture.keyed.deadline(&1), fixture.keyed.get(&1)),
        (None, Some(11))
    );
}

#[test]
fn a_panic_while_an_entry_is_held_leaves_the_key_as_it_was() {
    let fixture = Fixture::new();
    fixture.schedule(1, MS, 11);
    let panics = || {
        fixture
            .keyed
            .with(&1, |_, _| panic!("which is what the test is about"))
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let panics = || fixture.keyed.cancel_if(&1, |_, _| panic!("likewise"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(fixture.advance(MS), [(1, 11)]);
}

/// A timer that waits for an hour, and is told of something earlier, and then of something later.
#[test]
fn an_entry_that_is_moved_twice_wakes_the_reaper_all_the_same() {
    let timer = Timer::builder().start().expect("a thread can be started");
    let (sender, expired) = channel();
    let keyed = KeyedTimer::new(&timer, move |key: u32, _: u32| {
        sender.send(key).expect("the test waits");
    });
    keyed.add(1, HOUR, 11).expect("there is room");
    std::thread::sleep(20 * MS); // Until the reaper sleeps.
    match keyed.entry(1) {
        Entry::Occupied(mut entry) => {
            entry.reschedule(20 * MS);
            entry.reschedule(30 * MS);
        }
        Entry::Vacant(vacant) => panic!("{vacant:?}"),
    }
    assert_eq!(expired.recv_timeout(Duration::from_secs(20)), Ok(1));
}

/// A turn of virtual time waits for the shard that a thread holds: no other shard's timers leave
/// before the earlier ones there.
#[test]
fn in_virtual_time_the_ticks_keep_their_order_while_a_key_is_held() {
    let fixture = Fixture::new();
    fixture.schedule(0, MS, 0);
    (1..100).for_each(|key| _ = fixture.schedule(key, 2 * MS, key)); // Most in other shards.
    let held = fixture.keyed.find(&0).expect("it is there");
    fixture.clock.advance(2 * MS);
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| fixture.timer.advance_clock(Duration::ZERO));
        std::thread::sleep(50 * MS); // Until the turn has found the shard held.
        assert!(!turn.is_finished() && fixture.expired.try_recv().is_err());
        drop(held);
        assert_eq!(turn.join().expect("it ends"), 100);
    });
    assert_eq!(fixture.expired.try_iter().next(), Some((0, 0)));
}

/// A turn would wait for its own thread, also one that a waker takes. Seen to fail: it hung.
#[cfg(debug_assertions)]
#[test]
fn a_turn_while_an_entry_is_held_panics_and_loses_nothing() {
    let (done, result) = channel();
    std::thread::spawn(move || {
        let fixture = Fixture::new();
        let own = fixture.timer.downgrade();
        let advances = crate::calls::waker(move || {
            own.upgrade()
                .map(|timer| timer.advance_clock(Duration::ZERO));
        });
        fixture.schedule(1, MS, 11);
        let entry = fixture.keyed.find(&1);
        let listener = fixture.timer.listener();
        assert!(listener.next_expiration(&advances).is_some());
        fixture.clock.advance(MS);
        let turn = || fixture.timer.advance_clock(Duration::ZERO);
        assert!(catch_unwind(AssertUnwindSafe(turn)).is_err());
        drop(entry);
        let panicked = fixture.timer.stats().panicked;
        done.send((panicked, fixture.advance(Duration::ZERO)))
            .expect("the test waits");
    });
    assert_eq!(
        result.recv_timeout(Duration::from_secs(20)),
        Ok((1, vec![(1, 11)]))
    );
}

/// Returns the number of visits to every key.
fn visits(fixture: &Fixture) -> BTreeMap<u32, u32> {
    let mut visits = BTreeMap::new();
    fixture
        .keyed
        .for_each(|key, _, _| *visits.entry(*key).or_default() += 1);
    visits
}

#[test]
fn every_key_is_visited_once_however_many_there_are() {
    let fixture = Fixture::new();
    assert!(visits(&fixture).is_empty());
    (0..100_000).for_each(|key| assert_eq!(fixture.schedule(key, HOUR, key), None));
    // So that chunks of places are given back.
    let is_kept = |key: u32| key % 1_000 == 0 || (20_000..30_000).contains(&key);
    (0..100_000).filter(|key| !is_kept(*key)).for_each(|key| {
        assert_eq!(fixture.keyed.cancel(&key), Some(key));
    });
    let kept: BTreeMap<u32, u32> = (0..100_000)
        .filter(|key| is_kept(*key))
        .map(|key| (key, 1))
        .collect();
    assert_eq!(visits(&fixture), kept);
    assert_eq!(visits_in_steps(&fixture), kept);
}

/// Returns every key's visits by `visit_from`, each step of which visits some, but not too many.
fn visits_in_steps(fixture: &Fixture) -> BTreeMap<u32, u32> {
    let mut visits = BTreeMap::new();
    let mut place = Some(0);
    while let Some(from) = place {
        let mut step = 0;
        place = fixture.keyed.visit_from(from, |key, _, _| {
            *visits.entry(*key).or_default() += 1;
            step += 1;
        });
        assert!(
            step <= 256 && (step > 0 || place.is_none()),
            "{step} keys at {from}"
        );
    }
    visits
}

#[test]
fn any_number_is_a_place() {
    let fixture = Fixture::new();
    assert_eq!(
        fixture
            .keyed
            .visit_from(0, |_, _, _| panic!("there is no key")),
        None
    );
    (0..1_000).for_each(|key| assert_eq!(fixture.schedule(key, HOUR, key), None));
    let last = u64::from(u32::MAX); // Of the first shard. Seen to overflow on 32 bits.
    for place in [
        1,
        1 << 31,
        last,
        1 << 32,
        (1 << 32) + 7,
        1 << 44,
        1 << 63,
        u64::MAX,
    ] {
        let mut from = Some(place);
        let mut seen = 0;
        while let Some(place) = from {
            from = fixture.keyed.visit_from(place, |_, _, _| seen += 1);
        }
        assert!(
            seen < 1_000,
            "{seen} keys from {place}: not those of the first chunk"
        );
    }
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
            let former = keyed.add(key, HOUR, key).expect("there is room");
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
                visits
                    .get_mut(*key as usize)
                    .into_iter()
                    .for_each(|it| *it += 1);
            });
            assert!(visits.iter().all(|visits| *visits == 1), "{visits:?}");
        }
    });
}

#[test]
fn a_visit_that_panics_leaves_the_keys_as_they_were() {
    let fixture = Fixture::new();
    fixture.schedule(1, MS, 11);
    let panics = || {
        fixture
            .keyed
            .for_each(|_, _, _| panic!("which is what the test is about"))
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(visits(&fixture), BTreeMap::from([(1, 1)]));
    assert_eq!(fixture.advance(MS), [(1, 11)]);
}

#[test]
fn what_is_retained_may_be_changed_and_keeps_its_deadline() {
    let fixture = Fixture::new();
    let deadline = |key: u32| fixture.clock.now() + MS * key;
    (1..=1_000).for_each(|key| _ = fixture.schedule(key, MS * key, 0));
    fixture.keyed.retain(|key, task, at| {
        assert_eq!(at, Some(deadline(*key)));
        *task = *key;
        key % 100 == 0
    });
    let kept: Vec<_> = (1..=10).map(|nth| (nth * 100, nth * 100)).collect();
    assert_eq!(fixture.timer.len(), kept.len());
    assert_eq!(fixture.advance(HOUR), kept);
}

/// Uses its keyed timer when it is dropped.
struct Leaves(u32, std::sync::OnceLock<KeyedTimer<u32, Leaves>>);

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(keyed) = self.1.get() {
            assert!(keyed.with(&self.0, |_, _| ()).is_none(), "it is gone");
        }
    }
}

/// Seen to fail: dropped under the lock, also by a panic, the first one waited for its own thread.
#[test]
fn what_is_not_retained_is_dropped_under_no_lock() {
    let (done, dropped) = channel();
    thread::spawn(move || {
        let timer = Timer::builder().shards(1).build().expect("in range");
        let keyed = KeyedTimer::new(&timer, |_: u32, _: Leaves| ());
        let add = |key| {
            let task = Leaves(key, keyed.clone().into());
            assert!(keyed.add(key, HOUR, task).is_ok(), "there is room");
        };
        (1..=10).for_each(add);
        let mut asked = 0;
        let panics = || {
            keyed.retain(|_, _, _| {
                asked += 1;
                assert!(asked < 5, "which is what the test is about");
                false
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(keyed.len(), 6, "it takes no others");
        keyed.retain(|_, _, _| false);
        done.send(keyed.len()).expect("the test waits");
    });
    let left = dropped.recv_timeout(Duration::from_secs(20));
    assert_eq!(left, Ok(0));
}
