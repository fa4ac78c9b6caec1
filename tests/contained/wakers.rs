//! Wakers that panic as they are dropped.

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tickwheel::Timer;

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

/// A runtime drops its futures when a thread unwinds: a second panic would end the process.
#[test]
fn the_drop_of_a_waker_does_not_come_out_of_a_sleep_on_a_thread_that_unwinds() {
    /// Leaves the last clone of a waker to a future.
    fn poll(future: Pin<&mut impl Future>) {
        let waker = Waker::from(Arc::new(Panics));
        assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let timer = Timer::builder().build().expect("in range");
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut sleep = pin!(timer.sleep(Duration::MAX));
        let mut limited = pin!(timer.timeout(Duration::MAX, pending::<()>()));
        poll(sleep.as_mut());
        poll(limited.as_mut());
        panic!("the thread unwinds");
    }));
    assert!(unwound.is_err() && timer.is_empty());
}
