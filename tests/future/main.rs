//! Sleeps, timeouts and intervals, polled by hand in virtual time.

mod alarm;
mod drive;
mod model;
#[path = "../common/quick.rs"]
mod quick;
mod ready;
#[cfg(feature = "stream")]
mod stream;
#[path = "../common/wakes.rs"]
mod wakes;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tickwheel::future::{SleepError, TimedError};
use tickwheel::periodic::MissedTick;
use tickwheel::{ManualClock, Task, Timer, TimerEntry};
use wakes::Wakes;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    timer: Timer,
    clock: ManualClock,
    wakes: Arc<Wakes>,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .shards(1)
            .clock(clock.clone())
            .build()
            .unwrap();
        Fixture {
            timer,
            clock,
            wakes: Arc::default(),
        }
    }

    fn poll<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        future.poll(&mut Context::from_waker(&waker))
    }

    /// Returns how many wake-ups come when the clock is moved by `step`.
    fn advance(&self, step: Duration) -> usize {
        self.clock.advance(step);
        self.timer.advance_clock(Duration::ZERO);
        self.timer.assert_invariants();
        self.wakes.take()
    }
}

#[test]
fn a_sleep_is_ready_at_its_deadline_and_wakes_once() {
    let fixture = Fixture::new();
    let mut sleep = pin!(fixture.timer.sleep(10 * MS));
    assert_eq!(sleep.deadline(), Some(fixture.clock.now() + 10 * MS));
    for _ in 0..3 {
        assert_eq!(fixture.poll(sleep.as_mut()), Poll::Pending);
        assert_eq!(fixture.timer.len(), 1, "polling again adds nothing");
    }
    assert_eq!(fixture.advance(10 * MS - Duration::from_nanos(1)), 0);
    assert_eq!(fixture.poll(sleep.as_mut()), Poll::Pending);
    assert_eq!(fixture.advance(Duration::from_nanos(1)), 1);
    assert_eq!(fixture.poll(sleep.as_mut()), Poll::Ready(Ok(())));
    assert!(sleep.is_elapsed() && fixture.timer.is_empty());
}

#[test]
fn what_has_passed_is_ready_at_once_and_what_is_too_far_never() {
    let fixture = Fixture::new();
    assert_eq!(
        fixture.poll(pin!(fixture.timer.sleep(Duration::ZERO))),
        Poll::Ready(Ok(()))
    );
    let past = fixture.clock.now();
    fixture.advance(MS);
    assert_eq!(
        fixture.poll(pin!(fixture.timer.sleep(past))),
        Poll::Ready(Ok(()))
    );
    let mut far = pin!(fixture.timer.sleep(Duration::MAX));
    assert_eq!(fixture.poll(far.as_mut()), Poll::Pending);
    assert_eq!(fixture.advance(1_000_000 * HOUR), 0);
    assert_eq!(fixture.poll(far.as_mut()), Poll::Pending);
}

#[test]
fn a_delay_that_is_over_before_the_first_poll_ends_in_the_next_turn_or_after_the_last() {
    let fixture = Fixture::new();
    let [mut before, mut after] = [
        pin!(fixture.timer.sleep(10 * MS)),
        pin!(fixture.timer.sleep(10 * MS)),
    ];
    fixture.clock.advance(20 * MS);
    assert_eq!(fixture.poll(before.as_mut()), Poll::Pending);
    assert_eq!(fixture.timer.next_expiration(), Some(fixture.clock.now()));
    assert_eq!(fixture.advance(Duration::ZERO), 1);
    assert_eq!(fixture.poll(before.as_mut()), Poll::Ready(Ok(())));
    assert_eq!(fixture.poll(after.as_mut()), Poll::Ready(Ok(())));
}

#[test]
fn a_sleep_that_is_dropped_leaves_nothing() {
    let fixture = Fixture::new();
    let mut sleep = Box::pin(fixture.timer.sleep(MS));
    assert_eq!(fixture.timer.len(), 0, "before it is polled");
    assert_eq!(fixture.poll(sleep.as_mut()), Poll::Pending);
    drop(sleep);
    assert_eq!(fixture.timer.len(), 0);
    assert_eq!(fixture.advance(MS), 0);
    assert_eq!(Arc::strong_count(&fixture.wakes), 1);
}

