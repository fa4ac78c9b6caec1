//! How a purgatory ends, and what it has counted.

use crate::What::{Cancelled, Completed, Dropped};
use crate::reentrancy::hand;
use crate::{Fixture, HOUR, MS};
use tickwheel::TimerEntry;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory, WatchError};

#[test]
fn shutdown_returns_all_that_waits_and_refuses_what_comes() {
    let fixture = Fixture::new();
    for id in 0..200 {
        fixture.watch(fixture.script(id).at_check(3), &[id % 7, 100 + id % 30, id % 7]);
    }
    let own = fixture.timer.add(TimerEntry::after(2 * HOUR, || ())).unwrap();
    fixture.log.take();
    let mut ids: Vec<u32> = fixture.purgatory.shutdown().iter().map(|it| it.id).collect();
    assert!(fixture.log.take().iter().all(|(what, _)| *what == Dropped), "by this test");
    ids.sort_unstable();
    assert_eq!(ids, (0..200).collect::<Vec<_>>());
    assert_eq!(fixture.counts(), (0, 0, 1));
    assert_eq!(fixture.advance(HOUR), [], "none expires");
    match fixture.purgatory.try_complete_else_watch(fixture.script(1), HOUR, &[1]) {
        Err(WatchError::Shutdown(script)) => assert_eq!(script.id, 1),
        other => panic!("{other:?}"),
    }
    let at_once = fixture.script(2).at_check(1);
    let watch = fixture.purgatory.try_complete_else_watch(at_once, HOUR, &[1]);
    assert!(watch.is_ok_and(|watch| watch.is_completed()), "what need not wait is not refused");
    assert!(fixture.purgatory.shutdown().is_empty() && own.is_pending());
    let stats = fixture.purgatory.stats();
    assert_eq!((stats.cancelled, stats.completed_by_trigger, stats.expired), (200, 0, 0));
}

/// Nothing makes them expire any more; they can still be completed.
#[test]
fn what_waits_when_the_timer_is_shut_down_waits_on() {
    let fixture = Fixture::new();
    let first = fixture.watch_for(MS, fixture.script(1).at_check(3), &[1]);
    let second = fixture.watch_for(MS, fixture.script(2), &[2]);
    let third = fixture.watch_for(MS, fixture.script(3), &[3]);
    let entries = fixture.timer.shutdown();
    assert_eq!((entries.len(), fixture.advance(HOUR)), (0, vec![]));
    assert_eq!(fixture.counts(), (3, 3, 3));
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    fixture.log.take();
    assert!(second.force_complete());
    assert_eq!(fixture.log.take(), [(Completed, 2), (Dropped, 2)]);
    assert!(!first.is_pending() && !second.is_pending() && third.is_pending());
    assert_eq!(fixture.purgatory.shutdown().len(), 1);
    fixture.assert_empty();
}

/// A cancel during a check, of an operation behind a pointer.
#[test]
fn a_boxed_operation_is_told_of_its_cancellation() {
    type Boxed = Box<dyn DelayedOperation>;
    let fixture = Fixture::new();
    let purgatory: Purgatory<u32, Boxed> = Purgatory::new(&fixture.timer);
    let (own, handle) = hand::<Pending<u32, Boxed>>();
    let script = fixture.script(1).when(move || {
        own.lock().unwrap().take().is_some_and(|own| own.cancel().into_operation().is_some())
    });
    let watch = purgatory.try_complete_else_watch(Box::new(script) as Boxed, HOUR, &[1]).unwrap();
    *handle.lock().unwrap() = watch.pending();
    assert_eq!(purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.log.ends(), [(Cancelled, 1), (Dropped, 1)]);
    assert_eq!((purgatory.stats().cancelled, purgatory.delayed()), (1, 0));
}
