//! Operations that are awaited.

use crate::wakes::Wakes;
use crate::{HOUR, MS};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use tickwheel::purgatory::{FutureOperation, Wait, Waited, WatchError};

type Fixture = crate::Fixture<FutureOperation>;

fn fixture() -> Fixture {
    Fixture::with(|builder| builder)
}

/// A future that is polled by hand.
struct Polled {
    wait: Wait<u32>,
    woken: Arc<Wakes>,
}

impl Polled {
    fn new(wait: Wait<u32>) -> Self {
        Polled {
            wait,
            woken: Arc::default(),
        }
    }

    fn poll(&mut self) -> Poll<Waited> {
        let waker = Waker::from(Arc::clone(&self.woken));
        Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
    }

    /// Returns how often it was woken since this was asked last.
    fn woken(&self) -> usize {
        self.woken.take()
    }
}

#[test]
fn a_condition_that_holds_already_is_ready_at_once() {
    for holds_at in [1, 2] {
        let fixture = fixture();
        let mut checks = 0;
        let condition = move || {
            checks += 1;
            checks == holds_at
        };
        let mut polled = Polled::new(fixture.purgatory.wait(condition, HOUR, &[1]).unwrap());
        assert_eq!(polled.poll(), Poll::Ready(Waited::Completed));
        assert_eq!(polled.woken(), 0);
        assert_eq!(fixture.purgatory.stats().completed_at_once, 1);
        fixture.assert_empty();
    }
}

#[test]
fn a_trigger_completes_it() {
    let fixture = fixture();
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let wait = fixture
        .purgatory
        .wait(move || set.load(SeqCst), HOUR, &[1, 2])
        .unwrap();
    let mut polled = Polled::new(wait);
    assert_eq!(polled.poll(), Poll::Pending);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!((polled.poll(), polled.woken()), (Poll::Pending, 0));
    flag.store(true, SeqCst);
    assert_eq!(fixture.purgatory.check_and_complete(&2), 1);
    assert_eq!(polled.woken(), 1);
    assert_eq!(polled.poll(), Poll::Ready(Waited::Completed));
    fixture.assert_empty();
}

#[test]
fn its_time_is_up_at_the_deadline() {
    let fixture = fixture();
    let mut polled = Polled::new(fixture.purgatory.wait(|| false, 5 * MS, &[1]).unwrap());
    assert_eq!(polled.poll(), Poll::Pending);
    fixture.advance(4 * MS);
    assert_eq!((polled.poll(), polled.woken()), (Poll::Pending, 0));
    fixture.advance(MS);
    assert_eq!(polled.woken(), 1);
    assert_eq!(polled.poll(), Poll::Ready(Waited::Expired));
    fixture.assert_empty();
}

/// The operation waits from the beginning: an event that comes before the first poll is not lost.
#[test]
fn it_need_not_be_polled_to_end() {
    let fixture = fixture();
    let mut polled = Polled::new(fixture.purgatory.wait(|| false, MS, &[1]).unwrap());
    fixture.advance(MS);
    fixture.assert_empty();
    assert_eq!(polled.poll(), Poll::Ready(Waited::Expired));
}

#[test]
fn it_is_cancelled_by_its_key_by_shutdown_by_the_last_purgatory_and_by_a_panic() {
    type Ends = fn(Fixture) -> Option<Fixture>;
    let by_key: Ends = |fixture| {
        assert_eq!(fixture.purgatory.cancel_for_key(&2).len(), 1);
        Some(fixture)
    };
    let by_shutdown: Ends = |fixture| {
        assert_eq!(fixture.purgatory.shutdown().len(), 1);
        Some(fixture)
    };
    let by_the_last: Ends = |fixture| {
        drop(fixture.purgatory);
        assert_eq!(fixture.timer.len(), 0);
        None
    };
    let by_panic: Ends = |fixture| {
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert_eq!(fixture.purgatory.stats().panicked, 1);
        Some(fixture)
    };
    for ends in [by_key, by_shutdown, by_the_last, by_panic] {
        let fixture = fixture();
        let mut checks = 0;
        let condition = move || {
            checks += 1;
            assert!(checks < 3, "a trigger makes it panic");
            false
        };
        let mut polled = Polled::new(fixture.purgatory.wait(condition, HOUR, &[1, 2]).unwrap());
        assert_eq!(polled.poll(), Poll::Pending);
        let left = ends(fixture);
        assert_eq!(polled.woken(), 1);
        assert_eq!(polled.poll(), Poll::Ready(Waited::Cancelled));
        left.inspect(Fixture::assert_empty);
    }
}

