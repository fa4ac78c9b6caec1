//! What is left when very much has come and gone.

use crate::MS;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
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
