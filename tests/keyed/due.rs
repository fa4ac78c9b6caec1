//! Keys whose time is up, and to which the timer has not come: who sees them, who takes them.

use crate::{Fixture, HOUR, MS};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{AddError, Clock, Timer};

const NS: Duration = Duration::from_nanos(1);

impl Fixture {
    fn visited(&self) -> Vec<u32> {
        let mut visited = Vec::new();
        self.keyed.for_each(|key, _, _| visited.push(*key));
        visited
    }
}

fn vacant_add(keyed: &KeyedTimer<u32, u32>, key: u32, task: u32) -> Result<Option<u32>, u32> {
    let Entry::Vacant(vacant) = keyed.entry(key) else {
        unreachable!("its time is up")
    };
    vacant.add(MS, task).map_err(AddError::into_task)
}

/// Seen to fail: reads and moves that did not look at the deadline saw it, and revived it.
#[test]
fn a_key_whose_time_is_up_is_not_seen_and_cannot_be_moved() {
    let fixture = Fixture::new();
    let keyed = &fixture.keyed;
    fixture.schedule(1, 10 * MS, 11);
    fixture.schedule(2, HOUR, 22);
    fixture.clock.advance(10 * MS - NS);
    assert!(keyed.get(&1) == Some(11) && keyed.contains(&1) && fixture.visited().len() == 2);
    fixture.clock.advance(NS);
    assert_eq!(
        (keyed.get(&1), keyed.deadline(&1), keyed.contains(&1)),
        (None, None, false)
    );
    assert!(keyed.with(&1, |_, _| ()).is_none() && keyed.find(&1).is_none());
    assert!(matches!(keyed.entry(1), Entry::Vacant(_)));
    assert_eq!(fixture.visited(), [2]);
    assert!(!keyed.touch(&1, HOUR) && !keyed.reschedule(&1, HOUR) && !keyed.hasten(&1, MS));
    assert!(!keyed.touch_if(&1, HOUR, |_, _| unreachable!("it is not seen")));
    let later = fixture.clock.now() + HOUR; // The clock need not be read for it.
    assert!(!keyed.touch(&1, later) && !keyed.reschedule(&1, later));
    assert_eq!(keyed.len(), 2, "it is counted");
    assert_eq!(
        fixture.advance(Duration::ZERO),
        [(1, 11)],
        "it stayed as it was"
    );
}

/// Seen to fail: an `add` of a vacant entry added the key a second time.
#[test]
fn a_key_whose_time_is_up_is_taken_or_replaced_and_does_not_expire() {
    let fixture = Fixture::with(|builder| builder.max_pending(5));
    let keyed = &fixture.keyed;
    (1..=5).for_each(|key| _ = fixture.schedule(key, MS, key * 10));
    fixture.clock.advance(HOUR);
    assert_eq!((keyed.cancel(&1), keyed.cancel(&1)), (Some(10), None));
    assert_eq!(
        keyed.cancel_if(&2, |task, at| (*task, at.is_some()) == (20, true)),
        Some(20)
    );
    (1..=2).for_each(|key| assert_eq!(fixture.schedule(key, MS, key), None, "there is room"));
    assert_eq!(fixture.schedule(3, MS, 3), Some(30));
    assert_eq!(
        vacant_add(keyed, 4, 4),
        Ok(Some(40)),
        "also on a full timer"
    );
    assert_eq!(keyed.len(), 5);
    assert_eq!(
        fixture.advance(Duration::ZERO),
        [(5, 50)],
        "of the former ones"
    );
    fixture.clock.advance(MS);
    let mut all = keyed.cancel_all();
    all.sort_unstable();
    assert_eq!(all, [(1, 1), (2, 2), (3, 3), (4, 4)]);
    assert!(fixture.timer.is_empty() && fixture.advance(HOUR).is_empty());
}

#[test]
fn what_is_refused_leaves_a_key_whose_time_is_up_as_it_was() {
    let fixture = Fixture::new();
    fixture.schedule(1, MS, 11);
    fixture.clock.advance(MS);
    fixture.timer.shutdown();
    assert_eq!(vacant_add(&fixture.keyed, 1, 12), Err(12));
    let added = fixture.keyed.add(1, MS, 13);
    assert!(matches!(added, Err(AddError::Shutdown(_))));
    assert_eq!(fixture.keyed.cancel_all(), [(1, 11)]);
}

#[test]
fn a_hastened_key_expires_at_the_earliest_time_that_was_named() {
    let fixture = Fixture::new();
    let keyed = &fixture.keyed;
    let now = fixture.clock.now();
    fixture.schedule(1, HOUR, 11);
    assert!(keyed.hasten(&1, 5 * MS) && keyed.hasten(&1, 3 * MS) && keyed.hasten(&1, 4 * MS));
    assert_eq!(keyed.deadline(&1), Some(now + 3 * MS));
    assert!(!keyed.hasten(&2, MS));
    assert_eq!(
        (fixture.advance(2 * MS), fixture.advance(MS)),
        (vec![], vec![(1, 11)])
    );
}

/// A clock of the user's may take its time, and the others wait for the lock. Seen to fail: with
/// the clock read under the lock, no read came while the test held that.
#[test]
fn the_clock_is_read_once_and_before_the_lock_is_taken() {
    let reads = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let counted = Arc::clone(&reads);
    let clock = Clock::reading(move || start + NS * counted.fetch_add(1, Ordering::SeqCst) as u32);
    let timer = Timer::builder().shards(1).clock(clock).build().unwrap();
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    keyed.add(1, 2 * HOUR, 11).unwrap();
    let at = start + HOUR;
    let read = || reads.load(Ordering::SeqCst);
    let calls: [&(dyn Fn() -> bool + Sync); 7] = [
        &|| keyed.get(&1) == Some(11),
        &|| keyed.touch(&1, at),
        &|| keyed.hasten(&1, at),
        &|| keyed.reschedule(&1, at - MS),
        &|| keyed.reschedule(&1, HOUR / 2),
        &|| matches!(keyed.entry(1), Entry::Occupied(_)),
        &|| keyed.visit_from(0, |_, _, _| ()).is_some(),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let held = keyed.find(&1);
        let before = read();
        thread::scope(|scope| {
            let held = held; // Given back also if this panics.
            let caller = scope.spawn(call);
            let begun = Instant::now();
            while read() == before {
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "call {number} waits first"
                );
                thread::yield_now();
            }
            drop(held);
            assert!(caller.join().unwrap(), "call {number}");
        });
        assert_eq!(read(), before + 1, "call {number}");
    }
}
