//! Code of a user whose drop panics, when the library drops it; wakers too.

use crate::{MS, Payload, by_hand, no_report_succeeds};
use std::any::Any;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{DelayedOperation, FutureOperation, Purgatory, Wait};
use tickwheel::{BuildError, ManualClock, Timer, TimerBuilder, TimerEntry, Worker};

/// Owned by a closure or a trait's implementation, whose drop panics with it. The count tells that
/// it was dropped.
struct Owned {
    _payload: Payload,
    _count: Arc<()>,
}

fn owned() -> (Owned, Arc<()>) {
    no_report_succeeds();
    let count = Arc::new(());
    (Owned { _payload: Payload(2), _count: Arc::clone(&count) }, count)
}

/// Returns whether the drop raised no panic.
fn is_silent<T>(dropped: T) -> bool {
    let result = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
    let is_silent = result.is_ok();
    std::mem::forget(result); // Its payload panics when it is dropped.
    is_silent
}

#[test]
fn the_drop_of_what_timers_and_workers_were_given_does_not_come_out_of_them() {
    type Make = fn(TimerBuilder, Owned) -> Box<dyn Any>;
    let makes: [(&str, Make); 4] = [
        ("executor", |new, it| Box::new(new.executor(move |_: u32| _ = &it).build().unwrap())),
        ("reaper's", |new, it| Box::new(new.executor(move |_: u32| _ = &it).start().unwrap())),
        ("on_refused", |new, it| Box::new(new.on_refused(move |_| _ = &it).build().unwrap())),
        ("handler", |_, it| Box::new(Worker::unbounded("it", move |_: u32| _ = &it).unwrap())),
    ];
    for (what, make) in makes {
        let (owned, count) = owned();
        assert!(is_silent(make(Timer::builder(), owned)), "{what}");
        assert_eq!(Arc::strong_count(&count), 1, "{what}");
    }
}

/// Seen to fail: the process ended.
#[test]
fn the_drops_of_what_a_builder_was_given_do_not_come_out_of_its_error() {
    let ((executor, first), (handler, second)) = (owned(), owned());
    let builder = Timer::builder().tick(Duration::ZERO).executor(move |_: u32| _ = &executor);
    let builder = builder.on_refused(move |_| _ = &handler);
    assert!(matches!(builder.build(), Err(BuildError::Tick)));
    assert_eq!([first, second].map(|count| Arc::strong_count(&count)), [1; 2]);
}

/// Seen to fail: the process ended, or the panic came out.
#[test]
fn the_drops_of_what_a_builder_was_given_do_not_come_out_of_it() {
    for replaces in [false, true] {
        let given = [(); 2].map(|()| owned());
        let counts = given.each_ref().map(|(_, count)| Arc::clone(count));
        let [executor, handler] = given.map(|(owned, _)| owned);
        let mut builder = Timer::builder()
            .executor(move |_: u32| _ = &executor)
            .on_refused(move |_| _ = &handler);
        if replaces {
            builder = builder.on_refused(drop).executor(|_: u32| ());
        }
        assert!(is_silent(builder));
        assert_eq!(counts.map(|count| Arc::strong_count(&count)), [1; 2]);
    }
}

#[test]
fn the_drop_of_what_keys_expire_by_does_not_come_out_of_the_keyed_timers() {
    let (owned, count) = owned();
    let (timer, _clock) = by_hand();
    let keyed: KeyedTimer<u32, u32> = KeyedTimer::new(&timer, move |_, _| _ = &owned);
    assert!(is_silent(keyed));
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn the_drop_of_a_series_task_is_contained_where_the_series_ends_by_itself() {
    let (owned, count) = owned();
    let (timer, clock) = by_hand();
    let series = Periodic::every(MS).start(&timer, move |run| {
        let _ = &owned;
        run.cancel();
    });
    series.unwrap();
    timer.add(TimerEntry::after(MS, || ())).unwrap();
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 2);
    assert_eq!(Arc::strong_count(&count), 1);
}

struct Waits(#[allow(dead_code)] Owned);

impl DelayedOperation for Waits {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {}
}

/// Guards are dropped by threads that unwind. Seen to fail: it came out of them.
#[test]
fn the_drop_of_what_a_guard_cancels_does_not_come_out_of_the_guard() {
    let (timer, _clock) = by_hand();
    let (owned_by_task, count) = owned();
    let task = move || _ = &owned_by_task;
    assert!(is_silent(timer.after(MS, task).unwrap().cancel_on_drop()));
    assert_eq!(Arc::strong_count(&count), 1);

    let (owned_by_operation, count) = owned();
    let purgatory = Purgatory::new(&timer);
    let watch = purgatory.try_complete_else_watch(Waits(owned_by_operation), MS, &[1]).unwrap();
    assert!(is_silent(watch.pending().unwrap().cancel_on_drop()));
    assert_eq!(Arc::strong_count(&count), 1);
}

/// A waker that panics when it is woken, and perhaps when it is dropped.
struct Wakes(#[allow(dead_code)] Option<Owned>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics");
    }
}

