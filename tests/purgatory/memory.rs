//! What is left when very much has come and gone.

use crate::{Fixture, HOUR, MS};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Purgatory, WatchError};
use tickwheel::{ManualClock, Timer};

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

#[test]
fn very_many_operations_on_a_key_leave_at_one_trigger() {
    let fixture = Fixture::new();
    let lives: Vec<_> = (0..MANY as u32 / 10)
        .map(|id| {
            let script = fixture.script(id).at_check(3);
            let life = script.life();
            fixture.watch(script, &[1, 2 + id]);
            life
        })
        .collect();
    assert_eq!(fixture.purgatory.check_and_complete(&1), lives.len());
    assert!(lives.iter().all(|life| life.strong_count() == 0));
    fixture.assert_empty();
}

/// The ones in the middle stay; what left around them is not in the way.
#[test]
fn a_few_that_stay_do_not_keep_those_around_them() {
    let fixture = Fixture::new();
    let mut living = Vec::new();
    for id in 0..MANY as u32 / 10 {
        let script = fixture.script(id);
        let life = script.life();
        let pending = fixture.watch(script, &[1]);
        if id % 1000 == 500 {
            living.push(life);
        } else {
            assert!(pending.cancel().into_operation().is_some());
            assert_eq!(life.strong_count(), 0);
        }
    }
    assert_eq!(fixture.counts(), (living.len(), living.len(), living.len()));
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.log.take().len(), living.len());
    drop(fixture.purgatory.shutdown());
    assert!(living.iter().all(|life| life.strong_count() == 0));
    fixture.assert_empty();
}

/// Nothing is remembered of operations that were finished or refused before they were watched, or
/// that have left.
#[test]
fn what_does_not_wait_has_no_record() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    let watch = |script| fixture.purgatory.try_complete_else_watch(script, HOUR, &[1, 2]);
    assert!(watch(fixture.script(1).at_check(2)).is_ok_and(|watch| watch.is_completed()));
    assert!(watch(fixture.script(2).when(|| panic!("planted"))).is_ok());
    let mut checks = 0;
    let panics_second = fixture.script(3).when(move || {
        checks += 1;
        assert!(checks < 2, "planted");
        false
    });
    assert!(watch(panics_second).is_ok_and(|watch| watch.is_completed()));
    assert_eq!(fixture.purgatory.delayed(), 0);
    fixture.watch(fixture.script(4), &[1]);
    assert!(matches!(watch(fixture.script(5)), Err(WatchError::Full(_))));
    assert_eq!(fixture.purgatory.delayed(), 1);
    drop(fixture.purgatory.shutdown());
    assert!(matches!(watch(fixture.script(6)), Err(WatchError::Shutdown(_))));
    assert_eq!(fixture.purgatory.delayed(), 0);
}
