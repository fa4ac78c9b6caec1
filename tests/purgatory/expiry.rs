//! Timeouts: who expires an operation, and who is still in time.

use crate::What::{Checked, Completed, Dropped, Expired};
use crate::holders::elsewhere;
use crate::{Fixture, HOUR, MS, Script, hand};
use std::sync::mpsc;
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
    let builder = Timer::builder()
        .clock(clock.clone())
        .executor(worker.unwrap());
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
    assert_eq!(
        receiver.recv(),
        Err(mpsc::RecvError),
        "and there it is dropped"
    );
}

/// Runs an operation whose time is up during its third check, when `meanwhile` happens as well. The
/// number of the check determines whether its condition holds.
pub(crate) fn late_in_its_third_check(
    fixture: &Fixture,
    meanwhile: impl Fn(&Timer) + Send + 'static,
    holds: impl Fn(u32) -> bool + Send + 'static,
) -> Script {
    let timer = fixture.timer.clone();
    let clock = fixture.clock.clone();
    let mut checks = 0;
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
fn an_operation_whose_time_is_up_while_it_is_checked_is_ended_by_its_holder() {
    for holds in [true, false] {
        let fixture = Fixture::new();
        let condition = move |check| check == 3 && holds;
        let script = late_in_its_third_check(&fixture, |_| (), condition);
        let pending = fixture.watch_for(MS, script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), usize::from(holds));
        if holds {
            assert_eq!(
                fixture.log.take(),
                [(Checked, 1), (Completed, 1), (Dropped, 1)]
            );
        } else {
            let ends = [(Checked, 1), (Completed, 1), (Expired, 1), (Dropped, 1)];
            assert_eq!(fixture.log.take(), ends);
        }
        assert!(!pending.is_pending());
        assert_eq!(fixture.purgatory.stats().expired, u64::from(!holds));
        fixture.assert_empty();
    }
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
            assert_eq!(
                another.map(Timeout::cancel_on_drop).is_ok(),
                max_pending > 1
            );
            elsewhere(|| assert_eq!(purgatory.check_and_complete(&1), 0));
        };
        let script = late_in_its_third_check(&fixture, meanwhile, |check| check == 4);
        fixture.watch_for(MS, script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
        assert_eq!(
            fixture.log.take(),
            [(Checked, 1), (Checked, 1), (Completed, 1), (Dropped, 1)]
        );
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

/// Seen to fail: the time was up during a check, and the trigger that came after it was taken for
/// one that was too late. Then the timer was shut down, and nobody ended the operation any more.
#[test]
fn a_trigger_after_the_check_in_which_the_time_was_up_is_not_swallowed() {
    for flushed in [true, false] {
        let fixture = Fixture::new();
        let timer = fixture.timer.clone();
        let clock = fixture.clock.clone();
        let mut checks = 0;
        let script = fixture.script(1).when(move || {
            checks += 1;
            if checks == 3 {
                clock.advance(MS);
                assert_eq!(timer.advance_clock(Duration::ZERO), usize::from(flushed));
            }
            checks > 3
        });
        let pending = fixture.watch_for(if flushed { MS } else { 2 * MS }, script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert_eq!(pending.is_pending(), !flushed);
        assert_eq!(
            fixture.purgatory.check_and_complete(&1),
            usize::from(!flushed)
        );
        drop(fixture.timer.shutdown());
        assert_eq!(fixture.purgatory.shutdown().len(), 0);
        let stats = fixture.purgatory.stats();
        let ends = (u64::from(flushed), u64::from(!flushed));
        assert_eq!((stats.expired, stats.completed_by_trigger), ends);
        fixture.assert_empty();
    }
}

/// It has left the wheels, and its keys know it still.
#[test]
fn until_its_task_runs_whoever_comes_first_ends_an_overdue_operation() {
    type End = fn(&Fixture, &Pending<u32, Script>) -> bool;
    let ends: [(End, bool); 6] = [
        (
            |fixture, _| fixture.purgatory.check_and_complete(&1) == 1,
            true,
        ),
        (|_, pending| pending.force_complete(), true),
        (
            |_, pending| pending.cancel().into_operation().is_some(),
            false,
        ),
        (
            |fixture, _| fixture.purgatory.cancel_for_key(&2).len() == 1,
            false,
        ),
        (|fixture, _| fixture.purgatory.shutdown().len() == 1, false),
        (|fixture, _| fixture.timer.shutdown().is_empty(), false),
    ];
    for (number, (end, completes)) in ends.into_iter().enumerate() {
        for runs in [true, false] {
            let (queue, tasks) = mpsc::channel();
            let fixture = Fixture::with(|builder| {
                builder.executor(move |task| queue.send(task).expect("the test listens"))
            });
            let pending = fixture.watch_for(MS, fixture.script(1).at_check(3), &[1, 2]);
            fixture.clock.advance(MS);
            assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 1);
            assert!(pending.is_pending() && !pending.touch(HOUR));
            assert_eq!(fixture.counts(), (2, 1, 1));
            assert!(end(&fixture, &pending), "case {number}");
            for task in tasks.try_iter() {
                if runs { task.run() } else { drop(task) }
            }
            assert!(!pending.is_pending());
            let stats = fixture.purgatory.stats();
            assert_eq!(stats.completed(), u64::from(completes));
            assert_eq!(
                stats.expired,
                u64::from(number == 5),
                "its task comes all the same"
            );
            fixture.assert_empty();
        }
    }
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
    assert!(
        fixture.advance(2 * MS).is_empty() && tasks.try_recv().is_err(),
        "it has more time"
    );
    fixture.advance(MS);
    assert!(!pending.touch(HOUR), "its task is on its way");
    tasks.try_iter().for_each(Task::run);
    assert_eq!(
        fixture.log.ends(),
        [(Completed, 1), (Expired, 1), (Dropped, 1)]
    );
    let up = fixture.watch_for(MS, fixture.script(2), &[7]);
    fixture.clock.advance(MS);
    // Seen to fail: until a turn came, more time was given.
    assert!(!pending.touch(HOUR) && !up.touch(HOUR) && !up.touch(When::Never) && up.is_pending());
    let left = fixture.watch(fixture.script(3), &[7]);
    fixture.timer.shutdown();
    assert!(!left.touch(When::Never));
}

#[test]
fn who_asks_for_less_time_gets_less_until_the_time_is_up() {
    let fixture = Fixture::new();
    let ends = |id| [(Completed, id), (Expired, id), (Dropped, id)];
    let hastened = fixture.watch(fixture.script(1), &[7]);
    assert!(hastened.hasten(5 * MS) && hastened.hasten(2 * HOUR));
    let moved = fixture.watch(fixture.script(2), &[7]);
    assert!(moved.reschedule(2 * HOUR) && moved.reschedule(6 * MS));
    assert_eq!(fixture.advance(4 * MS), []);
    assert_eq!(fixture.advance(MS), ends(1));
    assert_eq!(fixture.advance(MS), ends(2));
    assert!(!hastened.hasten(MS) && !moved.reschedule(HOUR));
    // No turn has come since its time is up.
    let up = fixture.watch_for(MS, fixture.script(3), &[7]);
    fixture.clock.advance(MS);
    assert!(!up.reschedule(HOUR) && !up.hasten(Duration::ZERO) && up.is_pending());
    assert_eq!(fixture.advance(Duration::ZERO), ends(3));
    let left = fixture.watch(fixture.script(4), &[7]);
    fixture.timer.shutdown();
    assert!(!left.reschedule(HOUR) && !left.hasten(MS));
}

/// An operation that another thread holds is moved too.
#[test]
fn who_asks_for_no_time_during_a_check_lets_the_operation_expire_after_it() {
    let fixture = Fixture::new();
    let (own, handle) = hand::<Pending<u32, Script>>();
    let script = fixture.script(1).when(move || {
        let own = own.lock().unwrap();
        own.as_ref().is_some_and(|own| !own.hasten(Duration::ZERO))
    });
    *handle.lock().unwrap() = Some(fixture.watch(script, &[1]));
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    let ends = [(Completed, 1), (Expired, 1), (Dropped, 1)];
    assert_eq!(fixture.advance(Duration::ZERO), ends);
}

/// The time is up during its check, or before the last one.
#[test]
fn who_asks_for_more_time_during_a_check_gets_it_until_the_time_is_up() {
    for late in [false, true] {
        let fixture = Fixture::new();
        let (own, handle) = hand::<Pending<u32, Script>>();
        let touched = move || {
            own.lock()
                .unwrap()
                .as_ref()
                .is_none_or(|own| own.touch(HOUR))
        };
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
    let timer = fixture.timer.clone();
    let clock = fixture.clock.clone();
    let mut checks = 0;
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
    assert_eq!(
        fixture.advance(Duration::ZERO),
        [(Completed, 1), (Expired, 1), (Dropped, 1)]
    );
    assert!(!pending.is_pending());
    fixture.assert_empty();
}
