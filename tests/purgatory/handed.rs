//! Nobody serves others without bound: what a thread does not check any more the executor does, and
//! an operation whose time is up expires, however often its keys are triggered.

use crate::What::{Checked, Completed, Dropped, Expired};
use crate::{Fixture, HOUR, MS, Script};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tickwheel::{Task, TimerEntry};

/// More checks than any of these tests should see: a check panics then, and so does not hang it.
const TOO_MANY: u32 = 1000;

/// Returns an operation that triggers its key 1 in each check from the third to the one before
/// `holds_at`, as if other threads never stopped; and the number of its checks.
fn triggered_in_each_check(fixture: &Fixture, holds_at: u32) -> (Script, Arc<AtomicU32>) {
    let (purgatory, checks) = (fixture.purgatory.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&checks);
    let script = fixture.script(1).when(move || {
        let number = count.fetch_add(1, SeqCst) + 1;
        assert!(number < TOO_MANY, "checked without an end");
        if number > 2 && number < holds_at {
            assert_eq!(purgatory.check_and_complete(&1), 0);
        }
        number == holds_at
    });
    (script, checks)
}

/// Seen to fail: one call made all five checks.
#[test]
fn a_call_checks_once_for_others_and_leaves_the_rest_to_the_executor() {
    for full in [false, true] {
        let fixture = Fixture::with(|builder| builder.max_pending(if full { 1 } else { 9 }));
        let (script, _) = triggered_in_each_check(&fixture, 7);
        let pending = fixture.watch(script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        for _ in 0..2 {
            assert_eq!(fixture.log.take(), [(Checked, 1), (Checked, 1)]);
            assert_eq!(fixture.counts(), (1, 1, 2), "its timeout, and one check on its way");
            assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        }
        let end = [(Checked, 1), (Completed, 1), (Dropped, 1)];
        assert_eq!((fixture.log.take(), pending.is_pending()), (end.to_vec(), false));
        assert_eq!(fixture.purgatory.stats().completed_by_trigger, 1);
        fixture.assert_empty();
    }
}

/// A thread that adds an operation does not serve others without a bound either.
#[test]
fn who_adds_an_operation_checks_once_for_others() {
    let fixture = Fixture::new();
    let (purgatory, mut checks) = (fixture.purgatory.clone(), 0);
    let script = fixture.script(1).when(move || {
        checks += 1;
        assert!(checks < TOO_MANY, "checked without an end");
        assert_eq!(purgatory.check_and_complete(&1), 0);
        checks == 5
    });
    let watch = fixture.purgatory.try_complete_else_watch(script, HOUR, &[1]).unwrap();
    assert!(!watch.is_completed());
    assert_eq!(fixture.log.take(), [(Checked, 1); 3]);
    assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(fixture.log.of(Completed), [1]);
    fixture.assert_empty();
}

/// Seen to fail: it was checked until that panicked, and never expired.
#[test]
fn an_operation_expires_in_time_however_often_its_key_is_triggered() {
    let fixture = Fixture::new();
    let (script, checks) = triggered_in_each_check(&fixture, u32::MAX);
    let pending = fixture.watch_for(MS, script, &[1]);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    for _ in 0..20 {
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
    }
    assert_eq!(checks.load(SeqCst), 2 + 2 + 40);
    assert!(pending.is_pending());
    fixture.log.take();
    fixture.clock.advance(MS);
    for _ in 0..3 {
        fixture.timer.advance_clock(Duration::ZERO);
    }
    let log = fixture.log.take();
    let (log, ends) = log.split_at(log.len() - 3);
    assert_eq!(ends, [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    assert_eq!(log, [(Checked, 1); 3], "two before the alarm went off, and one more");
    fixture.assert_empty();
}

/// The time is up during the third check. A trigger that came by then is handled, none after it.
#[test]
fn when_its_time_is_up_it_is_checked_once_more() {
    for holds_at in [4, 5] {
        let fixture = Fixture::new();
        let (purgatory, timer) = (fixture.purgatory.clone(), fixture.timer.clone());
        let (clock, mut checks) = (fixture.clock.clone(), 0);
        let script = fixture.script(1).when(move || {
            checks += 1;
            if checks == 3 {
                clock.advance(MS);
                assert_eq!(timer.advance_clock(Duration::ZERO), 1);
            }
            assert!(checks < 3 || purgatory.check_and_complete(&1) == 0);
            checks == holds_at
        });
        fixture.watch_for(MS, script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), usize::from(holds_at == 4));
        let mut log = fixture.log.take();
        if holds_at == 5 {
            assert_eq!(fixture.counts(), (1, 1, 1), "on its way to the executor");
            assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
            log.extend(fixture.advance(Duration::ZERO));
            log.retain(|(what, _)| *what != Expired);
        }
        assert_eq!(log, [(Checked, 1), (Checked, 1), (Completed, 1), (Dropped, 1)]);
        assert_eq!(fixture.purgatory.stats().expired, u64::from(holds_at == 5));
        fixture.assert_empty();
    }
}

/// A check that was handed on before the time was up is made before the operation expires, in
/// whichever order the executor runs the two. If it comes after the alarm it is the last one.
#[test]
fn a_check_on_its_way_comes_before_the_expiry() {
    for (reversed, holds_at) in [(false, 5), (true, 5), (true, 6)] {
        let (queue, tasks) = mpsc::channel();
        let fixture = Fixture::with(|builder| {
            builder.executor(move |task| queue.send(task).expect("the test listens"))
        });
        let (script, _) = triggered_in_each_check(&fixture, holds_at);
        fixture.watch_for(MS, script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        fixture.log.take();
        fixture.clock.advance(MS);
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 2);
        let mut due: Vec<Task> = tasks.try_iter().collect();
        if reversed {
            due.reverse();
        }
        due.into_iter().for_each(Task::run);
        fixture.timer.advance_clock(Duration::ZERO);
        tasks.try_iter().for_each(Task::run);
        let stats = fixture.purgatory.stats();
        let expires = u64::from(holds_at == 6);
        assert_eq!((stats.completed_by_trigger, stats.expired), (1 - expires, expires));
        assert_eq!(fixture.log.of(Checked), [1], "once more at most");
        fixture.assert_empty();
    }
}

/// The trigger is not lost with the task: dropping the task makes the check.
#[test]
fn a_check_that_is_refused_or_returned_is_made_where_it_is_dropped() {
    for refused in [true, false] {
        let fixture = Fixture::with(|builder| builder.executor(|task: Task| Err::<(), _>(task)));
        let (script, _) = triggered_in_each_check(&fixture, 5);
        let pending = fixture.watch(script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        if refused {
            assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        } else {
            let mut returned = fixture.timer.shutdown();
            assert_eq!((returned.len(), pending.is_pending()), (1, true));
            drop::<TimerEntry>(returned.remove(0));
        }
        assert!(!pending.is_pending());
        assert_eq!(fixture.purgatory.stats().completed_by_trigger, 1);
    }
}

/// It does not keep the operation, or the purgatory.
#[test]
fn a_check_on_its_way_finds_what_has_ended_gone() {
    let fixture = Fixture::new();
    let (script, checks) = triggered_in_each_check(&fixture, 100);
    let life = script.life();
    let pending = fixture.watch(script, &[1]);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert!(pending.force_complete());
    let next = fixture.watch(fixture.script(2), &[1]);
    fixture.log.take();
    assert_eq!((checks.load(SeqCst), life.strong_count()), (4, 0));
    assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
    assert_eq!((fixture.log.take(), next.is_pending()), (vec![], true));
    assert_eq!(fixture.counts(), (1, 1, 1));
}
