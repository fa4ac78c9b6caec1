//! Models of futures on a timer. A wake-up that is lost is a deadlock.

use crate::harness::{both, explore};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tickwheel::future::{SleepError, TimedError};
use tickwheel::{ManualClock, Timer, TimerBuilder};

pub(crate) const NANO: Duration = Duration::from_nanos(1);

/// Starts to build a timer with the smallest wheels and one shard.
pub(crate) fn builder() -> (TimerBuilder, ManualClock) {
    let clock = ManualClock::new();
    (
        Timer::builder()
            .tick(NANO)
            .wheel_size(4)
            .shards(1)
            .clock(clock.clone()),
        clock,
    )
}

/// Returns a timer that is driven by hand.
pub(crate) fn by_hand() -> (Timer, ManualClock) {
    let (builder, clock) = builder();
    (builder.build().expect("it can be built"), clock)
}

/// Returns a timer with a reaper.
pub(crate) fn with_reaper() -> (Timer, ManualClock) {
    let (builder, clock) = builder();
    (builder.start().expect("it can be built"), clock)
}

/// Lets time pass and expires what is due.
pub(crate) fn pass(timer: &Timer, clock: &ManualClock, nanos: u32) {
    clock.advance(nanos * NANO);
    timer.advance_clock(Duration::ZERO);
}

/// Asserts that nothing is left in the timer.
pub(crate) fn assert_empty(timer: &Timer) {
    timer.assert_invariants();
    assert!(timer.is_empty(), "a timeout is left behind");
    assert_eq!(timer.stats().panicked, 0);
}

/// Counts how often it is woken.
#[derive(Default)]
pub(crate) struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(woken));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Two futures are dropped as one of them is woken: nothing is left of them.
///
/// Fails when dropping a `Sleep` does not cancel its timeout.
#[test]
fn drop_of_a_sleep_against_wake() {
    explore("drop_of_a_sleep_against_wake", 2, || {
        let (timer, clock) = by_hand();
        let woken = Arc::new(Woken::default());
        let mut sleeps = [timer.sleep(2 * NANO), timer.sleep(9 * NANO)];
        for sleep in &mut sleeps {
            assert_eq!(poll(sleep, &woken), Poll::Pending);
        }
        both(|| drop(sleeps), || pass(&timer, &clock, 2));
        assert_empty(&timer);
        assert_eq!(Arc::strong_count(&woken), 1, "a waker is kept");
        let stats = timer.stats();
        assert_eq!((stats.added, stats.cancelled + stats.expired), (2, 2));
        assert_eq!(stats.expired, woken.count() as u64);
        format!("woken {}", woken.count())
    });
}

/// A sleep is polled with a new waker as it expires: it was ready, or the last to poll is woken.
///
/// Fails when `poll` keeps the former waker.
#[test]
fn poll_against_wake() {
    explore("poll_against_wake", 3, || {
        let (timer, clock) = by_hand();
        let woken = [(); 2].map(|()| Arc::new(Woken::default()));
        let mut sleep = timer.sleep(2 * NANO);
        assert_eq!(poll(&mut sleep, &woken[0]), Poll::Pending);
        let (polled, _) = both(|| poll(&mut sleep, &woken[1]), || pass(&timer, &clock, 2));
        timer.advance_clock(Duration::ZERO); // For who polled between the two.
        assert!(
            polled.is_ready() || woken[1].count() == 1,
            "nobody is woken"
        );
        assert_eq!(poll(&mut sleep, &woken[1]), Poll::Ready(Ok(())));
        assert_empty(&timer);
        assert!(
            woken.iter().all(|woken| Arc::strong_count(woken) == 1),
            "a waker is kept"
        );
        format!(
            "{polled:?}, woken {} {}",
            woken[0].count(),
            woken[1].count()
        )
    });
}

/// A sleep is polled as it expires, and its place in a full timer is taken.
///
/// Fails when a poll that finds its entry gone adds the sleep anew, whatever the time.
#[test]
fn poll_against_wake_in_a_full_timer() {
    explore("poll_against_wake_in_a_full_timer", 2, || {
        let (builder, clock) = builder();
        let timer = builder.max_pending(1).build().expect("it can be built");
        let woken = Arc::new(Woken::default());
        let mut sleep = timer.sleep(2 * NANO);
        assert_eq!(poll(&mut sleep, &woken), Poll::Pending);
        let fill = || {
            pass(&timer, &clock, 2);
            assert!(timer.after(9 * NANO, || ()).is_ok(), "there is room");
        };
        let (polled, ()) = both(|| poll(&mut sleep, &woken), fill);
        assert!(
            matches!(polled, Poll::Pending | Poll::Ready(Ok(()))),
            "{polled:?}"
        );
        if polled.is_pending() {
            assert_eq!(poll(&mut sleep, &woken), Poll::Ready(Ok(())));
        }
        format!("{polled:?}")
    });
}

