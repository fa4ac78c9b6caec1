//! What is finished is gone at once, whichever way it ended, however much has come and gone.

use crate::What::{self, Cancelled, Completed, Dropped, Expired};
use crate::reentrancy::hand;
use crate::{Fixture, MS, Script};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Timer};

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

const MANY: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

/// Counts those that live.
struct Counted(Arc<AtomicUsize>, bool);

impl Counted {
    fn new(living: &Arc<AtomicUsize>) -> Self {
        living.fetch_add(1, SeqCst);
        Counted(Arc::clone(living), false)
    }
}

impl DelayedOperation for Counted {
    fn try_complete(&mut self) -> bool {
        self.1
    }

    fn on_complete(&mut self) {
        self.1 = true;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// In waves of a thousand: a quarter is forced, cancelled, cancelled by key, expired each.
#[test]
fn after_very_many_operations_nothing_is_left() {
    let clock = ManualClock::new();
    let timer = Timer::builder().shards(2).clock(clock.clone()).build().unwrap();
    let purgatory: Purgatory<usize, Counted> = Purgatory::new(&timer);
    let living = Arc::new(AtomicUsize::new(0));
    let mut kept = Vec::new();
    for wave in 0..MANY / 1000 {
        for number in 0..1000 {
            let id = wave * 1000 + number;
            // A key that all share, one of a few, one of its own.
            let keys = [0, 1 + number % 4, 1000 + id];
            let operation = Counted::new(&living);
            let watch = purgatory.try_complete_else_watch(operation, 10 * MS, &keys).unwrap();
            let pending = watch.pending().unwrap();
            match number % 4 {
                0 => assert!(pending.force_complete()),
                1 => assert!(pending.cancel().into_operation().is_some()),
                _ => kept.push(pending),
            }
        }
        assert_eq!((living.load(SeqCst), purgatory.delayed(), timer.len()), (500, 500, 500));
        assert_eq!(purgatory.cancel_for_key(&3).len(), 250);
        clock.advance(10 * MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 250);
        assert_eq!((living.load(SeqCst), purgatory.watched(), timer.len()), (0, 0, 0));
    }
    purgatory.assert_invariants();
    timer.assert_invariants();
    let ended = MANY as u64 / 4;
    let stats = purgatory.stats();
    assert_eq!(
        (stats.completed_by_force, stats.expired, stats.cancelled),
        (ended, ended, 2 * ended)
    );
    // Their handles keep nothing alive.
    assert!(kept.iter().all(|pending| !pending.is_pending()));
}
