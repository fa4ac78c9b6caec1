//! What outlives its end: operations that are being checked.

use crate::until::until;
use crate::{HOUR, by_hand, within};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::{self, DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Task, Timer};

fn elsewhere(act: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(act).join().unwrap());
}

type Last<const TEST: u8> = Box<dyn FnOnce(Purgatory<u32, Steps<TEST>>) + Send>;

/// An operation that triggers itself until its check is left to the executor: then no thread needs
/// the purgatory for the check. A type of its own for each test, so that the shards of the pool go
/// to nobody else.
struct Steps<const TEST: u8> {
    checks: u32,
    own: Arc<Mutex<Option<Purgatory<u32, Self>>>>,
    last: Option<Last<TEST>>,
    cancelled: fn(),
}

impl<const TEST: u8> Steps<TEST> {
    fn new(last: impl FnOnce(Purgatory<u32, Self>) + Send + 'static) -> Self {
        Steps {
            checks: 0,
            own: Arc::default(),
            last: Some(Box::new(last)),
            cancelled: || (),
        }
    }

    /// Watches it in a purgatory of which it has the only clone; its fourth check, by the timer's
    /// executor, passes that on.
    fn watch(self, timer: &Timer) -> Pending<u32, Self> {
        let own = Arc::clone(&self.own);
        let purgatory = Purgatory::new(timer);
        *own.lock().unwrap() = Some(purgatory.clone());
        let watch = purgatory.try_complete_else_watch(self, HOUR, &[1]).unwrap();
        watch.pending().expect("it waits")
    }
}

impl<const TEST: u8> DelayedOperation for Steps<TEST> {
    fn try_complete(&mut self) -> bool {
        self.checks += 1;
        let purgatory = self.own.lock().unwrap().clone();
        match self.checks {
            2..10 => elsewhere(|| _ = purgatory.map(|purgatory| purgatory.check_and_complete(&1))),
            10 => {
                drop(purgatory);
                let purgatory = self.own.lock().unwrap().take();
                self.last
                    .take()
                    .zip(purgatory)
                    .into_iter()
                    .for_each(|(last, it)| last(it));
            }
            _ => {}
        }
        false
    }
    fn on_complete(&mut self) {}
    fn on_cancellation(&mut self) {
        (self.cancelled)();
    }
}

/// Seen to fail: the operation counted as added, and as nothing else.
#[test]
fn counts_add_up_after_a_purgatory_went_while_its_operation_was_checked() {
    let timer = by_hand();
    let pending = Steps::<1>::new(drop).watch(&timer);
    timer.advance_clock(Duration::ZERO);
    let stats = timer.stats();
    let ended = stats.expired + stats.cancelled + stats.returned;
    assert_eq!((stats.added, stats.pending), (ended, 0), "{stats}");
    assert!(!pending.is_pending());
}

/// Seen to fail: the next purgatory counted the panic.
#[test]
fn a_panic_counts_in_its_own_purgatory_only() {
    static NEXT: Mutex<Option<Purgatory<u32, Steps<2>>>> = Mutex::new(None);
    let timer = by_hand();
    let cancelled = || {
        *NEXT.lock().unwrap() = Some(Purgatory::new(&by_hand()));
        panic!("planted");
    };
    let _pending = Steps::<2> {
        cancelled,
        ..Steps::new(drop)
    }
    .watch(&timer);
    timer.advance_clock(Duration::ZERO);
    let next = NEXT
        .lock()
        .unwrap()
        .take()
        .expect("the operation is cancelled");
    assert_eq!(next.stats(), purgatory::Stats::default());
}