/// A sleep is moved to a later and to an earlier time as it expires: it is ready at the last one,
/// not before, and its sleeper is woken for it.
///
/// Fails when `reset` keeps a timeout that has expired, and `poll` does not look whether it has.
#[test]
fn reset_against_wake() {
    explore("reset_against_wake", 4, || {
        let (timer, clock) = with_reaper();
        let start = timer.now();
        let mut sleep = timer.sleep(2 * NANO);
        let mut resets = [9, 6].into_iter();
        let mut polls = 0;
        let (at, ()) = both(
            || {
                let slept = poll_fn(|context| {
                    polls += 1;
                    let mut polled = Pin::new(&mut sleep).poll(context);
                    for nanos in resets.by_ref() {
                        sleep.reset(start + nanos * NANO);
                        polled = Pin::new(&mut sleep).poll(context);
                    }
                    polled
                });
                assert_eq!(block_on(slept), Ok(()));
                timer.now()
            },
            || (0..3).for_each(|_| clock.advance(3 * NANO)),
        );
        assert!(at >= start + 6 * NANO, "too early");
        drop(timer.shutdown());
        assert_empty(&timer);
        format!("{:?}, {polls} polls", at - start)
    });
}

/// A shutdown wakes those who sleep; who is woken, or only then goes to sleep, ends with an error.
///
/// Fails when a shutdown does not wake those who sleep.
#[test]
fn sleep_against_shutdown() {
    explore("sleep_against_shutdown", 1, || {
        let (timer, _) = by_hand();
        both(
            || assert_eq!(block_on(timer.sleep(2 * NANO)), Err(SleepError::Shutdown)),
            || assert!(timer.shutdown().is_empty(), "a sleep is no task"),
        );
        assert_empty(&timer);
        String::new()
    });
}

/// Time limits are dropped as one of them is up: nothing is left of them, nor of the futures in
/// them.
///
/// Fails when dropping a `Sleep` does not cancel its timeout.
#[test]
fn drop_of_a_time_limit_against_wake() {
    explore("drop_of_a_time_limit_against_wake", 2, || {
        let (timer, clock) = by_hand();
        let woken = Arc::new(Woken::default());
        let inside = Arc::new(());
        let limit = |delay| {
            let held = Arc::clone(&inside);
            Box::pin(timer.timeout(delay, async move {
                pending::<()>().await;
                drop(held);
            }))
        };
        let mut limits = [limit(2 * NANO), limit(9 * NANO)];
        let waker = Waker::from(Arc::clone(&woken));
        for limit in &mut limits {
            assert!(
                limit
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        drop(waker);
        let mut elapsed = false;
        both(
            || {
                let [mut one, other] = limits;
                elapsed = poll(&mut one, &woken) == Poll::Ready(Err(TimedError::Elapsed));
                drop((one, other));
            },
            || pass(&timer, &clock, 2),
        );
        assert_empty(&timer);
        assert_eq!(
            (Arc::strong_count(&woken), Arc::strong_count(&inside)),
            (1, 1)
        );
        format!("{elapsed}, woken {}", woken.count())
    });
}

/// The time is up after the future was ready: what is ready in time is never lost.
///
/// Fails when the future is polled before the time is looked at, and not once more after it.
#[test]
fn time_limit_against_its_future() {
    explore("time_limit_against_its_future", 2, || {
        let (timer, clock) = with_reaper();
        let ready = AtomicBool::new(false);
        let mut polls = 0;
        let future = poll_fn(|_| {
            polls += 1;
            if ready.load(Ordering::SeqCst) {
                Poll::Ready(7)
            } else {
                Poll::Pending
            }
        });
        let limited = timer.timeout(2 * NANO, future);
        both(
            || assert_eq!(block_on(limited), Ok(7)),
            || {
                ready.store(true, Ordering::SeqCst);
                clock.advance(9 * NANO);
            },
        );
        drop(timer.shutdown());
        assert_empty(&timer);
        format!("{polls} polls")
    });
}
