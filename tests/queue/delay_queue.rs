//! What the tests of tokio-util's `DelayQueue` are about, but for the wake-ups of its slots.

use crate::{Fixture, HOUR, MS};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Moves the clock in steps of a tick. Returns what expires, and after how many steps each.
fn follow(fixture: &mut Fixture<u32, u32>, ticks: u32) -> Vec<(u32, u32)> {
    let mut seen = Vec::new();
    for tick in 1..=ticks {
        fixture.clock.advance(MS);
        seen.extend(fixture.expired().into_iter().map(|value| (tick, value)));
    }
    seen
}

fn of(delays_ms: &[(u32, u32)]) -> Fixture<u32, u32> {
    let mut fixture = Fixture::new();
    for (key, ms) in delays_ms {
        fixture.queue.insert(*key, *ms * MS, *key);
    }
    fixture
}

#[test]
fn what_is_due_when_it_is_inserted_comes_with_the_next_poll() {
    let mut fixture = of(&[(1, 0), (2, 0), (3, 0)]);
    assert_eq!(fixture.expired(), [1, 2, 3]);
    fixture.clock.advance(HOUR);
    let past: Instant = fixture.clock.now() - HOUR / 2;
    fixture.queue.insert(4, past, 4);
    assert_eq!(fixture.expired(), [4]);
    fixture.queue.insert(5, HOUR, 5);
    assert!(fixture.poll().is_pending());
    fixture.woken();
    fixture.queue.insert(6, past, 6);
    assert_eq!((fixture.woken(), fixture.expired()), (1, vec![6]));
    assert_eq!(fixture.queue.remove(&5), Some(5));
}

#[test]
fn each_comes_at_its_tick_whatever_was_inserted_before_or_after() {
    let mut fixture = of(&[(1, 3), (2, 5), (3, 3), (4, 100)]);
    assert_eq!(follow(&mut fixture, 2), []);
    fixture.queue.insert(5, MS, 5);
    assert_eq!(follow(&mut fixture, 3), [(1, 1), (1, 3), (1, 5), (3, 2)]);
    fixture.queue.insert(6, 2 * MS, 6);
    assert_eq!(follow(&mut fixture, 95), [(2, 6), (95, 4)]);
    assert_eq!(fixture.poll(), Poll::Ready(None));
}

#[test]
fn a_deadline_that_was_moved_counts_and_no_other() {
    // The new delay, a tick later; and when it comes, in ticks from then on.
    for (new, comes) in [
        (0, 1),
        (1, 1),
        (3, 3),
        (9, 9),
        (63, 63),
        (64, 64),
        (500, 500),
    ] {
        for polls in [false, true] {
            let mut fixture = of(&[(1, 5), (2, 600)]);
            if polls {
                assert!(fixture.poll().is_pending());
            }
            fixture.clock.advance(MS);
            assert!(fixture.queue.reschedule(&1, HOUR) && fixture.queue.reschedule(&1, new * MS));
            let is_earlier = new < 4;
            assert!(!polls || !is_earlier || fixture.woken() == 1, "{new}");
            let at_once = if new == 0 { fixture.expired() } else { vec![] };
            let seen = follow(&mut fixture, 598);
            match new {
                0 => assert_eq!((at_once, seen), (vec![1], vec![])),
                _ => assert_eq!(seen, [(comes, 1)]),
            }
            assert_eq!(follow(&mut fixture, 1), [(1, 2)]);
        }
    }
}

#[test]
fn what_is_extended_again_and_again_does_not_come_meanwhile() {
    let mut fixture = of(&[(1, 0), (2, 50)]);
    for _ in 0..200 {
        assert!(fixture.queue.reschedule(&1, 2 * MS) && fixture.queue.touch(&2, 50 * MS));
        assert_eq!(follow(&mut fixture, 1), []);
    }
    assert_eq!(follow(&mut fixture, 50), [(1, 1), (49, 2)]);
}

#[test]
fn what_is_due_may_be_removed_or_moved_until_it_was_polled() {
    let mut fixture = of(&[(1, 5), (2, 5), (3, 5)]);
    fixture.clock.advance(10 * MS);
    assert_eq!(fixture.queue.remove(&1), Some(1));
    assert!(fixture.queue.reschedule(&2, 5 * MS));
    assert_eq!(fixture.expired(), [3]);
    assert_eq!(follow(&mut fixture, 5), [(5, 2)]);
}

/// Where slots and levels begin.
#[test]
fn what_lies_at_the_edge_of_a_wheel_is_removed_and_expires() {
    let minute = Duration::from_secs(60);
    for edge in [
        1,
        2,
        32,
        63,
        64,
        65,
        127,
        128,
        2_047,
        2_048,
        2_049,
        65_536,
        1 << 25,
    ] {
        let mut fixture = of(&[(1, edge), (2, edge), (3, edge + 1)]);
        assert_eq!(fixture.queue.remove(&1), Some(1));
        fixture.clock.advance(edge * MS - Duration::from_nanos(1));
        assert_eq!(fixture.expired(), []);
        assert_eq!(follow(&mut fixture, 2), [(1, 2), (2, 3)], "{edge}");
    }
    let mut fixture = Fixture::new();
    let year = 60 * 24 * 365 * minute;
    fixture.queue.insert(1, 3 * year, 1); // More than `DelayQueue` takes.
    fixture.clock.advance(3 * year - minute);
    assert!(fixture.poll().is_pending());
    fixture.clock.advance(minute);
    assert_eq!(fixture.expired(), [1]);
}

/// Keys are the caller's, so nothing is mapped anew.
#[test]
fn a_queue_that_was_shrunk_knows_its_keys() {
    let mut fixture = of(&[]);
    for key in 0..1_000 {
        fixture.queue.insert(key, (key + 1) * MS, key);
    }
    assert_eq!(follow(&mut fixture, 400).len(), 400);
    (500..1_000).for_each(|key| assert_eq!(fixture.queue.remove(&key), Some(key)));
    fixture.queue.shrink_to_fit();
    assert!(fixture.queue.capacity() < 500);
    assert!(fixture.queue.reschedule(&450, MS));
    assert_eq!(fixture.queue.remove(&499), Some(499));
    let seen = follow(&mut fixture, 1);
    assert_eq!(seen, [(1, 400), (1, 450)]);
    assert_eq!(
        (follow(&mut fixture, 98).len(), fixture.poll()),
        (97, Poll::Ready(None))
    );
    fixture.queue.shrink_to_fit();
    assert_eq!(
        (fixture.queue.capacity(), fixture.queue.insert(1, MS, 1)),
        (0, None)
    );
}

#[test]
fn peek_sees_what_comes_first_also_among_those_of_one_slot() {
    let mut fixture = of(&[(1, 9), (2, 70), (3, 68)]);
    let first = |fixture: &Fixture<u32, u32>| fixture.queue.peek().map(|(key, _, _)| *key);
    assert_eq!(first(&fixture), Some(1));
    fixture.queue.reschedule(&1, HOUR);
    assert_eq!(first(&fixture), Some(3));
    fixture.queue.remove(&3);
    assert_eq!(first(&fixture), Some(2));
    assert_eq!(follow(&mut fixture, 70), [(70, 2)]);
    assert_eq!(first(&fixture), Some(1));
    fixture.queue.clear();
    assert_eq!(first(&fixture), None);
}
