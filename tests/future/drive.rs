//! The future that drives a timer, polled by hand in virtual time.

use crate::{Fixture, HOUR, MS};
use std::cell::{Cell, RefCell};
use std::future::{Future, Pending, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::{ManualClock, Timer};

/// Not so far that the timer has to be advanced earlier, to move it to a finer wheel.
const FAR: Duration = Duration::from_millis(150);

impl Fixture {
    /// Returns a sleep that never ends, and writes down how long it is to be, from now on.
    fn sleep(&self, slept: &RefCell<Vec<Duration>>) -> impl Fn(Instant) -> Pending<()> {
        let start = self.clock.now();
        move |next| {
            slept.borrow_mut().push(next - start);
            pending()
        }
    }

    /// Adds a timer, and counts it in what is returned once it has expired.
    fn add(&self, delay: Duration) -> Arc<AtomicUsize> {
        let expired = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&expired);
        let count = move || _ = counted.fetch_add(1, Ordering::Relaxed);
        assert!(self.timer.after(delay, count).is_ok());
        expired
    }
}

#[test]
fn it_sleeps_until_the_next_expiration_and_not_at_all_if_there_is_none() {
    let fixture = Fixture::new();
    let keyed = KeyedTimer::new(&fixture.timer, |_: u32, ()| ());
    let slept = RefCell::new(Vec::new());
    let mut drive = pin!(fixture.timer.drive(fixture.sleep(&slept)));
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    assert!(slept.take().is_empty(), "nothing is pending");
    let far = fixture.add(FAR);
    assert_eq!(fixture.wakes.take(), 1);
    for _ in 0..3 {
        assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    }
    assert_eq!(slept.take(), [FAR], "one sleep until the same expiration");
    let later = fixture.add(2 * FAR);
    assert_eq!(fixture.wakes.take(), 0, "not earlier");
    let near = fixture.add(MS);
    assert_eq!(fixture.wakes.take(), 1, "earlier");
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    assert_eq!(slept.take(), [MS]);
    assert!(keyed.add(1, MS, ()).is_ok());
    assert_eq!(fixture.wakes.take(), 0, "as early, in another shard");
    fixture.clock.advance(MS);
    assert_eq!(fixture.wakes.take(), 1, "a manual clock wakes");
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    assert_eq!(slept.take(), [FAR]);
    assert_eq!(
        [near, far, later].map(|expired| expired.load(Ordering::Relaxed)),
        [1, 0, 0]
    );
}

/// Each has a bucket of its own, and there are more of them than are taken out in one step.
#[test]
fn it_does_not_sleep_until_what_was_cancelled() {
    let fixture = Fixture::new();
    let slept = RefCell::new(Vec::new());
    let near = (1..150).map(|n| fixture.timer.after(MS * n, || ()).expect("there is room"));
    let near: Vec<_> = near.collect();
    fixture.add(FAR);
    assert!(near.iter().all(|timeout| timeout.cancel().is_cancelled()));
    let mut drive = pin!(fixture.timer.drive(fixture.sleep(&slept)));
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    assert_eq!(slept.take(), [FAR]);
}

/// On the system's clock, so that nothing else wakes it.
#[test]
fn it_advances_when_its_sleep_completes() {
    let timer = Timer::builder().build().unwrap();
    let fixture = Fixture {
        timer,
        ..Fixture::new()
    };
    let expired = fixture.add(5 * MS);
    let mut drive = pin!(fixture.timer.drive(|until| {
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        ready(())
    }));
    while expired.load(Ordering::Relaxed) == 0 {
        assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
        assert!(fixture.wakes.take() == 1 || expired.load(Ordering::Relaxed) == 1);
    }
}

#[test]
fn it_is_not_woken_by_sleeps_that_end_at_once_but_makes_others_with_each_poll() {
    let fixture = Fixture::new();
    let made = Cell::new(0);
    let mut drive = pin!(fixture.timer.drive(|_| {
        made.set(made.get() + 1);
        ready(())
    }));
    fixture.add(HOUR);
    for polls in 1..=3 {
        assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
        assert!((2 * polls..=20 * polls).contains(&made.get()));
        assert_eq!(fixture.wakes.take(), 0);
    }
    let near = fixture.add(MS);
    assert_eq!(fixture.wakes.take(), 1, "earlier");
    fixture.clock.advance(MS);
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    assert_eq!(near.load(Ordering::Relaxed), 1);
    fixture.timer.shutdown();
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Ready(()));
}

