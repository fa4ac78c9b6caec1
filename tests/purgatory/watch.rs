//! How an operation is watched, and what its handle does.

use crate::What::{Checked, Completed, Dropped};
use crate::{Fixture, HOUR, MS, Script, hand};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::purgatory::{Cancel, Pending, Purgatory, WatchError};

#[cfg(target_pointer_width = "64")]
#[test]
fn a_handle_is_as_large_as_its_documentation_says() {
    assert_eq!(size_of::<Pending<u64, Script>>(), 32);
}

/// The condition becomes true after the first check, and the thread that made it so has looked at
/// the keys before the operation was watched there.
#[test]
fn an_operation_whose_condition_comes_true_meanwhile_is_completed_at_its_second_check() {
    let fixture = Fixture::new();
    let flag = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&flag);
    let purgatory = fixture.purgatory.clone();
    let script = fixture.script(1).when(move || {
        let holds = now.swap(true, SeqCst);
        if !holds {
            assert_eq!(
                purgatory.check_and_complete(&1),
                0,
                "nothing is watched there yet"
            );
        }
        holds
    });
    let watch = fixture
        .purgatory
        .try_complete_else_watch(script, HOUR, &[1, 2])
        .unwrap();
    assert!(watch.is_completed() && watch.pending().is_none());
    assert_eq!(
        fixture.log.take(),
        [(Checked, 1), (Checked, 1), (Completed, 1), (Dropped, 1)]
    );
    fixture.assert_empty();
    assert_eq!(fixture.purgatory.stats().completed_at_once, 1);
}

#[test]
fn the_second_check_comes_when_the_operation_is_watched_on_all_its_keys() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let mut seen = Vec::new();
    let script = fixture.script(1).when(move || {
        seen.push([1, 2, 3].map(|key| purgatory.watched_for(&key)));
        assert!(seen.len() < 2 || seen == [[0; 3], [1; 3]], "{seen:?}");
        seen.len() == 2
    });
    let watch = fixture
        .purgatory
        .try_complete_else_watch(script, HOUR, &[1, 2, 3])
        .unwrap();
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
        assert_eq!(
            pending.cancel().into_operation().map(|script| script.id),
            Some(count)
        );
        fixture.assert_empty();
    }
}

#[test]
fn without_a_key_an_operation_is_handed_back_unchecked() {
    let fixture = Fixture::new();
    let script = fixture.script(1).at_check(1);
    match fixture.purgatory.try_complete_else_watch(script, HOUR, &[]) {
        Err(WatchError::NoKeys(script)) => assert_eq!(script.into_inner().id, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.log.take(), [(Dropped, 1)]);
    fixture.assert_empty();
}

#[test]
fn what_a_full_timer_refuses_is_handed_back_and_watched_nowhere() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    let first = fixture.watch(fixture.script(1), &[1]);
    match fixture
        .purgatory
        .try_complete_else_watch(fixture.script(2), HOUR, &[1, 2, 1])
    {
        Err(WatchError::Full(script)) => assert_eq!(script.into_inner().id, 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.log.of(Dropped), [2]);
    assert_eq!(fixture.counts(), (1, 1, 1));
    assert_eq!(
        [1, 2].map(|key| fixture.purgatory.watched_for(&key)),
        [1, 0]
    );
    // Not one that need not wait.
    let script = fixture.script(3).at_check(1);
    let watch = fixture
        .purgatory
        .try_complete_else_watch(script, HOUR, &[1]);
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
            let own = fixture.timer.after(HOUR, || ()).unwrap();
            assert_eq!(fixture.purgatory.clone().shutdown().len(), 0);
            assert!(own.cancel().is_cancelled(), "the timer's own go on");
        }
        match fixture
            .purgatory
            .try_complete_else_watch(fixture.script(1), HOUR, &[1, 2])
        {
            Err(WatchError::Shutdown(script)) => assert_eq!(script.into_inner().id, 1),
            other => panic!("{whose}: {other:?}"),
        }
        assert_eq!(fixture.log.of(Dropped), [1]);
        fixture.assert_empty();
        let stats = fixture.purgatory.stats();
        assert_eq!((stats.cancelled, stats.completed_at_once), (0, 0));
        let at_once = fixture.script(2).at_check(1);
        let watch = fixture
            .purgatory
            .try_complete_else_watch(at_once, HOUR, &[1]);
        assert!(
            watch.is_ok_and(|watch| watch.is_completed()),
            "it need not wait"
        );
    }
}

#[test]
fn what_a_cancel_returned_may_be_watched_again_and_waits_on() {
    let fixture = Fixture::new();
    let pending = fixture.watch(fixture.script(1).at_check(3), &[1, 2]);
    let Cancel::Cancelled(script) = pending.cancel() else {
        panic!("nobody else wants it")
    };
    let again = fixture.watch(script.at_check(3), &[3]);
    assert_eq!(fixture.purgatory.check_and_complete(&3), 1);
    assert!(!again.is_pending() && !pending.is_pending());
}

