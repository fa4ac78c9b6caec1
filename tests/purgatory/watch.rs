//! How an operation is watched, and what its handle does.

use crate::What::{Checked, Completed, Dropped, Expired};
use crate::{Fixture, HOUR, MS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::purgatory::{Cancelled, WatchError};

#[test]
fn an_operation_whose_condition_holds_is_completed_at_its_first_check() {
    let fixture = Fixture::new();
    let script = fixture.script(1).at_check(1);
    let watch = fixture.purgatory.try_complete_else_watch(script, HOUR, &[1, 2]).unwrap();
    assert!(watch.is_completed() && watch.pending().is_none());
    assert_eq!(fixture.log.take(), [(Checked, 1), (Completed, 1), (Dropped, 1)]);
    fixture.assert_empty();
    let stats = fixture.purgatory.stats();
    assert_eq!((stats.completed_at_once, stats.completed_by_trigger), (1, 0));
}

/// The condition becomes true after the first check, and the thread that made it so has looked at
/// the keys before the operation was watched there.
#[test]
fn an_operation_whose_condition_comes_true_meanwhile_is_completed_at_its_second_check() {
    let fixture = Fixture::new();
    let flag = Arc::new(AtomicBool::new(false));
    let (now, purgatory) = (Arc::clone(&flag), fixture.purgatory.clone());
    let script = fixture.script(1).when(move || {
        let holds = now.swap(true, SeqCst);
        if !holds {
            assert_eq!(purgatory.check_and_complete(&1), 0, "nothing is watched there yet");
        }
        holds
    });
    let watch = fixture.purgatory.try_complete_else_watch(script, HOUR, &[1, 2]).unwrap();
    assert!(watch.is_completed() && watch.pending().is_none());
    assert_eq!(fixture.log.take(), [(Checked, 1), (Checked, 1), (Completed, 1), (Dropped, 1)]);
    fixture.assert_empty();
    assert_eq!(fixture.purgatory.stats().completed_at_once, 1);
}

#[test]
fn the_second_check_comes_when_the_operation_is_watched_on_all_its_keys() {
    let fixture = Fixture::new();
    let (purgatory, mut seen) = (fixture.purgatory.clone(), Vec::new());
    let script = fixture.script(1).when(move || {
        seen.push([1, 2, 3].map(|key| purgatory.watched_for(&key)));
        assert!(seen.len() < 2 || seen == [[0; 3], [1; 3]], "{seen:?}");
        seen.len() == 2
    });
    let watch = fixture.purgatory.try_complete_else_watch(script, HOUR, &[1, 2, 3]).unwrap();
    assert!(watch.is_completed());
    assert_eq!(fixture.purgatory.stats().panicked, 0);
}

#[test]
fn there_are_two_checks_however_many_keys_there_are() {
    let fixture = Fixture::new();
    for count in [1, 2, 10, 1000] {
        let keys: Vec<u32> = (0..count).collect();
        let pending = fixture.watch(fixture.script(count), &keys);
        assert_eq!(fixture.log.of(Checked), [count, count]);
        assert_eq!(fixture.counts(), (keys.len(), 1, 1));
        assert_eq!(pending.cancel().into_operation().map(|script| script.id), Some(count));
        fixture.assert_empty();
    }
}

#[test]
fn without_a_key_an_operation_is_handed_back_unchecked() {
    let fixture = Fixture::new();
    let script = fixture.script(1).at_check(1);
    match fixture.purgatory.try_complete_else_watch(script, HOUR, &[]) {
        Err(WatchError::NoKeys(script)) => assert_eq!(script.id, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.log.take(), [(Dropped, 1)]);
    fixture.assert_empty();
}

#[test]
fn what_a_full_timer_refuses_is_handed_back_and_watched_nowhere() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    let first = fixture.watch(fixture.script(1), &[1]);
    match fixture.purgatory.try_complete_else_watch(fixture.script(2), HOUR, &[1, 2, 1]) {
        Err(WatchError::Full(script)) => assert_eq!(script.id, 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.log.of(Dropped), [2]);
    assert_eq!(fixture.counts(), (1, 1, 1));
    assert_eq!([1, 2].map(|key| fixture.purgatory.watched_for(&key)), [1, 0]);
    // Not one that need not wait.
    let script = fixture.script(3).at_check(1);
    let watch = fixture.purgatory.try_complete_else_watch(script, HOUR, &[1]);
    assert!(watch.is_ok_and(|watch| watch.is_completed()));
    assert!(first.force_complete());
    let _ = fixture.watch(fixture.script(4), &[1]);
}

#[test]
fn after_shutdown_an_operation_is_handed_back_and_watched_nowhere() {
    for whose in ["purgatory's", "timer's"] {
        let fixture = Fixture::new();
        if whose == "timer's" {
            assert_eq!(fixture.timer.shutdown().len(), 0);
        } else {
            assert_eq!(fixture.purgatory.clone().shutdown().len(), 0);
        }
        match fixture.purgatory.try_complete_else_watch(fixture.script(1), HOUR, &[1, 2]) {
            Err(WatchError::Shutdown(script)) => assert_eq!(script.id, 1),
            other => panic!("{whose}: {other:?}"),
        }
        assert_eq!(fixture.log.of(Dropped), [1]);
        fixture.assert_empty();
        let stats = fixture.purgatory.stats();
        assert_eq!((stats.cancelled, stats.completed_at_once), (0, 0));
    }
}

#[test]
fn an_error_says_why_and_gives_the_operation_up() {
    let log = crate::Log::default();
    let script = || crate::Script::new(7, &log);
    let text = |error: &WatchError<crate::Script>| (error.to_string(), format!("{error:?}"));
    for (error, why) in [
        (WatchError::NoKeys(script()), "the operation has no key"),
        (WatchError::Full(script()), "the timer is full"),
        (WatchError::Shutdown(script()), "the purgatory was shut down"),
    ] {
        assert_eq!(text(&error), (why.to_owned(), format!("WatchError({why})")));
        assert_eq!(error.into_operation().id, 7);
    }
}

#[test]
fn a_key_that_is_named_twice_is_watched_twice() {
    let fixture = Fixture::new();
    let flag = Arc::new(AtomicBool::new(false));
    let _ = fixture.watch(fixture.script(1).when_set(&flag), &[5, 6, 5]);
    assert_eq!(fixture.counts(), (3, 1, 1));
    assert_eq!([5, 6].map(|key| fixture.purgatory.watched_for(&key)), [2, 1]);
    flag.store(true, SeqCst);
    assert_eq!(fixture.purgatory.check_and_complete(&5), 1);
    assert_eq!(fixture.log.of(Completed), [1]);
    fixture.assert_empty();
    let _ = fixture.watch(fixture.script(2), &[5, 6, 5]);
    assert_eq!(fixture.purgatory.cancel_for_key(&5).len(), 1);
    fixture.assert_empty();
}

#[test]
fn force_complete_completes_once_whether_the_condition_holds_or_not() {
    let fixture = Fixture::new();
    let script = fixture.script(1);
    let life = script.life();
    let pending = fixture.watch(script, &[1, 2]);
    assert!(pending.is_pending());
    fixture.log.take();
    assert!(pending.force_complete());
    assert_eq!(fixture.log.take(), [(Completed, 1), (Dropped, 1)]);
    assert!(!pending.is_pending() && life.upgrade().is_none());
    assert!(!pending.force_complete());
    assert!(matches!(pending.cancel(), Cancelled::Finished));
    assert_eq!(fixture.advance(2 * HOUR), []);
    assert_eq!(fixture.purgatory.stats().completed_by_force, 1);
    fixture.assert_empty();
}

#[test]
fn cancel_returns_the_operation_and_none_of_its_code_was_called() {
    let fixture = Fixture::new();
    let pending = fixture.watch(fixture.script(1).at_check(3), &[1, 2]);
    fixture.log.take();
    let Cancelled::Returned(script) = pending.cancel() else { panic!("nobody else wants it") };
    assert_eq!((script.id, fixture.log.take()), (1, vec![]));
    fixture.assert_empty();
    assert!(!pending.is_pending() && !pending.force_complete());
    assert!(matches!(pending.cancel(), Cancelled::Finished));
    assert_eq!(fixture.purgatory.check_and_complete_all(&[1, 2]), 0);
    assert_eq!(fixture.advance(2 * HOUR), []);
    assert_eq!(fixture.purgatory.stats().cancelled, 1);
    // It may be watched again, and waits on.
    let again = fixture.watch(script.at_check(3), &[3]);
    assert_eq!(fixture.purgatory.check_and_complete(&3), 1);
    assert!(!again.is_pending() && !pending.is_pending());
}

#[test]
fn dropping_the_handle_changes_nothing() {
    let fixture = Fixture::new();
    let _ = fixture.watch(fixture.script(1).at_check(3), &[1]);
    let _ = fixture.watch_for(MS, fixture.script(2), &[1]);
    assert_eq!(fixture.counts(), (2, 2, 2));
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert_eq!(fixture.log.of(Completed), [1]);
    assert_eq!(fixture.advance(MS), [(Completed, 2), (Expired, 2), (Dropped, 2)]);
}

#[test]
fn a_timeout_of_zero_expires_at_the_next_turn_and_the_longest_never() {
    let fixture = Fixture::new();
    let now = fixture.watch_for(Duration::ZERO, fixture.script(1), &[1]);
    let never = fixture.watch_for(Duration::MAX, fixture.script(2), &[1]);
    fixture.log.take();
    assert!(now.is_pending(), "not before the timer is advanced");
    assert_eq!(fixture.advance(Duration::ZERO), [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    assert!(!now.is_pending());
    for _ in 0..10 {
        assert_eq!(fixture.advance(1_000_000 * HOUR), []);
    }
    assert!(never.is_pending());
    assert_eq!(fixture.counts(), (1, 1, 1));
    assert!(never.force_complete());
    fixture.assert_empty();
}
