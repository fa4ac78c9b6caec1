//! What waits for whom: at the end of timers with reapers, and when an executor hangs.

use crate::{HOUR, MS, get};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Executor, Task, Timer, TimerEntry, Worker};

/// Returns a timer of tasks that take 2 ms each. The first waits until it is released.
fn of_slow_tasks(tasks: usize) -> (Timer<usize>, Arc<AtomicUsize>, Receiver<()>, Sender<()>) {
    let (begin, begun) = channel();
    let (release, released) = channel();
    let ran = Arc::new(AtomicUsize::new(0));
    let released = Mutex::new(released);
    let counted = Arc::clone(&ran);
    let executor = move |_: usize| {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            begin.send(()).expect("the test lives");
            get(&released.lock().expect("nobody has panicked"));
        }
        thread::sleep(2 * MS);
    };
    let timer = Timer::builder()
        .executor(executor)
        .shards(1)
        .start()
        .expect("in range");
    // They are due at one instant, which is over before the last of them is added.
    let due = timer.now() + 50 * MS;
    (0..tasks).for_each(|task| _ = timer.at(due, task).expect("there is room"));
    (timer, ran, begun, release)
}

#[test]
fn a_shutdown_waits_for_the_batch_and_not_for_the_turn() {
    let (timer, ran, begun, release) = of_slow_tasks(2_000);
    get(&begun);
    release.send(()).expect("the first task waits");
    let returned = timer.shutdown().len();
    // A batch is 128 tasks. Four seconds go by before all are run.
    assert!(returned > 0, "all of them ran first");
    assert_eq!(returned + ran.load(Ordering::Relaxed), 2_000);
}

#[test]
fn the_last_drop_waits_for_the_batch_and_not_for_the_turn() {
    let (timer, ran, begun, release) = of_slow_tasks(2_000);
    get(&begun);
    release.send(()).expect("the first task waits");
    drop(timer);
    assert!(ran.load(Ordering::Relaxed) < 2_000, "all of them ran first");
}

#[test]
fn a_shutdown_ends_a_turn_of_another_thread_too() {
    let (timer, ran, begun, release) = of_slow_tasks(2_000);
    get(&begun);
    thread::scope(|scope| {
        let turn = scope.spawn(|| timer.advance_clock(Duration::ZERO));
        release.send(()).expect("the first task waits");
        let returned = timer.shutdown().len();
        let expired = turn.join().expect("it does not panic");
        assert!(returned > 0 && expired < 2_000);
        assert_eq!(timer.advance_clock(HOUR), 0);
        assert_eq!(returned + ran.load(Ordering::Relaxed), 2_000);
    });
}

/// Each on the thread of the other one, at the same time.
#[test]
fn two_workers_may_drop_each_other() {
    for _ in 0..20 {
        let worker = || Worker::unbounded("drops", Task::run).expect("a thread can be started");
        let workers = [Arc::new(worker()), Arc::new(worker())];
        let (ended, ends) = channel();
        for of in 0..2 {
            let other = Arc::clone(&workers[1 - of]);
            let ended = ended.clone();
            let end = Task::new(move || {
                thread::sleep(MS); // Until the other one has begun, and the test has let go.
                drop(other);
                ended.send(()).expect("the test waits");
            });
            assert!(workers[of].execute(end).is_ok());
        }
        drop(workers);
        (0..2).for_each(|_| get(&ends));
    }
}

/// Completes when it is triggered.
struct Triggered(bool);

impl DelayedOperation for Triggered {
    fn try_complete(&mut self) -> bool {
        std::mem::replace(&mut self.0, true)
    }

    fn on_complete(&mut self) {}
}

/// While a task hangs on the reaper, every call works, and another thread may advance the timer.
#[test]
fn while_the_reaper_hangs_in_a_task_every_call_works_and_another_thread_expires_the_rest() {
    let (begin, begun) = channel();
    let (release, released) = channel();
    let (ran, runs) = channel();
    let released = Mutex::new(released);
    let executor = move |id: u32| {
        if id == 0 {
            begin.send(()).unwrap();
            get(&released.lock().unwrap());
        }
        ran.send(id).unwrap();
    };
    let timer = Timer::builder()
        .executor(executor)
        .max_pending(100)
        .start()
        .unwrap();
    timer.add(TimerEntry::after(Duration::ZERO, 0)).unwrap();
    get(&begun);
    // It hangs: no lock is held, and no permit.
    assert!(timer.is_empty());
    let far = timer.add(TimerEntry::after(HOUR, 1)).unwrap();
    assert!(far.reschedule(2 * HOUR) && far.touch(3 * HOUR));
    assert!(
        timer
            .add(TimerEntry::after(HOUR, 2))
            .unwrap()
            .cancel()
            .is_cancelled()
    );
    let keyed = KeyedTimer::new(&timer, |_: &str, ()| ());
    assert!(keyed.add("a", HOUR, ()).unwrap().is_none());
    assert!(keyed.cancel("a").is_some());
    let purgatory = Arc::new(Purgatory::new(&timer));
    let watch = purgatory.try_complete_else_watch(Triggered(false), HOUR, &["b"]);
    // Its second check, when it is watched, is the first that finds it triggered.
    assert!(watch.unwrap().is_completed());
    assert_eq!(
        (
            timer.len(),
            timer.stats().pending,
            timer.snapshot().shards > 0
        ),
        (1, 1, true)
    );
    // The calling thread expires what the reaper cannot.
    let near = timer.add(TimerEntry::after(MS, 3)).unwrap();
    while near.is_pending() {
        timer.advance_clock(10 * MS);
    }
    assert_eq!(get(&runs), 3);
    release.send(()).unwrap();
    assert_eq!(get(&runs), 0);
    // The reaper goes on.
    timer.add(TimerEntry::after(MS, 4)).unwrap();
    assert_eq!(get(&runs), 4);
    assert_eq!(timer.shutdown().len(), 1);
}
