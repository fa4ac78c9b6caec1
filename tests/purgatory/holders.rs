//! What a thread does for others that trigger the operation which it checks, and what it leaves to
//! the timer's executor.

use crate::What::{Checked, Completed, Dropped, Expired};
use crate::{Fixture, HOUR, MS, Script};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::Pending;
use tickwheel::{Task, When};

/// Does it on another thread.
pub(crate) fn elsewhere(act: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(act).join().unwrap());
}

/// How often a thread checks an operation that others trigger.
pub(crate) const CHECKS: u32 = 8;

/// More checks than any of these tests should see: a check panics then, and so does not hang it.
const TOO_MANY: u32 = 1000;

/// Returns an operation that triggers its key 1 in each check from the third to the one before
/// `holds_at`, as if other threads never stopped; and the number of its checks.
fn triggered_in_each_check(fixture: &Fixture, holds_at: u32) -> (Script, Arc<AtomicU32>) {
    let purgatory = fixture.purgatory.clone();
    let checks = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&checks);
    let script = fixture.script(1).when(move || {
        let number = count.fetch_add(1, SeqCst) + 1;
        assert!(number < TOO_MANY, "checked without an end");
        if number > 2 && number < holds_at {
            elsewhere(|| assert_eq!(purgatory.check_and_complete(&1), 0));
        }
        number == holds_at
    });
    (script, checks)
}

/// Seen to fail: such an operation was filed nowhere, and never expired.
#[test]
fn an_operation_that_is_triggered_while_it_is_added_expires() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let checks = AtomicU32::new(0);
    let script = fixture.script(1).when(move || {
        if checks.fetch_add(1, SeqCst) == 1 {
            elsewhere(|| assert_eq!(purgatory.check_and_complete(&1), 0));
        }
        false
    });
    let pending = fixture.watch_for(MS, script, &[1]);
    assert_eq!(fixture.log.take(), [(Checked, 1); 3]);
    fixture.clock.advance(MS);
    assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(
        fixture.log.take(),
        [(Completed, 1), (Expired, 1), (Dropped, 1)]
    );
    assert!(!pending.is_pending());
    fixture.assert_empty();
}