/// As tokio's does outside its runtime.
#[test]
fn after_a_panic_of_what_makes_its_sleep_it_makes_another() {
    let fixture = Fixture::new();
    let slept = RefCell::new(Vec::new());
    let sleep = fixture.sleep(&slept);
    let panics = Cell::new(true);
    let mut drive = Box::pin(fixture.timer.drive(|next| {
        assert!(!panics.get());
        sleep(next)
    }));
    fixture.add(FAR);
    assert!(catch_unwind(AssertUnwindSafe(|| fixture.poll(drive.as_mut()))).is_err());
    panics.set(false);
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    assert_eq!(slept.take(), [FAR]);
}

#[test]
fn it_completes_when_the_timer_is_shut_down_or_its_last_clone_is_dropped() {
    let fixture = Fixture::new();
    let mut drive = pin!(fixture.timer.drive(|_| pending::<()>()));
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    fixture.timer.shutdown();
    assert_eq!(fixture.wakes.take(), 1);
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Ready(()));
    assert_eq!(
        fixture.poll(pin!(fixture.timer.drive(|_| pending::<()>()))),
        Poll::Ready(())
    );

    let fixture = Fixture::new();
    let timer = Timer::builder().build().unwrap();
    let mut drive = pin!(timer.drive(|_| pending::<()>()));
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
    let weak = timer.downgrade();
    drop(timer);
    assert!(
        weak.upgrade().is_none(),
        "the future does not keep it alive"
    );
    assert_eq!(fixture.wakes.take(), 1);
    assert_eq!(fixture.poll(drive.as_mut()), Poll::Ready(()));
}

#[test]
fn when_it_is_dropped_it_wakes_nobody_and_keeps_no_waker() {
    let fixture = Fixture::new();
    {
        let mut drive = pin!(fixture.timer.drive(|_| pending::<()>()));
        assert_eq!(fixture.poll(drive.as_mut()), Poll::Pending);
        assert_eq!(Arc::strong_count(&fixture.wakes), 2);
    }
    assert_eq!(Arc::strong_count(&fixture.wakes), 1);
    fixture.add(MS);
    assert_eq!(fixture.advance(MS), 0);
}

#[test]
fn several_are_woken_one_and_all() {
    let fixture = Fixture::new();
    let mut first = pin!(fixture.timer.drive(|_| pending::<()>()));
    let mut other = pin!(fixture.timer.drive(|_| pending::<()>()));
    assert_eq!(fixture.poll(first.as_mut()), Poll::Pending);
    assert_eq!(fixture.poll(other.as_mut()), Poll::Pending);
    fixture.add(MS);
    assert_eq!(fixture.wakes.take(), 2);
    assert_eq!(fixture.poll(first.as_mut()), Poll::Pending);
    fixture.clock.advance(MS);
    assert_eq!(
        fixture.wakes.take(),
        2,
        "also the one that was woken before and not polled"
    );
    assert_eq!(fixture.poll(other.as_mut()), Poll::Pending);
    assert!(fixture.timer.is_empty());
}

#[test]
fn it_may_be_sent_to_another_thread_and_drives_timers_of_any_tasks() {
    let clock = ManualClock::new();
    let (sender, expired) = std::sync::mpsc::channel();
    let send = move |id: u32| sender.send(id).map_err(|_| id);
    let timer = Timer::builder()
        .clock(clock.clone())
        .executor(send)
        .build()
        .unwrap();
    let drive = timer.drive(|_| pending::<()>());
    let driver = std::thread::spawn(|| pollster::block_on(drive));
    assert!(timer.after(HOUR, 7_u32).is_ok());
    clock.advance(HOUR);
    assert_eq!(expired.recv(), Ok(7));
    timer.shutdown();
    assert!(driver.join().is_ok());
}

/// A sleep of the timer itself, in the same task as what drives it.
#[test]
fn it_drives_the_sleeps_of_its_own_task() {
    let timer = Timer::builder().build().unwrap();
    let mut sleep = pin!(timer.sleep(2 * MS));
    let start = Instant::now();
    // Of pollster's thread: a sleep that blocks nobody, made of another timer.
    let other = Timer::builder().start().unwrap();
    let mut drive = pin!(timer.drive(|next| other.sleep(next)));
    pollster::block_on(std::future::poll_fn(|context| {
        assert!(drive.as_mut().poll(context).is_pending());
        sleep.as_mut().poll(context)
    }))
    .unwrap();
    assert!(start.elapsed() >= 2 * MS);
}