#[test]
fn the_longest_timeout_never_comes() {
    let fixture = Fixture::new();
    let never = fixture.watch_for(Duration::MAX, fixture.script(1), &[1]);
    fixture.log.take();
    for _ in 0..10 {
        assert_eq!(fixture.advance(1_000_000 * HOUR), []);
    }
    assert!(never.is_pending());
    assert_eq!(fixture.counts(), (1, 1, 1));
    assert!(never.force_complete());
    fixture.assert_empty();
}

#[test]
fn a_key_is_found_in_any_form_that_it_can_be_borrowed_as() {
    let fixture = Fixture::new();
    let purgatory: Purgatory<String, Script> = Purgatory::new(&fixture.timer);
    let keys = ["orders-0".to_owned()];
    let watch = |script| {
        purgatory
            .try_complete_else_watch(script, HOUR, &keys)
            .map(drop)
    };
    watch(fixture.script(1).at_check(3)).unwrap();
    watch(fixture.script(2)).unwrap();
    assert_eq!(
        (
            purgatory.watched_for("orders-0"),
            purgatory.watched_for("orders-1")
        ),
        (2, 0)
    );
    assert_eq!(purgatory.check_and_complete("orders-0"), 1);
    assert_eq!(purgatory.cancel_for_key("orders-0").len(), 1);
}

#[test]
fn a_guard_cancels_when_it_is_dropped_unless_its_operation_has_ended() {
    let fixture = Fixture::new();
    let guard = fixture.watch(fixture.script(1), &[1, 2]).cancel_on_drop();
    assert_eq!(fixture.counts(), (2, 1, 1));
    fixture.log.take();
    drop(guard);
    assert_eq!(fixture.log.take(), [(Dropped, 1)]);
    fixture.assert_empty();
    let guard = fixture
        .watch(fixture.script(2).at_check(3), &[1])
        .cancel_on_drop();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert_eq!(fixture.log.ends(), [(Completed, 2), (Dropped, 2)]);
    drop(guard);
    let stats = fixture.purgatory.stats();
    assert_eq!((stats.cancelled, stats.completed_by_trigger), (1, 1));
}

/// The wheels of a purgatory are its timer's, and so are what they count.
#[test]
fn a_timers_figures_include_those_of_its_purgatories() {
    let fixture = Fixture::new();
    for id in 0..10 {
        fixture.watch_for(5 * MS, fixture.script(id), &[id]);
    }
    assert!(fixture.watch(fixture.script(10), &[10]).force_complete());
    let slots = fixture.timer.snapshot().levels[0]
        .slots
        .iter()
        .sum::<usize>();
    assert_eq!(
        (slots, fixture.timer.len(), fixture.timer.stats().pending),
        (10, 10, 10)
    );
    fixture.advance(5 * MS);
    let stats = fixture.timer.stats();
    assert_eq!(
        (stats.added, stats.expired, stats.lateness.count()),
        (11, 10, 10)
    );
}

/// Seen to fail: an operation that met an armed bucket of a coarser wheel, as others were due far
/// away, waited for the next tick.
#[test]
fn an_operation_without_time_expires_at_the_next_turn() {
    let fixture = Fixture::with(|builder| builder.tick(HOUR));
    let far = fixture.watch_for(100 * HOUR, fixture.script(1), &[1]);
    fixture.clock.advance(HOUR * 199 / 2);
    let now = fixture.watch_for(Duration::ZERO, fixture.script(2), &[1]);
    assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
    assert!(far.is_pending() && !now.is_pending());
}

/// First in, first out, whoever was checked by the last call.
#[test]
fn the_longest_waiter_is_checked_first() {
    let fixture = Fixture::new();
    fixture.watch(fixture.script(1), &[1]);
    (2..5).for_each(|id| _ = fixture.watch(fixture.script(id).at_check(3), &[1]));
    for next in 2..5 {
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
        assert_eq!(fixture.log.of(Checked), [1, next]);
    }
    assert_eq!(
        (
            fixture.purgatory.check_and_complete_up_to(&1, 1),
            fixture.purgatory.len()
        ),
        (0, 1)
    );
}

/// A call takes operations along 32 at a time, and the place at which it would go on leaves.
#[test]
fn a_call_checks_each_operation_once_whatever_leaves_meanwhile() {
    let fixture = Fixture::new();
    let (others, handles) = hand::<Vec<Pending<u32, Script>>>();
    let watch = |id: u32| fixture.watch(fixture.script(id), &[1]);
    let mut handed: Vec<_> = (0..280).map(watch).collect();
    let leave = move || {
        let others = others.lock().unwrap().take().unwrap();
        others[287..320]
            .iter()
            .for_each(|other| assert!(other.cancel().into_operation().is_some()));
    };
    handed.push(fixture.watch(fixture.script(280).at_check(3).on_complete(leave), &[1]));
    handed.extend((281..400).map(watch));
    *handles.lock().unwrap() = Some(handed.split_off(1));
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert!(
        fixture
            .log
            .of(Checked)
            .into_iter()
            .eq((0..288).chain(321..400))
    );
    assert_eq!(fixture.purgatory.stats().panicked, 0);
}