#[test]
fn a_condition_that_panics_at_the_beginning_cancels_it() {
    for check in [1, 2] {
        let fixture = fixture();
        let mut checks = 0;
        let condition = move || {
            checks += 1;
            assert!(checks < check, "the check that panics");
            false
        };
        let mut polled = Polled::new(fixture.purgatory.wait(condition, HOUR, &[1]).unwrap());
        assert_eq!(polled.poll(), Poll::Ready(Waited::Cancelled));
        fixture.assert_empty();
    }
}

#[test]
fn dropping_it_cancels_and_cleans_up_and_wakes_nobody() {
    let fixture = fixture();
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let condition = move || Arc::strong_count(&held) == 0;
    let mut polled = Polled::new(fixture.purgatory.wait(condition, HOUR, &[1, 2, 3]).unwrap());
    assert_eq!(polled.poll(), Poll::Pending);
    assert_eq!(
        (fixture.purgatory.stats().watched, fixture.timer.len()),
        (3, 1)
    );
    let Polled { wait, woken } = polled;
    drop(wait);
    assert_eq!((woken.take(), Arc::strong_count(&woken)), (0, 1));
    assert_eq!(Arc::strong_count(&alive), 1, "the condition is dropped");
    assert_eq!(fixture.purgatory.stats().cancelled, 1);
    fixture.assert_empty();
    drop(fixture.purgatory.wait(|| false, HOUR, &[1]));
    fixture.assert_empty();
}

#[test]
fn the_last_waker_is_woken_and_the_former_ones_are_dropped() {
    let fixture = fixture();
    let mut wait = fixture.purgatory.wait(|| false, HOUR, &[1]).unwrap();
    let wakers: Vec<Arc<Wakes>> = (0..3).map(|_| Arc::default()).collect();
    for counter in &wakers {
        let waker = Waker::from(Arc::clone(counter));
        assert_eq!(
            Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)),
            Poll::Pending
        );
    }
    let held: Vec<usize> = wakers.iter().map(Arc::strong_count).collect();
    assert_eq!(held, [1, 1, 2]);
    drop(fixture.purgatory.cancel_for_key(&1));
    let woken: Vec<usize> = wakers.iter().map(|counter| counter.take()).collect();
    assert_eq!(woken, [0, 0, 1]);
    assert!(wakers.iter().all(|counter| Arc::strong_count(counter) == 1));
}

#[test]
fn it_is_refused_as_any_operation() {
    let fixture = fixture();
    let wait = |keys: &[u32]| fixture.purgatory.wait(|| false, HOUR, keys);
    assert!(matches!(wait(&[]), Err(WatchError::NoKeys(_))));
    drop(fixture.purgatory.shutdown());
    assert!(matches!(wait(&[1]), Err(WatchError::Shutdown(_))));
    fixture.assert_empty();
}

/// Looks who else holds a thing when it is woken.
struct Looks(Arc<()>, AtomicUsize);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.1.store(Arc::strong_count(&self.0), SeqCst);
    }
}

#[test]
fn what_a_condition_holds_is_free_when_its_waiter_is_woken() {
    let purgatory = fixture().purgatory;
    let held = Arc::new(());
    let looks = Arc::new(Looks(Arc::clone(&held), AtomicUsize::new(0)));
    let mut checks = 0;
    let condition = move || {
        checks += Arc::strong_count(&held);
        checks > 4 // At the third check.
    };
    let mut wait = pin!(purgatory.wait(condition, HOUR, &[1]).unwrap());
    let waker = Waker::from(Arc::clone(&looks));
    assert!(
        wait.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(looks.1.load(SeqCst), 1, "only the waker itself");
}
