//! What is finished is gone at once, whichever way it ended.

use crate::What::{Cancelled, Completed, Dropped, Expired};
use crate::reentrancy::hand;
use crate::{Fixture, MS, Script, What};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tickwheel::purgatory::Pending;

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Trigger,
    Force,
    Expiry,
    Cancel,
    CancelForKey,
    Shutdown,
    /// It cancels itself while it is checked.
    Left,
    LastPurgatory,
}

const ENDS: [End; 8] = [
    End::Trigger,
    End::Force,
    End::Expiry,
    End::Cancel,
    End::CancelForKey,
    End::Shutdown,
    End::Left,
    End::LastPurgatory,
];

/// Returns the calls, in order, when operation 1 ends in this way.
fn code_of(end: End) -> &'static [What] {
    match end {
        End::Trigger | End::Force => &[Completed, Dropped],
        End::Expiry => &[Completed, Expired, Dropped],
        End::Left => &[Cancelled, Dropped],
        End::Cancel | End::CancelForKey | End::Shutdown | End::LastPurgatory => &[Dropped],
    }
}

#[test]
fn a_finished_operation_is_gone_from_all_its_keys_and_the_timer_and_dropped() {
    for end in ENDS {
        let fixture = Fixture::new();
        let set = Arc::new(AtomicBool::new(false));
        let (flag, (handle, own)) = (Arc::clone(&set), hand::<Arc<Pending<u32, Script>>>());
        let script = fixture.script(1).when(move || {
            if let Some(handle) = handle.lock().unwrap().take() {
                assert!(matches!(handle.cancel(), tickwheel::purgatory::Cancelled::Deferred));
            }
            flag.load(SeqCst)
        });
        let life = script.life();
        let pending = Arc::new(fixture.watch_for(MS, script, &[1, 2, 3, 1]));
        assert_eq!(fixture.counts(), (4, 1, 1));
        fixture.log.take();
        let Fixture { purgatory, timer, clock, log } = fixture;
        match end {
            End::Trigger => {
                set.store(true, SeqCst);
                assert_eq!(purgatory.check_and_complete(&2), 1);
            }
            End::Force => assert!(pending.force_complete()),
            End::Expiry => {
                clock.advance(MS);
                assert_eq!(timer.advance_clock(MS), 1);
            }
            End::Cancel => drop(pending.cancel()),
            End::CancelForKey => drop(purgatory.cancel_for_key(&3)),
            End::Shutdown => drop(purgatory.shutdown()),
            End::Left => {
                *own.lock().unwrap() = Some(Arc::clone(&pending));
                assert_eq!(purgatory.check_and_complete(&1), 0);
            }
            End::LastPurgatory => drop(purgatory.clone()),
        }
        if end == End::LastPurgatory {
            drop(purgatory);
        } else {
            assert_eq!((purgatory.watched(), purgatory.delayed()), (0, 0), "{end:?}");
            assert_eq!([1, 2, 3].map(|key| purgatory.watched_for(&key)), [0; 3], "{end:?}");
            purgatory.assert_invariants();
        }
        assert_eq!((timer.len(), pending.is_pending()), (0, false), "{end:?}");
        assert_eq!(life.strong_count(), 0, "{end:?}");
        let called: Vec<What> = log.ends().into_iter().map(|(what, _)| what).collect();
        assert_eq!(called, code_of(end), "{end:?}");
    }
}

#[test]
fn counts_are_exact_and_empty_keys_vanish() {
    let fixture = Fixture::new();
    let pending: Vec<_> = (0..100)
        .map(|id| {
            let keys: Vec<u32> = (0..=id % 4).map(|nth| (id + nth * 7) % 20).collect();
            (keys.clone(), fixture.watch(fixture.script(id), &keys))
        })
        .collect();
    let mut watched: usize = pending.iter().map(|(keys, _)| keys.len()).sum();
    for (done, (keys, pending)) in pending.iter().enumerate() {
        assert_eq!(fixture.counts(), (watched, 100 - done, 100 - done));
        let before: Vec<usize> =
            keys.iter().map(|key| fixture.purgatory.watched_for(key)).collect();
        if done % 2 == 0 {
            assert!(pending.force_complete());
        } else {
            assert!(pending.cancel().into_operation().is_some());
        }
        for (key, before) in keys.iter().zip(before) {
            assert_eq!(fixture.purgatory.watched_for(key), before - 1);
        }
        watched -= keys.len();
    }
    fixture.assert_empty();
}

#[test]
fn cancel_for_key_returns_a_keys_operations_in_order_and_takes_them_out_of_all_keys() {
    let fixture = Fixture::new();
    for id in 0..90 {
        let keys = if id % 3 == 0 { vec![2, 3] } else { vec![1, 2, 100 + id] };
        fixture.watch(fixture.script(id), &keys);
    }
    fixture.log.take();
    let ids = |of: &[Script]| of.iter().map(|script| script.id).collect::<Vec<_>>();
    let cancelled = fixture.purgatory.cancel_for_key(&1);
    assert_eq!(ids(&cancelled), (0..90).filter(|id| id % 3 > 0).collect::<Vec<_>>());
    assert_eq!(fixture.log.take(), [], "none of their code is called");
    assert_eq!(fixture.counts(), (60, 30, 30));
    assert_eq!([1, 2, 3, 101].map(|key| fixture.purgatory.watched_for(&key)), [0, 30, 30, 0]);
    assert!(fixture.purgatory.cancel_for_key(&1).is_empty());
    let cancelled = fixture.purgatory.cancel_for_key(&2);
    assert_eq!(ids(&cancelled), (0..90).filter(|id| id % 3 == 0).collect::<Vec<_>>());
    assert_eq!(fixture.purgatory.stats().cancelled, 90);
    fixture.assert_empty();
}

/// Numbers of blocks and of keys come and go; what they leave behind must not add up.
#[test]
fn a_key_may_fill_and_empty_any_number_of_times() {
    let fixture = Fixture::new();
    for round in 0..200 {
        let several = 1 + round * 7 % 60;
        for id in 0..several {
            fixture.watch(fixture.script(id).at_check(3), &[1, 2 + id % 3]);
        }
        assert_eq!(fixture.purgatory.check_and_complete(&1), several as usize);
        assert_eq!(fixture.log.of(Completed), (0..several).collect::<Vec<_>>());
        fixture.assert_empty();
    }
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
    let guard = fixture.watch(fixture.script(2).at_check(3), &[1]).cancel_on_drop();
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
    let slots = fixture.timer.snapshot().levels[0].slots.iter().sum::<usize>();
    assert_eq!((slots, fixture.timer.len(), fixture.timer.stats().pending), (10, 10, 10));
    fixture.advance(5 * MS);
    let stats = fixture.timer.stats();
    assert_eq!((stats.added, stats.expired, stats.lateness.count()), (11, 10, 10));
}
