//! Wakers that panic as they are dropped.

use std::future::{Future, pending};
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

/// A future may be dropped by a thread that unwinds. Seen to fail: it came out of them.
#[test]
fn the_drop_of_a_waker_does_not_come_out_of_a_sleep() {
    let timer = Timer::builder().build().expect("in range");
    polled(timer.sleep(Duration::MAX));
    polled(timer.timeout(Duration::MAX, pending::<()>()));
    assert!(timer.is_empty());
}
