//! How a purgatory ends, and what it has counted.

use crate::What::{Cancelled, Completed, Dropped, Expired};
use crate::reentrancy::hand;
use crate::{Fixture, HOUR, MS};
use std::time::Duration;
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

#[test]
fn the_last_clone_drops_what_waits_without_calling_its_code() {
    let fixture = Fixture::new();
    let mut lives = Vec::new();
    let mut handles = Vec::new();
    for id in 0..100 {
        let script = fixture.script(id).at_check(3);
        lives.push(script.life());
        handles.push(fixture.watch(script, &[id % 3, 10 + id]));
    }
    fixture.log.take();
    let Fixture { purgatory, timer, clock, log } = fixture;
    drop(purgatory.clone());
    assert_eq!((log.take(), timer.len()), (vec![], 100));
    drop(purgatory);
    let mut dropped = log.take();
    dropped.sort_unstable();
    assert_eq!(dropped, (0..100).map(|id| (Dropped, id)).collect::<Vec<_>>());
    assert_eq!(timer.len(), 0);
    assert!(lives.iter().all(|life| life.strong_count() == 0));
    clock.advance(2 * HOUR);
    assert_eq!(timer.advance_clock(Duration::ZERO), 0);
    assert!(handles.iter().all(|handle| !handle.is_pending() && !handle.force_complete()));
    timer.assert_invariants();
}

#[test]
fn stats_count_each_kind_of_end_and_can_be_printed() {
    let fixture = Fixture::new();
    for check in [1, 2] {
        let script = fixture.script(1).at_check(check);
        assert!(fixture.purgatory.try_complete_else_watch(script, HOUR, &[1]).is_ok());
    }
    (0..3).for_each(|id| _ = fixture.watch(fixture.script(id).at_check(3), &[2, 3]));
    assert_eq!(fixture.purgatory.check_and_complete(&2), 3);
    (0..4).for_each(|id| assert!(fixture.watch(fixture.script(id), &[4, 5]).force_complete()));
    (0..5).for_each(|id| _ = fixture.watch_for(MS, fixture.script(id), &[6]));
    assert_eq!(fixture.advance(MS).iter().filter(|(what, _)| *what == Expired).count(), 5);
    (0..2).for_each(|id| _ = fixture.watch(fixture.script(id), &[7, 8]).cancel());
    (0..3).for_each(|id| _ = fixture.watch(fixture.script(id), &[7, 8]));
    assert_eq!(fixture.purgatory.cancel_for_key(&8).len(), 3);
    fixture.watch_cancelling(fixture.script(9).on_cancellation(|| panic!("counted")), &[9]);
    fixture.purgatory.check_and_complete(&9);
    assert!(fixture.log.of(Cancelled).contains(&9));
    fixture.watch(fixture.script(1), &[1, 2, 3]);
    fixture.watch(fixture.script(2), &[1]);
    let stats = fixture.purgatory.stats();
    assert_eq!((stats.watched, stats.delayed), (4, 2));
    assert_eq!((stats.completed_at_once, stats.completed_by_trigger), (2, 3));
    assert_eq!((stats.completed_by_force, stats.expired), (4, 5));
    assert_eq!((stats.cancelled, stats.panicked, stats.completed()), (6, 1, 9));
    assert_eq!(
        stats.to_string(),
        "delayed 2, watched 4\n\
         completed 2 at once, 3 by trigger, 4 by force\n\
         expired 5, cancelled 6, panicked 1"
    );
    assert_eq!(fixture.purgatory.shutdown().len(), 2);
    assert_eq!(fixture.purgatory.stats().cancelled, 8);
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
