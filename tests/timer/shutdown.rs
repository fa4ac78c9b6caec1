//! How a timer ends.

use crate::{Fixture, HOUR, MS};
use std::sync::Arc;
use std::time::Duration;
use tickwheel::{Cancel, ManualClock, Timer, TimerEntry, When};

#[test]
fn shutdown_returns_what_is_pending_by_deadline_and_a_second_one_nothing() {
    let fixture = Fixture::with(|builder| builder.wheel_size(4));
    let built = fixture.clock.now();
    let delays = [HOUR, 7 * MS, Duration::ZERO, Duration::from_nanos(7_000_001), 100 * HOUR];
    let handles: Vec<_> =
        delays.iter().zip(0..).map(|(delay, id)| fixture.after(*delay, id)).collect();
    assert!(handles[1].touch(2 * HOUR));
    assert!(fixture.after(MS, 99).cancel().is_cancelled());
    let returned = fixture.timer.shutdown();
    let returned: Vec<_> = returned.iter().map(|entry| (entry.when(), *entry.task())).collect();
    let at = |delay| When::At(built + delay);
    let odd = at(Duration::from_nanos(7_000_001));
    let expected =
        [(at(Duration::ZERO), 2), (odd, 3), (at(HOUR), 0), (at(2 * HOUR), 1), (at(100 * HOUR), 4)];
    assert_eq!(returned, expected);
    assert!(handles.iter().all(|handle| handle.is_expired() && handle.cancel() == Cancel::Expired));
    assert_eq!(fixture.timer.shutdown().len(), 0);
    let stats = fixture.timer.stats();
    assert_eq!((stats.added, stats.cancelled, stats.returned, stats.pending), (6, 1, 5, 0));
    assert_eq!(fixture.advance(200 * HOUR), []);
    assert_eq!(fixture.timer.next_expiration(), None);
}

#[test]
fn another_timer_accepts_what_shutdown_returned() {
    let fixture = Fixture::new();
    fixture.after(5 * MS, 1);
    fixture.after(3 * MS, 2);
    let next = Fixture::with(|builder| builder.clock(fixture.clock.clone()));
    for entry in fixture.timer.shutdown() {
        next.timer.add(entry).unwrap();
    }
    fixture.clock.advance(4 * MS);
    assert_eq!(next.advance(Duration::ZERO), [2]);
    fixture.clock.advance(MS);
    assert_eq!(next.advance(Duration::ZERO), [1]);
}

/// Calls something where a step that calls itself for each timer would overflow the stack.
fn on_a_small_stack(call: impl FnOnce() + Send + 'static) {
    let small = std::thread::Builder::new().stack_size(512 << 10);
    small.spawn(call).unwrap().join().expect("the stack sufficed");
}

fn very_many() -> Fixture {
    let fixture = Fixture::new();
    let mut at = 0;
    for id in 0..100_000 {
        at = (at * 1_103_515_245 + 12_345) % 100_000_007;
        fixture.after(Duration::from_micros(at), id);
    }
    fixture
}

#[test]
fn shutdown_of_very_many_needs_no_deep_stack() {
    on_a_small_stack(|| {
        let fixture = very_many();
        let returned = fixture.timer.shutdown();
        assert_eq!(returned.len(), 100_000);
        let times = |entry: &TimerEntry<u32>| match entry.when() {
            When::At(deadline) => deadline,
            When::After(_) => panic!("it knows its deadline"),
        };
        assert!(returned.is_sorted_by_key(times));
        fixture.timer.assert_invariants();
    });
}

#[test]
fn to_drop_or_expire_very_many_needs_no_deep_stack() {
    on_a_small_stack(|| drop(very_many()));
    on_a_small_stack(|| assert_eq!(very_many().advance(HOUR).len(), 100_000));
    on_a_small_stack(|| {
        let fixture = Fixture::new();
        for id in 0..100_000 {
            fixture.after(MS, id); // In one bucket.
        }
        assert_eq!(fixture.advance(MS).len(), 100_000);
    });
}

/// A task whose drop panics, or looks at its own timeout.
#[derive(Debug)]
struct Bomb {
    panics: bool,
    own: Arc<std::sync::OnceLock<tickwheel::Timeout<Bomb>>>,
    dropped: Arc<std::sync::atomic::AtomicU32>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(self.own.get().is_none_or(|own| !own.is_pending()));
        assert!(!self.panics, "in the drop of a task");
    }
}

#[test]
fn a_pending_task_that_panics_when_the_timer_is_dropped_does_not_disturb_the_others() {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock).shards(1).executor(|_: Bomb| ());
    let timer = builder.build().unwrap();
    let dropped = Arc::default();
    for n in 0..300 {
        let (own, dropped) = (Arc::default(), Arc::clone(&dropped));
        let bomb = Bomb { panics: n == 0, own: Arc::clone(&own), dropped };
        let timeout = timer.add(TimerEntry::after(HOUR, bomb)).unwrap();
        own.set(timeout).unwrap();
    }
    // Its panic is contained, and none is dropped under a lock that its handle takes.
    drop(timer);
    assert_eq!(dropped.load(std::sync::atomic::Ordering::Relaxed), 300);
}
