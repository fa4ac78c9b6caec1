//! A purgatory may get the shards of one that is gone: neither notices.

use crate::What::{Cancelled, Dropped};
use crate::script::Log;
use crate::{HOUR, Script};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tickwheel::purgatory::{Pending, Purgatory, PurgatoryStats, Watch};
use tickwheel::{ManualClock, Timer};

fn watch<K>(purgatory: &Purgatory<K, Script>, script: Script, key: K) -> Pending<K, Script>
where
    K: Debug + Hash + Eq + Clone + Send + 'static,
{
    match purgatory.try_complete_else_watch(script, HOUR, &[key]) {
        Ok(Watch::Pending(pending)) => pending,
        other => panic!("it has to wait: {other:?}"),
    }
}

#[test]
fn a_handle_never_touches_the_operations_of_the_next_purgatory() {
    type Key = [u8; 1]; // No other test's, so that no other one gets the shards.
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let log = Log::default();
    let mut handles = Vec::new();
    for round in 0..20 {
        let purgatory: Purgatory<Key, Script> = Purgatory::new(&timer);
        assert_eq!(purgatory.stats(), PurgatoryStats::default());
        let new: Vec<_> =
            (0..round).map(|id| watch(&purgatory, Script::new(id, &log), [0])).collect();
        for old in &handles {
            let old: &Pending<Key, Script> = old;
            assert!(!old.is_pending() && !old.force_complete());
            assert!(old.cancel().into_operation().is_none());
        }
        assert!(new.iter().all(Pending::is_pending));
        assert_eq!((purgatory.delayed(), timer.len()), (new.len(), new.len()));
        handles.extend(new);
        purgatory.assert_invariants();
        timer.assert_invariants();
    }
    assert_eq!(timer.len(), 0);
}

/// The last clone of the first one is dropped while an operation is being checked, by the executor:
/// that one ends on its own, and leaves nothing in the second.
#[test]
fn an_operation_that_outlives_its_purgatory_stays_out_of_the_next_one() {
    type Key = [u8; 2];
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let log = Log::default();
    let first: Purgatory<Key, Script> = Purgatory::new(&timer);
    let (sender, made) = mpsc::channel();
    let last = Arc::new(Mutex::new(None));
    let (own, of_next, own_timer, mut checks) = (last.clone(), log.clone(), timer.clone(), 0);
    let script = Script::new(1, &log).when(move || {
        checks += 1;
        let purgatory: Option<Purgatory<Key, Script>> = own.lock().unwrap().take();
        match purgatory {
            // One check for the trigger, one for this trigger in it, one by the executor.
            Some(purgatory) if checks < 5 => {
                assert_eq!(purgatory.check_and_complete(&[0, 0]), 0);
                *own.lock().unwrap() = Some(purgatory);
            }
            Some(purgatory) => {
                drop(purgatory);
                for id in 2..5 {
                    let next = Purgatory::new(&own_timer);
                    let pending = watch(&next, Script::new(id, &of_next), [0, 0]);
                    assert_eq!((next.delayed(), next.watched()), (1, 1));
                    next.assert_invariants();
                    sender.send((next, pending)).unwrap();
                }
            }
            None => {}
        }
        false
    });
    let pending = watch(&first, script, [0, 0]);
    let other = watch(&first, Script::new(9, &log), [0, 0]);
    *last.lock().unwrap() = Some(first.clone());
    assert_eq!(first.check_and_complete(&[0, 0]), 0);
    drop(first);
    log.take();
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let ends = [(Cancelled, 1), (Dropped, 1)];
    assert!(log.take().ends_with(&ends));
    assert!(!pending.is_pending() && !other.is_pending());
    let next: Vec<_> = made.try_iter().collect();
    assert_eq!((next.len(), timer.len()), (3, 3));
    for (purgatory, pending) in &next {
        purgatory.assert_invariants();
        assert_eq!((purgatory.delayed(), purgatory.watched()), (1, 1));
        assert!(pending.force_complete());
    }
    timer.assert_invariants();
    drop(next);
    // The shards that were left behind are free now.
    let purgatory: Purgatory<Key, Script> = Purgatory::new(&timer);
    assert_eq!((purgatory.stats(), timer.len()), (PurgatoryStats::default(), 0));
    purgatory.assert_invariants();
}
