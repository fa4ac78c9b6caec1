//! What is left of a purgatory, or of its timer, when that goes: nothing that a user would miss.

use crate::{HOUR, MS};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory, PurgatoryStats, Watch};
use tickwheel::{ManualClock, Task, Timer, Worker};

/// `N` keeps the pools of the tests apart.
struct Op<const N: usize> {
    condition: Box<dyn FnMut() -> bool + Send>,
    done: Option<Box<dyn FnOnce() + Send>>,
}

impl<const N: usize> Op<N> {
    fn when(condition: impl FnMut() -> bool + Send + 'static) -> Self {
        Op { condition: Box::new(condition), done: None }
    }
}

impl<const N: usize> DelayedOperation for Op<N> {
    fn try_complete(&mut self) -> bool {
        (self.condition)()
    }
    fn on_complete(&mut self) {
        if let Some(done) = self.done.take() {
            done();
        }
    }
}

type P<const N: usize> = Purgatory<u32, Op<N>>;

fn watch<const N: usize>(
    purgatory: &P<N>,
    op: Op<N>,
    timeout: Duration,
    keys: &[u32],
) -> Pending<u32, Op<N>> {
    match purgatory.try_complete_else_watch(op, timeout, keys) {
        Ok(Watch::Pending(pending)) => pending,
        _ => panic!("it has to wait"),
    }
}

/// Triggers its own key in its third and fourth check; its fifth, on the executor, drops the last
/// purgatory and calls `then`.
fn outlives<const N: usize>(
    purgatory: P<N>,
    mut then: impl FnMut() + Send + 'static,
) -> Pending<u32, Op<N>> {
    let last = Arc::new(Mutex::new(Some(purgatory.clone())));
    let mut checks = 0;
    let op = Op::when(move || {
        checks += 1;
        match checks {
            1 | 2 => {}
            3 | 4 => {
                let purgatory = last.lock().unwrap().clone().unwrap();
                assert_eq!(purgatory.check_and_complete(&0), 0);
            }
            _ => {
                let purgatory = last.lock().unwrap().take();
                drop(purgatory);
                then();
            }
        }
        false
    });
    let pending = watch(&purgatory, op, HOUR, &[0]);
    purgatory.check_and_complete(&0);
    pending
}

struct OnDrop<F: FnMut()>(F);
impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The executor is dropped with the last clone of its timer.
#[test]
fn an_operation_that_outlives_its_purgatory_does_not_keep_the_executor() {
    let gone = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&gone);
    let guard = OnDrop(move || set.store(true, SeqCst));
    let executor = move |task: Task| {
        let _ = &guard;
        task.run();
    };
    let timer = Timer::builder().clock(ManualClock::new()).executor(executor).build().unwrap();
    let pending = outlives::<1>(Purgatory::new(&timer), || ());
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(!pending.is_pending());
    assert!(timer.is_empty());
    drop(timer);
    assert!(gone.load(SeqCst), "purgatory and timer are gone, nothing is left, and the executor?");
}

/// The shards of a purgatory serve the next one of its types, but only when they are empty.
#[test]
fn an_operation_that_outlives_its_purgatory_is_not_in_the_next() {
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let (next, held) = (Arc::new(Mutex::new(None)), timer.clone());
    let (made, is_done) = (Arc::clone(&next), Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&is_done);
    let left = outlives::<6>(Purgatory::new(&timer), move || {
        let purgatory = P::<6>::new(&held);
        assert_eq!((purgatory.delayed(), purgatory.watched()), (0, 0));
        let mut op = Op::when(|| false);
        let set = Arc::clone(&done);
        op.done = Some(Box::new(move || set.store(true, SeqCst)));
        let pending = watch(&purgatory, op, HOUR, &[0]);
        *made.lock().unwrap() = Some((purgatory, pending));
    });
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let (purgatory, pending) = next.lock().unwrap().take().unwrap();
    assert!(!left.is_pending() && pending.is_pending());
    assert_eq!((purgatory.delayed(), purgatory.watched()), (1, 1));
    purgatory.assert_invariants();
    assert_eq!((purgatory.stats().panicked, timer.stats().panicked), (0, 0));
    assert!(pending.force_complete() && is_done.load(SeqCst));
    assert_eq!((purgatory.delayed(), purgatory.watched(), timer.len()), (0, 0, 0));
}

/// The same where a handle's cancel meets the drop of the last clone.
#[test]
fn a_cancel_that_meets_the_drop_of_the_purgatory_does_not_keep_the_executor() {
    let (made, gone) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let keys: Vec<u32> = (0..64).collect();
    for _ in 0..500 {
        made.fetch_add(1, SeqCst);
        let count = Arc::clone(&gone);
        let guard = OnDrop(move || _ = count.fetch_add(1, SeqCst));
        let executor = move |task: Task| {
            let _ = &guard;
            task.run();
        };
        let timer = Timer::builder().clock(ManualClock::new()).executor(executor).build().unwrap();
        let purgatory = P::<4>::new(&timer);
        let pending = watch(&purgatory, Op::when(|| false), HOUR, &keys);
        thread::scope(|scope| {
            scope.spawn(move || drop(pending.cancel()));
            drop(purgatory);
        });
        drop(timer);
        assert_eq!(made.load(SeqCst), gone.load(SeqCst), "every timer's executor is gone");
    }
}

