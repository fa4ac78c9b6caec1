//! Code of a user whose drop panics, when the library drops it.

use crate::{MS, Payload, by_hand, no_report_succeeds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::Periodic;
use tickwheel::{Task, Timer, TimerEntry, Worker};

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
fn an_executors_drop_does_not_come_out_of_the_timers() {
    for started in [false, true] {
        let (owned, count) = owned();
        let executor = move |_: u32| {
            let _ = &owned;
        };
        let builder = Timer::builder().executor(executor);
        let timer = if started { builder.start() } else { builder.build() }.unwrap();
        assert!(is_silent(timer));
        assert_eq!(Arc::strong_count(&count), 1);
    }
}

#[test]
fn the_drop_of_on_refused_does_not_come_out_of_the_timers() {
    let (owned, count) = owned();
    let handler = move |_: Task| {
        let _ = &owned;
    };
    assert!(is_silent(Timer::builder().on_refused(handler).build().unwrap()));
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn the_drop_of_a_workers_handler_does_not_come_out_of_the_workers() {
    let (owned, count) = owned();
    let handler = move |_: u32| {
        let _ = &owned;
    };
    assert!(is_silent(Worker::unbounded("handler", handler).unwrap()));
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn the_drop_of_what_keys_expire_by_does_not_come_out_of_the_keyed_timers() {
    let (owned, count) = owned();
    let (timer, _clock) = by_hand();
    let keyed: KeyedTimer<u32, u32> = KeyedTimer::new(&timer, move |_, _| {
        let _ = &owned;
    });
    assert!(is_silent(keyed));
    assert_eq!(Arc::strong_count(&count), 1);
}

struct Store {
    _owned: Owned,
}

impl LeaseStore<u32> for Store {
    fn renew(&self, _: Vec<Renewal<u32>>) {}
    fn lost(&self, _: u32) {}
}

#[test]
fn the_drop_of_a_lease_store_does_not_come_out_of_the_last_handle() {
    let (owned, count) = owned();
    let (timer, _clock) = by_hand();
    let terms = LeaseTerms::new(Duration::from_secs(30));
    let leases = Leases::new(&timer, terms, Store { _owned: owned });
    let lease = leases.hold(1).unwrap();
    assert!(is_silent(leases));
    assert!(is_silent(lease));
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

/// Nothing may panic out of a drop while a thread unwinds: that would end the process.
#[test]
fn what_is_dropped_while_a_thread_unwinds_does_not_end_the_process() {
    no_report_succeeds();
    let (owned, count) = owned();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let executor = move |_: Payload| {
            let _ = &owned;
        };
        let timer = Timer::builder().executor(executor).start().unwrap();
        let _timeouts = [0, 1, 3]
            .map(|payload| timer.add(TimerEntry::after(Duration::MAX, Payload(payload))).unwrap());
        panic!("and all that is dropped");
    }));
    assert!(caught.is_err());
    assert_eq!(Arc::strong_count(&count), 1);
}
