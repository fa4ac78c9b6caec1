//! How a timer ends, and what that means for what is built on it.

use crate::calls;
use crate::wakes::Wakes;
use crate::{Fixture, HOUR, MS};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tickwheel::future::SleepError;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{FutureOperation, Purgatory};
use tickwheel::{Executor, ManualClock, Task, Timer, TimerEntry, WeakTimer, When};

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

/// Seen to fail: a loop that sleeps until the next expiration would have turned for ever.
#[test]
fn after_a_shutdown_nothing_is_next_though_a_key_is_due() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let keyed = KeyedTimer::new(&timer, |_: u8, _: u8| ());
    keyed.add(1, MS, 1).unwrap();
    assert_eq!(timer.next_expiration(), Some(timer.now() + MS));
    timer.shutdown();
    clock.advance(HOUR);
    assert_eq!(
        (
            timer.next_expiration(),
            timer.advance_clock(HOUR),
            keyed.len()
        ),
        (None, 0, 1)
    );
}

/// Calls something where a step that calls itself for each timer would overflow the stack.
fn on_a_small_stack(call: impl FnOnce() + Send + 'static) {
    let small = std::thread::Builder::new().stack_size(512 << 10);
    small
        .spawn(call)
        .unwrap()
        .join()
        .expect("the stack sufficed");
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
            other => panic!("{other:?}: it knows its deadline"),
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

/// A task whose drop looks at its own timeout.
#[derive(Debug)]
struct Looks {
    own: Arc<std::sync::OnceLock<tickwheel::Timeout<Looks>>>,
    dropped: Arc<std::sync::atomic::AtomicU32>,
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.dropped
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(self.own.get().is_none_or(|own| !own.is_pending()));
    }
}

#[test]
fn a_pending_task_is_dropped_with_its_timer_under_no_lock_that_its_handle_takes() {
    let clock = ManualClock::new();
    let builder = Timer::builder()
        .clock(clock)
        .shards(1)
        .executor(|_: Looks| ());
    let timer = builder.build().unwrap();
    let dropped = Arc::default();
    for _ in 0..300 {
        let own = Arc::default();
        let dropped = Arc::clone(&dropped);
        let looks = Looks {
            own: Arc::clone(&own),
            dropped,
        };
        let timeout = timer.add(TimerEntry::after(HOUR, looks)).unwrap();
        own.set(timeout).unwrap();
    }
    drop(timer);
    assert_eq!(dropped.load(std::sync::atomic::Ordering::Relaxed), 300);
}

/// Who wants the closures takes them first.
#[test]
fn the_closures_of_a_timer_with_its_own_tasks_can_be_taken_back() {
    let timer = Timer::builder()
        .clock(ManualClock::new())
        .executor(|_: u64| ())
        .build()
        .unwrap();
    assert!(timer.after(MS, 7_u64).is_ok());
    assert!(timer.closures().after(MS, || ()).is_ok());
    assert_eq!((timer.closures().shutdown().len(), timer.len()), (1, 1));
    assert_eq!((timer.shutdown().len(), timer.len()), (1, 0));
}