/// Seen to fail: one call made all checks.
#[test]
fn a_call_checks_eight_times_for_others_and_leaves_the_rest_to_the_executor() {
    for full in [false, true] {
        let fixture = Fixture::with(|builder| builder.max_pending(if full { 1 } else { 9 }));
        let (script, _) = triggered_in_each_check(&fixture, 2 + 2 * CHECKS + 1);
        let pending = fixture.watch(script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        for _ in 0..2 {
            assert_eq!(fixture.log.take(), [(Checked, 1); CHECKS as usize]);
            assert_eq!(fixture.counts(), (1, 1, 1));
            assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        }
        let end = [(Checked, 1), (Completed, 1), (Dropped, 1)];
        assert_eq!(
            (fixture.log.take(), pending.is_pending()),
            (end.to_vec(), false)
        );
        assert_eq!(fixture.purgatory.stats().completed_by_trigger, 1);
        fixture.assert_empty();
    }
}

/// A thread that adds an operation does not serve others without a bound either. At the second
/// check the operation is watched already: a trigger then is not lost.
#[test]
fn who_adds_an_operation_checks_eight_times() {
    for holds_at in [3, 1 + CHECKS + 1] {
        let fixture = Fixture::new();
        let purgatory = fixture.purgatory.clone();
        let mut checks = 0;
        let script = fixture.script(1).when(move || {
            checks += 1;
            assert!(checks < TOO_MANY, "checked without an end");
            if checks < holds_at {
                elsewhere(|| assert_eq!(purgatory.check_and_complete(&1), 0));
            }
            checks == holds_at
        });
        let watch = fixture
            .purgatory
            .try_complete_else_watch(script, HOUR, &[1])
            .unwrap();
        assert_eq!(watch.is_completed(), holds_at == 3);
        assert_eq!(
            fixture.log.of(Checked).len(),
            holds_at.min(1 + CHECKS) as usize
        );
        let left = usize::from(holds_at != 3);
        assert_eq!(
            (
                fixture.counts().2,
                fixture.timer.advance_clock(Duration::ZERO)
            ),
            (left, left)
        );
        assert_eq!(fixture.purgatory.stats().panicked, 0);
        fixture.assert_empty();
    }
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
        fixture.counts();
    }
    assert_eq!(checks.load(SeqCst), 2 + 21 * CHECKS);
    assert!(pending.is_pending());
    fixture.log.take();
    fixture.clock.advance(MS);
    assert_eq!(
        fixture.timer.advance_clock(Duration::ZERO),
        2,
        "the check's tick, and the deadline's"
    );
    let log = fixture.log.take();
    let (log, ends) = log.split_at(log.len() - 3);
    assert_eq!(ends, [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    assert_eq!(log, [(Checked, 1); 2 * CHECKS as usize]);
    fixture.assert_empty();
}

/// A check that is left to the executor leaves the deadline as it is, and more time is given.
#[test]
fn what_is_left_to_the_executor_expires_when_its_time_is_up() {
    for (touches, before) in [(false, true), (true, true), (true, false)] {
        let fixture = Fixture::new();
        let (script, checks) = triggered_in_each_check(&fixture, u32::MAX);
        let pending = fixture.watch_for(5 * MS, script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        checks.store(600, SeqCst); // No more than one hold of it.
        if touches && before {
            assert!(pending.touch(10 * MS));
            fixture.counts();
        }
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        if touches && !before {
            assert!(pending.touch(10 * MS));
        }
        assert_eq!(fixture.counts(), (1, 1, 1));
        assert_eq!(checks.load(SeqCst), 600 + CHECKS);
        assert_eq!(
            fixture.timer.advance_clock(Duration::ZERO),
            1,
            "the next hold's rest"
        );
        fixture.clock.advance(5 * MS);
        assert_eq!(
            fixture.timer.advance_clock(Duration::ZERO),
            2,
            "of the former tick, and of this one"
        );
        assert_eq!(fixture.purgatory.stats().expired, u64::from(!touches));
        fixture.clock.advance(5 * MS);
        fixture.timer.advance_clock(Duration::ZERO);
        assert_eq!(
            (fixture.purgatory.stats().expired, fixture.counts().1),
            (1, 0)
        );
    }
}

/// Seen to fail: it was filed nowhere any more, and the check never came.
#[test]
fn what_is_moved_is_checked_by_the_executor_all_the_same() {
    type Move = fn(&Pending<u32, Script>) -> bool;
    let moves: [Move; 4] = [
        |it| it.touch(When::Never),
        |it| it.touch(Duration::MAX),
        |it| it.reschedule(When::Never),
        |it| it.hasten(HOUR / 2),
    ];
    for moved in moves {
        let fixture = Fixture::new();
        let (script, _) = triggered_in_each_check(&fixture, 2 + CHECKS + 1);
        let pending = fixture.watch(script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert!(moved(&pending));
        assert_eq!(fixture.counts(), (1, 1, 1));
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        assert_eq!(fixture.purgatory.stats().completed_by_trigger, 1);
        fixture.assert_empty();
    }
}

/// A check that was handed on before the time was up is made before the operation expires, in
/// whichever order the executor runs the two.
#[test]
fn a_check_on_its_way_comes_before_the_expiry() {
    let end = 2 + CHECKS + 1;
    for (reversed, holds_at) in [
        (false, end),
        (true, end),
        (true, end + 1),
        (false, 99),
        (true, 99),
    ] {
        let (queue, tasks) = mpsc::channel();
        let fixture = Fixture::with(|builder| {
            builder.executor(move |task| queue.send(task).expect("the test listens"))
        });
        let (script, _) = triggered_in_each_check(&fixture, holds_at);
        fixture.watch_for(MS, script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        fixture.log.take();
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        fixture.clock.advance(MS);
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        let mut due: Vec<Task> = tasks.try_iter().collect();
        assert_eq!(due.len(), 2);
        if reversed {
            due.reverse();
        }
        due.into_iter().for_each(Task::run);
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 0);
        let stats = fixture.purgatory.stats();
        let expires = u64::from(holds_at == 99);
        assert_eq!(
            (stats.completed_by_trigger, stats.expired),
            (1 - expires, expires)
        );
        fixture.assert_empty();
    }
}

/// The trigger is not lost with the task: dropping the task makes the check. Nor is the expiry.
#[test]
fn what_is_refused_is_done_where_it_is_dropped() {
    let fixture = Fixture::with(|builder| builder.executor(|task: Task| Err::<(), _>(task)));
    let (script, _) = triggered_in_each_check(&fixture, 2 + CHECKS + 1);
    let pending = fixture.watch(script, &[1]);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
    assert!(!pending.is_pending());
    assert_eq!(fixture.purgatory.stats().completed_by_trigger, 1);
    fixture.watch_for(MS, fixture.script(2), &[1]);
    fixture.log.take();
    assert_eq!(
        fixture.advance(MS),
        [(Completed, 2), (Expired, 2), (Dropped, 2)]
    );
    fixture.assert_empty();
}

/// It does not keep the operation, or the purgatory.
#[test]
fn a_check_on_its_way_finds_what_has_ended_gone() {
    for flushed in [false, true] {
        let (queue, tasks) = mpsc::channel();
        let fixture = Fixture::with(|builder| {
            builder.executor(move |task| queue.send(task).expect("the test listens"))
        });
        let (script, checks) = triggered_in_each_check(&fixture, 100);
        let life = script.life();
        let pending = fixture.watch(script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        if flushed {
            assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
        }
        assert!(pending.force_complete());
        let next = fixture.watch(fixture.script(2), &[1]);
        fixture.log.take();
        assert_eq!((checks.load(SeqCst), life.strong_count()), (2 + CHECKS, 0));
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 0);
        tasks.try_iter().for_each(Task::run);
        assert_eq!((fixture.log.take(), next.is_pending()), (vec![], true));
        assert_eq!(fixture.counts(), (1, 1, 1));
    }
}

/// After a shutdown of the timer there is nobody to leave a check to.
#[test]
fn after_a_shutdown_of_the_timer_the_ninth_check_is_dropped() {
    let fixture = Fixture::new();
    let (script, checks) = triggered_in_each_check(&fixture, u32::MAX);
    let pending = fixture.watch(script, &[1]);
    drop(fixture.timer.shutdown());
    for calls in 1..4 {
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert_eq!(checks.load(SeqCst), 2 + calls * CHECKS);
    }
    assert!(pending.is_pending());
}