#[test]
fn a_timeout_ends_a_future_that_takes_too_long_and_no_other() {
    let fixture = Fixture::new();
    let timer = &fixture.timer;
    let ready = timer.timeout(Duration::ZERO, async { 7 });
    assert_eq!(
        fixture.poll(pin!(ready)),
        Poll::Ready(Ok(7)),
        "it is polled first"
    );
    let mut slow = pin!(timer.timeout(10 * MS, timer.sleep(20 * MS)));
    assert_eq!(fixture.poll(slow.as_mut()), Poll::Pending);
    assert_eq!(fixture.advance(10 * MS), 1);
    assert_eq!(
        fixture.poll(slow.as_mut()),
        Poll::Ready(Err(TimedError::Elapsed))
    );
    let mut quick = pin!(timer.timeout(10 * MS, timer.sleep(MS)));
    assert_eq!(fixture.poll(quick.as_mut()), Poll::Pending);
    assert_eq!(fixture.advance(10 * MS), 2);
    assert_eq!(
        fixture.poll(quick.as_mut()),
        Poll::Ready(Ok(Ok(()))),
        "both are due"
    );
}

#[test]
fn an_interval_is_phase_stable_and_misses_ticks_as_it_was_told() {
    for (policy, expected) in [
        (MissedTick::Burst, [0, 10, 20, 30, 40]),
        (MissedTick::Skip, [0, 10, 20, 40, 50]),
        (MissedTick::Delay, [0, 10, 20, 45, 55]),
    ] {
        let fixture = Fixture::new();
        let start = fixture.clock.now();
        let mut interval = fixture.timer.interval(10 * MS).missed_tick(policy);
        let mut due = Vec::new();
        // Twice in time, then 25 ms late, then in time again.
        for step in [0, 10, 25, 0, 0, 5, 5, 10, 10, 10] {
            fixture.advance(step * MS);
            if let Poll::Ready(tick) = fixture.poll(pin!(interval.tick()).as_mut()) {
                due.push(tick.unwrap().duration_since(start).as_millis());
            }
        }
        assert_eq!(due[..5], expected, "{policy:?}");
    }
}

#[test]
fn a_full_timer_and_a_shutdown_are_errors() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock)
        .max_pending(1)
        .build()
        .unwrap();
    let fixture = Fixture {
        timer,
        ..Fixture::new()
    };
    let mut sleep = pin!(fixture.timer.sleep(HOUR));
    assert_eq!(fixture.poll(sleep.as_mut()), Poll::Pending);
    let mut second = pin!(fixture.timer.sleep(HOUR));
    assert_eq!(
        fixture.poll(second.as_mut()),
        Poll::Ready(Err(SleepError::Full))
    );
    // To be polled with another waker is not to come again: it keeps its place.
    let waker = Waker::from(Arc::<Wakes>::default());
    assert_eq!(
        sleep.as_mut().poll(&mut Context::from_waker(&waker)),
        Poll::Pending
    );
    assert_eq!(fixture.timer.stats().added, 1);
    assert_eq!(fixture.poll(sleep.as_mut()), Poll::Pending);
    // Those who slept are returned, and can be woken.
    let sleepers = fixture.timer.shutdown();
    sleepers
        .into_iter()
        .map(TimerEntry::into_task)
        .for_each(Task::run);
    assert_eq!(fixture.wakes.take(), 1);
    assert_eq!(
        fixture.poll(sleep.as_mut()),
        Poll::Ready(Err(SleepError::Shutdown))
    );
    let timed = fixture.timer.timeout(HOUR, std::future::pending::<()>());
    let error = TimedError::Sleep(SleepError::Shutdown);
    assert_eq!(fixture.poll(pin!(timed)), Poll::Ready(Err(error)));
}

#[test]
fn a_sleep_wakes_a_thread_that_waits_for_it() {
    let timer = Timer::builder().start().unwrap();
    let start = std::time::Instant::now();
    pollster::block_on(timer.sleep(5 * MS)).unwrap();
    assert!(start.elapsed() >= 5 * MS);
}
