//! How a purgatory ends, what it leaves, and who gets its shards.

use crate::What::{Cancelled, Completed, Dropped, Expired};
use crate::holders::{CHECKS, elsewhere};
use crate::reentrancy::hand;
use crate::script::Log;
use crate::{Fixture, HOUR, MS, Script};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::{self, DelayedOperation, Pending, Purgatory, Watch};
use tickwheel::{ManualClock, Task, Timer};

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

/// One is cancelled during a check, the other one expires.
#[test]
fn a_boxed_operation_is_told_how_it_ends() {
    type Boxed = Box<dyn DelayedOperation>;
    let fixture = Fixture::new();
    let purgatory: Purgatory<u32, Boxed> = Purgatory::new(&fixture.timer);
    let (own, handle) = hand::<Pending<u32, Boxed>>();
    let script = fixture.script(1).when(move || {
        own.lock()
            .unwrap()
            .take()
            .is_some_and(|own| own.cancel().into_operation().is_some())
    });
    let watch = |script| purgatory.try_complete_else_watch(Box::new(script) as Boxed, MS, &[1]);
    *handle.lock().unwrap() = watch(script).unwrap().pending();
    assert!(watch(fixture.script(2)).is_ok());
    assert_eq!(purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.log.ends(), [(Cancelled, 1), (Dropped, 1)]);
    assert_eq!(
        fixture.advance(MS),
        [(Completed, 2), (Expired, 2), (Dropped, 2)]
    );
    assert_eq!((purgatory.stats().cancelled, purgatory.len()), (1, 0));
}

/// The executor is dropped with the last clone of its timer.
#[test]
fn a_cancel_that_meets_the_drop_of_the_purgatory_does_not_keep_the_executor() {
    let keys: Vec<u32> = (0..64).collect();
    for _ in 0..500 {
        let guard = Arc::new(());
        let held = Arc::clone(&guard);
        let executor = move |task: Task| {
            let _ = &held;
            task.run();
        };
        let fixture = Fixture::with(|builder| builder.executor(executor));
        let pending = fixture.watch(fixture.script(1), &keys);
        let Fixture {
            purgatory, timer, ..
        } = fixture;
        thread::scope(|scope| {
            scope.spawn(move || drop(pending.cancel()));
            drop(purgatory);
        });
        drop(timer);
        assert_eq!(
            Arc::strong_count(&guard),
            1,
            "every timer's executor is gone"
        );
    }
}

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
        assert_eq!(purgatory.stats(), purgatory::Stats::default());
        let new: Vec<_> = (0..round)
            .map(|id| watch(&purgatory, Script::new(id, &log), [0]))
            .collect();
        for old in &handles {
            let old: &Pending<Key, Script> = old;
            assert!(!old.is_pending() && !old.force_complete());
            assert!(old.cancel().into_operation().is_none());
        }
        assert!(new.iter().all(Pending::is_pending));
        assert_eq!((purgatory.len(), timer.len()), (new.len(), new.len()));
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
    let own = last.clone();
    let of_next = log.clone();
    let own_timer = timer.clone();
    let mut checks = 0;
    let script = Script::new(1, &log).when(move || {
        checks += 1;
        let purgatory: Option<Purgatory<Key, Script>> = own.lock().unwrap().take();
        match purgatory {
            // The last one is by the executor.
            Some(purgatory) if checks < 2 + CHECKS + 1 => {
                elsewhere(|| assert_eq!(purgatory.check_and_complete(&[0, 0]), 0));
                *own.lock().unwrap() = Some(purgatory);
            }
            Some(purgatory) => {
                drop(purgatory);
                for id in 2..5 {
                    let next = Purgatory::new(&own_timer);
                    let pending = watch(&next, Script::new(id, &of_next), [0, 0]);
                    assert_eq!((next.len(), next.stats().watched), (1, 1));
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
    let ends = [(Cancelled, 1), (Dropped, 1), (Dropped, 9)];
    assert!(log.take().ends_with(&ends));
    assert!(!pending.is_pending() && !other.is_pending());
    let next: Vec<_> = made.try_iter().collect();
    assert_eq!((next.len(), timer.len()), (3, 3));
    for (purgatory, pending) in &next {
        purgatory.assert_invariants();
        assert_eq!((purgatory.len(), purgatory.stats().watched), (1, 1));
        assert!(pending.force_complete());
    }
    timer.assert_invariants();
    drop(next);
    // The shards that were left behind are free now.
    let purgatory: Purgatory<Key, Script> = Purgatory::new(&timer);
    assert_eq!(
        (purgatory.stats(), timer.len()),
        (purgatory::Stats::default(), 0)
    );
    purgatory.assert_invariants();
}
