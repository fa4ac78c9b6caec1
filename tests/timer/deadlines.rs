//! When timers expire.

use crate::{Fixture, HOUR, MS, NS, YEAR};
use std::time::{Duration, Instant};
use tickwheel::{Timeout, Timer, TimerEntry, When};

#[test]
fn a_timer_expires_at_the_first_tick_after_its_deadline_and_never_before() {
    let fixture = Fixture::new();
    fixture.after(2 * MS + NS, 1);
    assert_eq!(fixture.advance(2 * MS), []);
    assert_eq!(fixture.advance(MS - NS), []);
    assert_eq!(fixture.advance(NS), [1]);
    fixture.after(Duration::from_micros(2_300), 2);
    assert_eq!(fixture.advance(2 * MS), []);
    assert_eq!(fixture.advance(MS), [2]);
}

/// The clock is read only if the deadline may have passed. Here a tick is longer than any test, so
/// it would be late if it joined the timer that is ahead.
#[test]
fn a_past_deadline_does_not_join_those_of_the_next_tick() {
    let builder = Timer::builder().tick(HOUR).shards(1);
    let timer: Timer<u32> = builder
        .executor(|_| ())
        .build()
        .expect("the options are in range");
    timer
        .after(Duration::from_secs(60), 1_u32)
        .expect("there is no limit");
    timer.at(timer.now(), 2_u32).expect("there is no limit");
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
}

/// The same beside a timer in an overflow wheel whose bucket is due and not flushed yet: the wheels
/// are still at tick 0, and the passed deadline falls into that bucket.
#[test]
fn a_passed_deadline_that_joins_a_far_bucket_does_not_wait_for_the_next_tick() {
    let fixture = Fixture::with(|builder| builder.tick(10 * MS).wheel_size(8));
    let built = fixture.clock.now();
    fixture.after(200 * MS, 1); // Tick 20: level 1, the slot of 20 to 23.
    fixture.clock.advance(195 * MS);
    fixture
        .timer
        .add(TimerEntry::at(built + 192 * MS, 2))
        .unwrap();
    assert_eq!(fixture.advance(Duration::ZERO), [2]);
    assert_eq!(fixture.advance(5 * MS), [1]);
}

/// The same after so long an idle time that the bucket is coarser than 2^32 ticks.
#[test]
fn a_zero_delay_expires_at_once_after_any_idle_time() {
    for bits in [10, 30, 33, 36, 44, 50, 60] {
        let fixture = Fixture::with(|builder| builder.tick(Duration::from_nanos(10)).wheel_size(8));
        assert_eq!(fixture.advance(Duration::from_nanos((1 << bits) + 5)), []);
        fixture.after(Duration::ZERO, 1);
        assert_eq!(fixture.advance(Duration::ZERO), [1], "after 2^{bits} ns");
    }
}

#[test]
fn what_is_too_far_away_does_not_expire_and_wakes_nobody() {
    let fixture = Fixture::new();
    let now = fixture.clock.now();
    let mut extreme = now;
    // The last instant that the platform can express.
    for step in (0..64).rev().map(|bits| Duration::from_secs(1 << bits)) {
        extreme = extreme.checked_add(step).unwrap_or(extreme);
    }
    fixture.after(Duration::MAX, 1);
    fixture.after(1000 * YEAR, 2);
    let timeout = fixture.timer.add(TimerEntry::at(extreme, 3)).unwrap();
    for _ in 0..58 {
        assert_eq!(fixture.advance(10 * YEAR), []);
    }
    fixture.timer.add(TimerEntry::new(When::Never, 4)).unwrap();
    assert_eq!((timeout.is_pending(), timeout.deadline()), (true, None));
    assert_eq!(
        fixture.advance(1000 * YEAR),
        [],
        "the clock has come to its end"
    );
    assert_eq!((fixture.timer.len(), fixture.timer.stats().wakeups), (4, 0));
    let returned = fixture.timer.shutdown();
    assert_eq!(
        returned.iter().map(TimerEntry::when).collect::<Vec<_>>(),
        [When::Never; 4]
    );
}

/// The last tick before the clock's end is a partial one: nothing is due at its end, but what has
/// passed in it is. Seen to fail: what was touched in it was lost.
#[test]
fn what_has_passed_in_the_last_partial_tick_expires() {
    let ways: [fn(&Timeout<u32>, Instant) -> bool; 4] = [
        |_, _| true,
        |timeout, at| timeout.touch(at),
        |timeout, at| timeout.reschedule(at),
        |timeout, at| timeout.hasten(at - 2 * MS),
    ];
    for moves in ways {
        let fixture = Fixture::with(|builder| builder.tick(584 * YEAR));
        fixture.clock.advance(584 * YEAR + HOUR);
        let past = fixture.clock.now() - MS;
        let timeout = fixture.timer.add(TimerEntry::at(past - MS, 1)).unwrap();
        assert!(moves(&timeout, past));
        assert_eq!(fixture.advance(Duration::ZERO), [1]);
    }
}