/// Its time is up, and its alarm is filed: nobody will hand that over any more.
#[test]
fn an_overdue_operation_is_ended_by_a_trigger_after_the_timers_shutdown() {
    for holds in [false, true] {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let purgatory = P::<5>::new(&timer);
        let (own_timer, own_clock, mut checks) = (timer.clone(), clock.clone(), 0);
        let op = Op::when(move || {
            checks += 1;
            if checks == 3 {
                own_clock.advance(MS);
                own_timer.advance_clock(Duration::ZERO); // The alarm meets this check.
            }
            checks > 3 && holds
        });
        let pending = watch(&purgatory, op, MS, &[0]);
        assert_eq!(purgatory.check_and_complete(&0), 0);
        assert!(timer.shutdown().is_empty() && pending.is_pending());
        assert_eq!(purgatory.check_and_complete(&0), usize::from(holds));
        assert!(!pending.is_pending());
        assert_eq!(purgatory.stats().expired, u64::from(!holds));
        assert!(timer.is_empty());
    }
}

/// They are what the timer has done since it was built.
#[test]
fn a_timers_counters_never_fall() {
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let purgatory = P::<7>::new(&timer);
    for _ in 0..10 {
        assert!(watch(&purgatory, Op::when(|| false), HOUR, &[0]).force_complete());
    }
    let before = timer.stats();
    drop(purgatory);
    let after = timer.stats();
    assert_eq!((before.added, before.cancelled), (after.added, after.cancelled));
}

/// Its last check drops the purgatory and its cancellation begins the next one of these types,
/// which takes the shards: what is counted after that belongs to neither.
#[test]
fn a_panic_after_the_purgatory_has_gone_is_not_counted_in_the_next() {
    struct Panics(Op<7>, Box<dyn FnMut() + Send>);
    impl DelayedOperation for Panics {
        fn try_complete(&mut self) -> bool {
            self.0.try_complete()
        }
        fn on_complete(&mut self) {}
        fn on_cancellation(&mut self) {
            (self.1)();
            panic!("which is what the test is about");
        }
    }
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let purgatory: Purgatory<u32, Panics> = Purgatory::new(&timer);
    let (last, next) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let (taken, made, of_next) = (Arc::clone(&last), Arc::clone(&next), timer.clone());
    let mut checks = 0;
    let op = Op::when(move || {
        checks += 1;
        let last: Option<Purgatory<u32, Panics>> =
            if checks < 5 { taken.lock().unwrap().clone() } else { taken.lock().unwrap().take() };
        last.filter(|_| checks < 5).map(|purgatory| purgatory.check_and_complete(&0));
        false
    });
    let make = move || *made.lock().unwrap() = Some(Purgatory::<u32, Panics>::new(&of_next));
    let op = Panics(op, Box::new(make));
    assert!(purgatory.try_complete_else_watch(op, HOUR, &[0]).is_ok_and(|op| !op.is_completed()));
    *last.lock().unwrap() = Some(purgatory.clone());
    purgatory.check_and_complete(&0);
    drop(purgatory);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    let next = next.lock().unwrap().take().expect("it was cancelled");
    assert_eq!(next.stats(), PurgatoryStats::default());
    let stats = timer.stats();
    assert_eq!((stats.added, stats.expired, stats.cancelled, stats.pending), (2, 1, 1, 0));
}

/// A worker runs its last check, which drops the last clones of purgatory and timer.
#[test]
fn an_operation_that_outlives_its_timer_does_not_keep_the_hook() {
    let (owned, gate) = (Arc::new(()), Arc::new(Barrier::new(2)));
    let (of_hook, counted, opened) = (Arc::clone(&owned), Arc::clone(&owned), Arc::clone(&gate));
    let (sender, counts) = channel();
    let timer = Timer::builder().executor(Worker::unbounded("checks", Task::run).unwrap());
    let timer = timer.on_earlier_expiration(move || _ = Arc::strong_count(&of_hook));
    let timer = timer.start().unwrap();
    let last: Arc<Mutex<Option<P<8>>>> = Arc::default();
    let (taken, mut checks) = (Arc::clone(&last), 0);
    let op = Op::when(move || {
        checks += 1;
        if checks < 5 {
            let purgatory = taken.lock().unwrap().clone();
            purgatory.map(|purgatory| purgatory.check_and_complete(&0));
        } else {
            opened.wait();
            let purgatory = taken.lock().unwrap().take();
            drop(purgatory);
            sender.send(Arc::strong_count(&counted)).unwrap();
        }
        false
    });
    let purgatory = P::<8>::new(&timer);
    let pending = watch(&purgatory, op, HOUR, &[0]);
    *last.lock().unwrap() = Some(purgatory.clone());
    purgatory.check_and_complete(&0);
    drop((purgatory, timer));
    gate.wait();
    assert_eq!(counts.recv(), Ok(2), "the test's and the operation's own");
    assert!(!pending.is_pending());
}
