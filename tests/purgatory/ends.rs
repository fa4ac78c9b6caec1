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
