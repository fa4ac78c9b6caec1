//! What a waiter finds when it is woken.

use crate::HOUR;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use tickwheel::purgatory::{FutureOperation, Purgatory};
use tickwheel::{ManualClock, Timer};

/// Looks who else holds a thing when it is woken.
struct Looks(Arc<()>, AtomicUsize);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.1.store(Arc::strong_count(&self.0), SeqCst);
    }
}

#[test]
fn what_a_condition_holds_is_free_when_its_waiter_is_woken() {
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let purgatory: Purgatory<u32, FutureOperation> = Purgatory::new(&timer);
    let held = Arc::new(());
    let looks = Arc::new(Looks(Arc::clone(&held), AtomicUsize::new(0)));
    let mut checks = 0;
    let condition = move || {
        checks += Arc::strong_count(&held);
        checks > 4 // At the third check.
    };
    let mut wait = pin!(purgatory.wait(&[1], HOUR, condition).unwrap());
    let waker = Waker::from(Arc::clone(&looks));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(looks.1.load(SeqCst), 1, "only the waker itself");
}