#[test]
fn an_instant_before_the_timer_was_built_counts_as_the_moment_at_which_it_was() {
    let fixture = Fixture::new();
    let built = fixture.clock.now();
    let mut before: Instant = built;
    // The first instant that the platform can express.
    for step in (0..64).rev().map(|bits| Duration::from_secs(1 << bits)) {
        before = before.checked_sub(step).unwrap_or(before);
    }
    let early = fixture.timer.add(TimerEntry::at(before, 1)).unwrap();
    assert_eq!(early.deadline(), Some(built));
    let moved = fixture.after(HOUR, 2);
    assert!(moved.reschedule(before));
    assert_eq!(moved.deadline(), Some(built));
    assert_eq!(fixture.advance(7 * MS).len(), 2);
    let lateness = fixture.timer.stats().lateness;
    assert_eq!(
        (lateness.count(), lateness.sum()),
        (2, 14 * MS),
        "counted from then as well"
    );
    fixture.timer.add(TimerEntry::at(before, 3)).unwrap();
    let returned = fixture.timer.shutdown();
    assert_eq!(returned[0].when(), When::At(built));
}

#[test]
fn after_an_idle_hour_a_short_timer_is_filed_in_level_0_and_needs_no_cascade() {
    let fixture = Fixture::new();
    fixture.after(MS, 1);
    fixture.after(24 * HOUR, 2);
    assert_eq!(fixture.advance(MS), [1]);
    fixture.clock.advance(HOUR);
    let before = fixture.timer.stats().cascaded;
    fixture.after(MS, 3);
    let levels = fixture.timer.snapshot().levels;
    assert_eq!(
        (levels[0].level, levels[0].entries, levels[0].armed_buckets),
        (0, 1, 1)
    );
    assert_eq!(levels[0].next_expiration, Some(MS));
    assert_eq!(fixture.advance(MS), [3]);
    assert_eq!(fixture.timer.stats().cascaded, before);
}

#[test]
fn a_jump_of_the_clock_over_years_costs_no_time_per_tick() {
    let fixture = Fixture::with(|builder| builder.tick(NS).wheel_size(4));
    fixture.after(500 * YEAR, 1);
    assert_eq!(fixture.advance(499 * YEAR), []); // Some 10^19 ticks: by ones this would not end.
    assert_eq!(fixture.advance(YEAR), [1]);
}

#[test]
fn next_expiration_is_the_first_tick_or_the_present_or_none() {
    let fixture = Fixture::new();
    let built = fixture.clock.now();
    assert_eq!(fixture.timer.next_expiration(), None);
    let near = fixture.after(3 * MS - NS, 1);
    fixture.after(HOUR, 2);
    assert_eq!(fixture.timer.next_expiration(), Some(built + 3 * MS));
    fixture.clock.advance(5 * MS);
    assert_eq!(
        fixture.timer.next_expiration(),
        Some(built + 5 * MS),
        "something is due"
    );
    assert!(near.cancel().is_cancelled());
    assert_eq!(fixture.advance(Duration::ZERO), []);
    let next = fixture.timer.next_expiration().expect("one is pending");
    assert!(next > built + HOUR / 2 && next <= built + HOUR, "{next:?}");
}

/// The same if they lie in more buckets than are looked at under one hold of a lock.
#[test]
fn there_is_no_next_expiration_when_many_buckets_that_were_due_are_cancelled() {
    let fixture = Fixture::new();
    let timeouts: Vec<_> = (1..=400).map(|id| fixture.after(id * MS, id)).collect();
    assert!(
        timeouts
            .iter()
            .all(|timeout| timeout.cancel().is_cancelled())
    );
    fixture.clock.advance(HOUR);
    assert_eq!(fixture.timer.next_expiration(), None);
    fixture.timer.assert_invariants();
}

/// The same if many were cancelled in an order that leaves their references behind.
#[test]
fn there_is_no_next_expiration_when_a_full_bucket_is_cancelled_from_its_end() {
    let fixture = Fixture::new();
    let timeouts: Vec<_> = (0..200).map(|id| fixture.after(5 * MS, id)).collect();
    for timeout in timeouts.iter().rev() {
        assert!(timeout.cancel().is_cancelled());
    }
    assert!(fixture.timer.is_empty());
    assert_eq!(fixture.timer.next_expiration(), None);
}

#[test]
fn a_bucket_with_many_cancelled_timers_in_front_keeps_the_others() {
    let fixture = Fixture::new();
    let tick = fixture.clock.now() + 5 * MS;
    let timeouts: Vec<_> = (0..200).map(|id| fixture.after(5 * MS, id)).collect();
    for timeout in &timeouts[..150] {
        assert!(timeout.cancel().is_cancelled());
    }
    assert_eq!(fixture.timer.next_expiration(), Some(tick));
    fixture.timer.assert_invariants();
    fixture.after(5 * MS, 200);
    assert!(fixture.advance(5 * MS).into_iter().eq(150..=200));
}
