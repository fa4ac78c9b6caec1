//! Timeouts, shutdown, and how it is counted.

use crate::What::{Checked, Completed, Dropped, Expired};
use crate::{Fixture, HOUR, MS, Script};
use std::sync::mpsc;
use std::thread::{self, ThreadId};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Task, Timeout, Timer, TimerEntry, Worker};

#[test]
fn an_operation_expires_at_its_deadline_and_never_before() {
    let fixture = Fixture::new();
    let ns = Duration::from_nanos(1);
    for (id, timeout) in [(5, 5 * MS), (2, 2 * MS), (9, 2 * MS + ns), (7, HOUR)] {
        fixture.watch_for(timeout, fixture.script(id), &[id, 1]);
    }
    fixture.log.take();
    let ends = |id| [(Completed, id), (Expired, id), (Dropped, id)];
    assert_eq!(fixture.advance(2 * MS - ns), []);
    assert_eq!(fixture.advance(ns), ends(2));
    assert_eq!(fixture.advance(MS - ns), []);
    assert_eq!(fixture.advance(ns), ends(9), "in the tick after its deadline");
    assert_eq!(fixture.advance(2 * MS - ns), []);
    assert_eq!(fixture.advance(ns), ends(5));
    assert_eq!(fixture.counts(), (2, 1, 1));
    assert_eq!(fixture.advance(HOUR - 5 * MS), ends(7));
    assert_eq!((fixture.purgatory.stats().expired, fixture.log.take()), (4, vec![]));
    fixture.assert_empty();
}

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

/// An operation of another type, on keys of another type.
struct Countdown(u32, mpsc::Sender<String>);

impl DelayedOperation for Countdown {
    fn try_complete(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }

    fn on_complete(&mut self) {
        self.1.send(format!("{} left", self.0)).unwrap();
    }
}

#[test]
fn any_number_of_purgatories_of_different_types_share_a_timer() {
    let fixture = Fixture::new();
    let more: Vec<_> =
        (0..20).map(|_| Purgatory::<(String, u64), Countdown>::new(&fixture.timer)).collect();
    let boxed: Purgatory<Vec<u8>, Box<dyn DelayedOperation>> = Purgatory::new(&fixture.timer);
    let (sender, told) = mpsc::channel();
    for (number, purgatory) in (0_u64..).zip(&more) {
        let operation = Countdown(3 + number as u32 % 2, sender.clone());
        let key = ("topic".to_owned(), number);
        let timeout = MS * (2 - number as u32 % 2);
        assert!(purgatory.try_complete_else_watch(operation, timeout, &[key]).is_ok());
    }
    let operation: Box<dyn DelayedOperation> = Box::new(fixture.script(1));
    assert!(boxed.try_complete_else_watch(operation, MS, &[vec![1, 2, 3]]).is_ok());
    fixture.watch(fixture.script(2), &[1]);
    assert_eq!(fixture.timer.len(), 22);
    let keys: Vec<_> = (0..20).map(|number| ("topic".to_owned(), number)).collect();
    let completed: usize =
        more.iter().map(|purgatory| purgatory.check_and_complete_all(&keys)).sum();
    assert_eq!((completed, fixture.timer.len()), (10, 12));
    fixture.log.take();
    assert_eq!(fixture.advance(MS), [(Completed, 1), (Expired, 1), (Dropped, 1)]);
    assert_eq!(told.try_iter().filter(|text| text == "0 left").count(), 10);
    assert_eq!(boxed.stats().expired, 1);
    assert!(more.iter().map(|purgatory| purgatory.stats().expired).eq([0, 1].repeat(10)));
    assert_eq!((boxed.delayed(), fixture.counts()), (0, (1, 1, 1)));
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