/// Ends a timer in a check of an operation, which another thread makes than the timer's. Seen to
/// fail: something of the timer's stayed.
#[test]
fn a_check_under_way_keeps_no_executor() {
    within(|| {
        let guard = Arc::new(());
        let (sender, tasks) = channel();
        let executor_guard = Arc::clone(&guard);
        let executor = move |task: Task| {
            let _ = &executor_guard;
            sender.send(task).unwrap();
        };
        let timer = Timer::builder()
            .clock(ManualClock::new())
            .executor(executor)
            .build()
            .unwrap();
        let last = timer.clone();
        let (left, was_left) = channel();
        let operation = Steps::<3>::new(move |purgatory| {
            drop((purgatory, last));
            left.send(Arc::strong_count(&guard) - 1).unwrap();
        });
        let _pending = operation.watch(&timer);
        timer.advance_clock(Duration::ZERO);
        drop(timer);
        tasks.into_iter().for_each(Task::run);
        assert_eq!(was_left.into_iter().collect::<Vec<_>>(), [0]);
    });
}

/// Seen to fail: what it had counted was read under the lock that all turns need.
#[test]
fn a_slow_drop_of_a_key_stalls_no_timer_when_its_purgatory_goes() {
    let executor = |task: Task| drop(thread::spawn(|| task.run()));
    let timer = Timer::builder().executor(executor).start().unwrap();
    let course = Arc::new(Course::default());
    let purgatory = Purgatory::new(&timer);
    *course.purgatory.lock().unwrap() = Some(purgatory.clone());
    for (role, key) in [(Role::Checked(0), 1), (Role::Dropped, 2)] {
        let operation = Slow(role, Arc::clone(&course));
        purgatory
            .try_complete_else_watch(operation, HOUR, &[SlowKey(key)])
            .unwrap();
    }
    purgatory.check_and_complete(&SlowKey(1));
    until("it is in its last check", || {
        course.is_last_check.load(SeqCst)
    });
    drop(course.purgatory.lock().unwrap().take());
    let last = thread::spawn(move || drop(purgatory));
    until("the key is being dropped", || course.began.load(SeqCst));
    thread::sleep(Duration::from_millis(100)); // Until that thread deregisters the purgatory.
    let (sender, ran) = channel();
    timer
        .after(Duration::ZERO, move || sender.send(()).unwrap())
        .unwrap();
    let ran = ran.recv_timeout(Duration::from_secs(30));
    course.may_end.store(true, SeqCst);
    last.join().unwrap();
    assert_eq!(ran, Ok(()));
}

#[derive(Default)]
struct Course {
    purgatory: Mutex<Option<Purgatory<SlowKey, Slow>>>,
    is_last_check: AtomicBool,
    is_going: AtomicBool,
    began: AtomicBool,
    may_end: AtomicBool,
}

thread_local! {
    /// What the drop of the next key on this thread waits for.
    static SLOW: RefCell<Option<Arc<Course>>> = const { RefCell::new(None) };
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct SlowKey(u8);

impl Drop for SlowKey {
    fn drop(&mut self) {
        if let Some(course) = SLOW.take() {
            course.began.store(true, SeqCst);
            until("the timer has run a task", || course.may_end.load(SeqCst));
        }
    }
}

enum Role {
    /// Leaves its fifth check to the executor, and stays in it until the purgatory is going.
    Checked(u8),
    /// Is dropped with the purgatory: then it waits until the other one's key is.
    Dropped,
}

struct Slow(Role, Arc<Course>);

impl DelayedOperation for Slow {
    fn try_complete(&mut self) -> bool {
        let Slow(Role::Checked(checks), course) = self else {
            return false;
        };
        *checks += 1;
        match *checks {
            // A trigger during a check, and one during the check that this causes.
            3..11 => {
                let purgatory = course.purgatory.lock().unwrap().clone();
                elsewhere(|| _ = purgatory.unwrap().check_and_complete(&SlowKey(1)));
            }
            11 => {
                course.is_last_check.store(true, SeqCst);
                until("the purgatory goes", || course.is_going.load(SeqCst));
                SLOW.set(Some(Arc::clone(course)));
            }
            _ => {}
        }
        false
    }
    fn on_complete(&mut self) {}
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Slow(Role::Dropped, course) = self {
            course.is_going.store(true, SeqCst);
            until("the other's key is being dropped", || {
                course.began.load(SeqCst)
            });
        }
    }
}