/// Begins to wait with such a waker and with a condition whose drop panics. The count tells that
/// the latter was dropped.
fn wait(
    purgatory: &Purgatory<u32, FutureOperation>,
    waker: Option<Owned>,
) -> (Pin<Box<Wait<u32>>>, Arc<()>) {
    let (owned, count) = owned();
    let never = move || {
        let _ = &owned;
        false
    };
    let mut wait = Box::pin(purgatory.wait(&[1], MS, never).unwrap());
    let waker = Waker::from(Arc::new(Wakes(waker)));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    (wait, count)
}

/// Seen to fail: the process ended.
#[test]
fn a_waker_may_panic_after_the_drop_of_its_condition() {
    let (timer, _clock) = by_hand();
    let purgatory = Purgatory::new(&timer);
    let (wait, count) = wait(&purgatory, None);
    assert!(is_silent(purgatory));
    assert_eq!((Arc::strong_count(&count), is_silent(wait)), (1, true));
}

/// Seen to fail: it was watched for as long as its timeout.
#[test]
fn a_wait_is_cancelled_though_its_waker_cannot_be_dropped() {
    let (timer, _clock) = by_hand();
    let purgatory = Purgatory::new(&timer);
    let (owned, waker) = owned();
    let (wait, condition) = wait(&purgatory, Some(owned));
    assert_eq!((is_silent(wait), purgatory.stats().watched), (true, 0));
    assert_eq!((Arc::strong_count(&condition), Arc::strong_count(&waker)), (1, 1));
}

#[test]
fn the_drop_of_what_the_executor_refuses_does_not_come_out_of_the_turn() {
    no_report_succeeds();
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).executor(Err::<(), Payload>);
    let timer: Timer<Payload> = builder.build().unwrap();
    for _ in 0..10 {
        timer.add(TimerEntry::after(MS, Payload(2))).unwrap();
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 10);
    let stats = timer.stats();
    assert_eq!((stats.refused, stats.panicked), (10, 10), "each drop panicked");
}

/// Nothing may panic out of a drop while a thread unwinds: that would end the process.
#[test]
fn what_is_dropped_while_a_thread_unwinds_does_not_end_the_process() {
    no_report_succeeds();
    let (owned, count) = owned();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let executor = move |_: Payload| _ = &owned;
        let timer = Timer::builder().executor(executor).start().unwrap();
        let _timeouts = [0, 1, 3]
            .map(|payload| timer.add(TimerEntry::after(Duration::MAX, Payload(payload))).unwrap());
        panic!("and all that is dropped");
    }));
    assert!(caught.is_err());
    assert_eq!(Arc::strong_count(&count), 1);
}

/// Seen to fail: it came out of the call.
#[test]
fn the_drop_of_a_series_task_does_not_come_out_of_its_cancel() {
    let (owned, count) = owned();
    let (timer, _clock) = by_hand();
    let series = Periodic::every(MS).start(&timer, move |_| _ = &owned);
    let series = series.unwrap();
    assert!(series.cancel());
    assert_eq!(Arc::strong_count(&count), 1);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("which is what the test is about");
    }
}

/// Polls a future by a waker of which it then has the last clone, and again by another one.
fn polled<F: Future>(future: F) {
    let mut future = Box::pin(future);
    let waker = Waker::from(Arc::new(Panics));
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
    drop(waker);
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    let waker = Waker::from(Arc::new(Panics));
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
    drop(waker);
    drop(future);
}

#[test]
fn the_drop_of_a_waker_does_not_come_out_of_a_drive() {
    let timer = Timer::builder().build().expect("in range");
    polled(timer.drive(|_| pending::<()>()));
    assert!(timer.is_empty());
}

/// A future may be dropped by a thread that unwinds. Seen to fail: it came out of them.
#[test]
fn the_drop_of_a_waker_does_not_come_out_of_a_sleep() {
    let timer = Timer::builder().build().expect("in range");
    polled(timer.sleep(Duration::MAX));
    polled(timer.timeout(Duration::MAX, pending::<()>()));
    assert!(timer.is_empty());
}