/// An executor may refuse it, a list may be forgotten: no future sleeps for ever.
#[test]
fn a_sleep_wakes_also_if_its_task_is_dropped() {
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(Arc::clone(&wakes));
    let clock = ManualClock::new();
    let mut context = Context::from_waker(&waker);
    let timer = Timer::builder()
        .clock(clock.clone())
        .executor(Err::<(), Task>);
    let timer: Timer = timer.build().unwrap();
    let mut sleep = timer.sleep(MS);
    assert_eq!(Pin::new(&mut sleep).poll(&mut context), Poll::Pending);
    clock.advance(MS);
    assert_eq!((timer.advance_clock(Duration::ZERO), wakes.take()), (1, 1));
    assert_eq!(Pin::new(&mut sleep).poll(&mut context), Poll::Ready(Ok(())));

    let [mut reset, mut other] = [(); 2].map(|()| timer.sleep(MS));
    assert_eq!(Pin::new(&mut reset).poll(&mut context), Poll::Pending);
    assert_eq!(Pin::new(&mut other).poll(&mut context), Poll::Pending);
    reset.reset(HOUR);
    let another = Waker::from(Arc::<Wakes>::default());
    assert_eq!(
        Pin::new(&mut other).poll(&mut Context::from_waker(&another)),
        Poll::Pending
    );
    assert_eq!(Pin::new(&mut other).poll(&mut context), Poll::Pending);
    drop(other);
    assert_eq!(wakes.take(), 0, "a future that is gone is not woken");
    drop(timer.shutdown());
    assert_eq!(wakes.take(), 1);
    assert_eq!(
        Pin::new(&mut reset).poll(&mut context),
        Poll::Ready(Err(SleepError::Shutdown))
    );
    assert_eq!(wakes.take(), 0, "nobody sleeps");
}

/// A waker may shut the timer down itself. Seen to fail: it was woken inside itself until the stack
/// was at its end.
#[test]
fn a_waker_that_shuts_the_timer_down_is_woken_a_bounded_number_of_times() {
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let own = timer.downgrade();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let waker = calls::waker(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        own.upgrade().map(|timer| timer.shutdown());
    });
    let listener = timer.listener();
    assert_eq!(listener.next_expiration(&waker), None);
    drop(timer.after(HOUR, || ()));
    assert!(timer.is_shutdown());
    assert_eq!(
        calls.swap(0, Ordering::Relaxed),
        2,
        "for the timer, and for the shutdown"
    );
    timer.shutdown();
    drop(timer);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert_eq!(listener.next_expiration(&waker), None);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "at once");
    drop((listener, waker));
    assert_eq!(Arc::strong_count(&calls), 1);
}

/// Whoever exports them as counters would see a restart.
#[test]
fn counts_never_fall_while_purgatories_end() {
    let timer = Timer::builder().build().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..400 {
                let purgatory: Purgatory<u8, FutureOperation> = Purgatory::new(&timer);
                let waits = [(); 20].map(|()| purgatory.wait(|| false, HOUR, &[1]));
                assert!(waits.iter().all(Result::is_ok));
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut last = 0;
        while !over.load(Ordering::Relaxed) {
            let added = timer.stats().added;
            assert!(added >= last, "{added} after {last}");
            last = added;
        }
    });
    assert_eq!(timer.stats().added, 8_000);
}

/// Counting does not begin anew for each owner that leaves: here one does so each time.
#[test]
fn stats_return_though_a_keyed_timer_ends_whenever_they_count() {
    struct EndsOne(Arc<OnceLock<WeakTimer>>, Arc<AtomicUsize>);
    impl Executor<Task> for EndsOne {
        fn execute(&self, _: Task) -> Result<(), Task> {
            Ok(())
        }
        fn panicked(&self) -> u64 {
            let timer = self.0.get().and_then(WeakTimer::upgrade);
            if let Some(timer) = timer.filter(|_| self.1.fetch_add(1, Ordering::Relaxed) < 100) {
                let keyed = KeyedTimer::new(&timer, |_: u8, ()| ());
                assert!(keyed.add(1, HOUR, ()).is_ok());
            }
            0
        }
    }
    let weak = Arc::new(OnceLock::new());
    let counts = Arc::new(AtomicUsize::new(0));
    let executor = EndsOne(Arc::clone(&weak), Arc::clone(&counts));
    let timer = Timer::builder().executor(executor).build().unwrap();
    assert!(weak.set(timer.downgrade()).is_ok());
    let stats = timer.stats();
    assert_eq!(counts.load(Ordering::Relaxed), 1);
    assert_eq!(
        (stats.added, stats.cancelled, timer.stats().added),
        (1, 1, 2)
    );
}
