//! Timeouts, and what a thread does not check any more: the executor does. Nobody serves others
//! without bound, and an operation whose time is up expires, however often its keys are triggered.

use crate::What::{Checked, Completed, Dropped, Expired};
use crate::{Fixture, HOUR, MS, Script, hand};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Task, Timeout, Timer, TimerEntry, When, Worker};

/// Writes down on which thread it is completed and expires.
struct Threads(mpsc::Sender<(&'static str, ThreadId)>);

impl DelayedOperation for Threads {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {
        self.0.send(("completed", thread::current().id())).unwrap();
    }

    fn on_expiration(&mut self) {
        self.0.send(("expired", thread::current().id())).unwrap();
    }
}

#[test]
fn an_expiry_runs_on_the_timers_executor() {
    let (told, name) = mpsc::channel();
    let worker = Worker::unbounded("worker", move |task: Task| {
        told.send(thread::current().id()).unwrap();
        task.run();
    });
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).executor(worker.unwrap());
    let timer = builder.build().unwrap();
    let purgatory = Purgatory::new(&timer);
    let (sender, receiver) = mpsc::channel();
    let watch = purgatory.try_complete_else_watch(Threads(sender), MS, &["key"]);
    let pending = watch.unwrap().pending().unwrap();
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let ends = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    let worker = name.recv().unwrap();
    assert_ne!(worker, thread::current().id());
    assert_eq!(ends, [("completed", worker), ("expired", worker)]);
    assert!(!pending.is_pending());
    assert_eq!(receiver.recv(), Err(mpsc::RecvError), "and there it is dropped");
}

/// Runs an operation whose time is up during its third check, when `meanwhile` happens as well. The
/// number of the check determines whether its condition holds.
pub(crate) fn late_in_its_third_check(
    fixture: &Fixture,
    meanwhile: impl Fn(&Timer) + Send + 'static,
    holds: impl Fn(u32) -> bool + Send + 'static,
) -> Script {
    let (timer, clock, mut checks) = (fixture.timer.clone(), fixture.clock.clone(), 0);
    fixture.script(1).when(move || {
        checks += 1;
        if checks == 3 {
            clock.advance(MS);
            assert_eq!(timer.advance_clock(Duration::ZERO), 1);
            meanwhile(&timer);
        }
        holds(checks)
    })
}

/// The condition may come true in time: the expiry waits for the check that is under way.
#[test]
fn an_operation_whose_time_is_up_while_it_is_checked_is_left_to_the_executor_after_the_check() {
    for holds in [true, false] {
        let fixture = Fixture::new();
        let condition = move |check| check == 3 && holds;
        let script = late_in_its_third_check(&fixture, |_| (), condition);
        let pending = fixture.watch_for(MS, script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), usize::from(holds));
        if holds {
            assert_eq!(fixture.log.take(), [(Checked, 1), (Completed, 1), (Dropped, 1)]);
        } else {
            assert_eq!(fixture.log.take(), [(Checked, 1)]);
            assert!(pending.is_pending());
            assert_eq!(fixture.counts(), (1, 1, 1));
            let ends = [(Completed, 1), (Expired, 1), (Dropped, 1)];
            assert_eq!(fixture.advance(Duration::ZERO), ends);
        }
        assert!(!pending.is_pending());
        assert_eq!(fixture.purgatory.stats().expired, u64::from(!holds));
        fixture.assert_empty();
    }
}

#[test]
fn an_operation_that_is_completed_before_the_executor_gets_it_again_leaves_no_timer() {
    let fixture = Fixture::new();
    let script = late_in_its_third_check(&fixture, |_| (), |_| false);
    let pending = fixture.watch_for(MS, script, &[1]);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.counts(), (1, 1, 1));
    assert!(pending.force_complete());
    fixture.assert_empty();
}

/// A trigger that came during the check as well comes first.
#[test]
fn an_operation_that_is_triggered_while_its_time_is_up_is_checked_before_it_expires() {
    // It keeps its permit until it has ended.
    for max_pending in [1, 9] {
        let fixture = Fixture::with(|builder| builder.max_pending(max_pending));
        let purgatory = fixture.purgatory.clone();
        let meanwhile = move |timer: &Timer| {
            let another = timer.add(TimerEntry::after(2 * HOUR, || ()));
            assert_eq!(another.map(Timeout::cancel_on_drop).is_ok(), max_pending > 1);
            assert_eq!(purgatory.check_and_complete(&1), 0);
        };
        let script = late_in_its_third_check(&fixture, meanwhile, |check| check == 4);
        fixture.watch_for(MS, script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
        assert_eq!(fixture.log.take(), [(Checked, 1), (Checked, 1), (Completed, 1), (Dropped, 1)]);
        assert_eq!(fixture.advance(HOUR), []);
        fixture.assert_empty();
    }
}

/// Nobody else would expire it.
#[test]
fn an_operation_whose_time_is_up_while_it_is_checked_expires_even_if_the_timer_is_shut_down() {
    let fixture = Fixture::new();
    let ends = |timer: &Timer| assert_eq!(timer.shutdown().len(), 0);
    let script = late_in_its_third_check(&fixture, ends, |_| false);
    fixture.watch_for(MS, script, &[1, 2]);
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    let ends = [(Checked, 1), (Completed, 1), (Expired, 1), (Dropped, 1)];
    assert_eq!(fixture.log.take(), ends);
    assert_eq!(fixture.purgatory.stats().expired, 1);
    fixture.assert_empty();
}

/// A task that waits in the executor's queue when its operation is completed comes too late, also
/// for the operation that lies where that one lay.
#[test]
fn a_late_expiry_does_not_meet_the_next_operation() {
    let (queue, tasks) = mpsc::channel();
    let fixture = Fixture::with(|builder| {
        builder.executor(move |task| queue.send(task).expect("the test listens"))
    });
    let first = fixture.watch_for(MS, fixture.script(1), &[7]);
    assert_eq!(fixture.advance(MS), []);
    assert!(first.force_complete());
    let second = fixture.watch(fixture.script(2), &[7]);
    tasks.try_iter().for_each(Task::run);
    assert_eq!(fixture.log.ends(), [(Completed, 1), (Dropped, 1)]);
    assert!(second.is_pending());
    assert_eq!(fixture.counts(), (1, 1, 1));
}

#[test]
fn who_asks_for_more_time_gets_it_until_the_time_is_up() {
    let (queue, tasks) = mpsc::channel();
    let fixture = Fixture::with(|builder| {
        builder.executor(move |task| queue.send(task).expect("the test listens"))
    });
    let pending = fixture.watch_for(2 * MS, fixture.script(1), &[7]);
    assert!(pending.touch(MS) && pending.touch(3 * MS));
    assert!(fixture.advance(2 * MS).is_empty() && tasks.try_recv().is_err(), "it has more time");
    fixture.advance(MS);
    assert!(!pending.touch(HOUR), "its alarm is on its way");
    tasks.try_iter().for_each(Task::run);
    assert_eq!(fixture.log.ends(), [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    let up = fixture.watch_for(MS, fixture.script(2), &[7]);
    fixture.clock.advance(MS);
    // Seen to fail: until a turn came, more time was given.
    assert!(!pending.touch(HOUR) && !up.touch(HOUR) && !up.touch(When::Never) && up.is_pending());
    let left = fixture.watch(fixture.script(3), &[7]);
    fixture.timer.shutdown();
    assert!(!left.touch(When::Never));
}

/// The time is up during its check, or before the last one.
#[test]
fn who_asks_for_more_time_during_a_check_gets_it_until_the_time_is_up() {
    for late in [false, true] {
        let fixture = Fixture::new();
        let (own, handle) = hand::<Pending<u32, Script>>();
        let touched = move || own.lock().unwrap().as_ref().is_none_or(|own| own.touch(HOUR));
        let script = if late {
            let touches = move |_: &Timer| assert!(!touched(), "it is too late");
            late_in_its_third_check(&fixture, touches, |_| false)
        } else {
            fixture.script(1).when(move || !touched())
        };
        *handle.lock().unwrap() = Some(fixture.watch_for(MS, script, &[1]));
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        let touches = handle.lock().unwrap().as_ref().unwrap().touch(HOUR);
        assert_eq!(touches, !late, "it is due already");
        let expired = fixture.advance(MS).contains(&(Expired, 1));
        assert_eq!((expired, fixture.purgatory.stats().panicked), (late, 0));
    }
}

/// It is in no wheel before: so nobody expires what has no handle yet.
#[test]
fn an_operation_whose_time_is_up_while_it_is_added_expires_at_the_next_turn() {
    let fixture = Fixture::new();
    let (timer, clock, mut checks) = (fixture.timer.clone(), fixture.clock.clone(), 0);
    let script = fixture.script(1).when(move || {
        checks += 1;
        if checks == 2 {
            clock.advance(MS);
            assert_eq!(timer.advance_clock(Duration::ZERO), 0);
        }
        false
    });
    let pending = fixture.watch_for(MS, script, &[1]);
    assert!(pending.is_pending());
    fixture.log.take();
    assert_eq!(fixture.advance(Duration::ZERO), [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    assert!(!pending.is_pending());
    fixture.assert_empty();
}

/// The time is up during the third check. A trigger that comes after that check is too late.
#[test]
fn when_its_time_is_up_it_is_checked_once_more() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let condition = move |check| {
        assert!(check < 3 || purgatory.check_and_complete(&1) == 0);
        check == 5
    };
    let script = late_in_its_third_check(&fixture, |_| (), condition);
    fixture.watch_for(MS, script, &[1]);
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.counts(), (1, 1, 1), "on its way to the executor");
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.log.take(), [(Checked, 1), (Checked, 1)]);
    assert_eq!(fixture.advance(Duration::ZERO), [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    fixture.assert_empty();
}

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

/// A thread that adds an operation does not serve others without a bound either. At the second
/// check the operation is watched already: a trigger then is not lost.
#[test]
fn who_adds_an_operation_checks_once_for_others() {
    for holds_at in [3, 5] {
        let fixture = Fixture::new();
        let (purgatory, mut checks) = (fixture.purgatory.clone(), 0);
        let script = fixture.script(1).when(move || {
            checks += 1;
            assert!(checks < TOO_MANY, "checked without an end");
            assert_eq!(purgatory.check_and_complete(&1), 0);
            checks == holds_at
        });
        let watch = fixture.purgatory.try_complete_else_watch(script, HOUR, &[1]).unwrap();
        assert_eq!(watch.is_completed(), holds_at == 3);
        assert_eq!(fixture.log.of(Checked), [1, 1, 1]);
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), usize::from(holds_at == 5));
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
