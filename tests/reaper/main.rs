//! The reaper and the worker, with real threads. Waits have a bound only as a guard against
//! hanging: a test that passes never comes near it.

mod back;
mod busy;
mod ends;
mod reading;
#[path = "../common/until.rs"]
mod until;
mod walk;
mod worker;

use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timer, TimerBuilder, TimerEntry};
use until::until;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const HANG: Duration = Duration::from_secs(20);

/// Waits for a message that must come.
fn get<T>(receiver: &Receiver<T>) -> T {
    receiver
        .recv_timeout(HANG)
        .expect("a message within the bound")
}

/// Returns a started timer of numbers that go into a channel.
fn numbers() -> (Timer<u32>, Receiver<u32>) {
    numbers_by(|builder| builder)
}

fn numbers_by(
    options: impl FnOnce(TimerBuilder<u32>) -> TimerBuilder<u32>,
) -> (Timer<u32>, Receiver<u32>) {
    let (sender, receiver) = channel();
    let builder = Timer::builder().executor(move |id| _ = sender.send(id));
    (
        options(builder).start().expect("a thread can be started"),
        receiver,
    )
}

/// Waits until the reaper has gone to sleep: it took `wakeups` wake-ups and no more come.
fn sleeping<T: Send>(timer: &Timer<T>) -> u64 {
    loop {
        let before = timer.stats().wakeups;
        std::thread::sleep(20 * MS);
        if timer.stats().wakeups == before {
            return before;
        }
    }
}

fn has_thread(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|comm| comm.trim_end() == name)
}

#[test]
fn a_started_timer_fires_by_itself_and_never_early() {
    let (sender, receiver) = channel();
    let timer = Timer::builder().start().unwrap();
    for delay in [0, 1, 3, 10, 30] {
        let sender = sender.clone();
        let deadline = Instant::now() + MS * delay;
        let task = move || sender.send(Instant::now() >= deadline).unwrap();
        timer.add(TimerEntry::at(deadline, task)).unwrap();
    }
    for _ in 0..5 {
        assert!(get(&receiver), "it came early");
    }
}

#[test]
fn an_earlier_timer_wakes_a_reaper_that_sleeps_for_a_far_one() {
    let (timer, receiver) = numbers();
    timer.add(TimerEntry::after(HOUR, 1)).unwrap();
    sleeping(&timer);
    timer.add(TimerEntry::after(5 * MS, 2)).unwrap();
    assert_eq!(get(&receiver), 2);
    let far = timer.add(TimerEntry::after(HOUR, 3)).unwrap();
    sleeping(&timer);
    assert!(far.reschedule(5 * MS));
    assert_eq!(get(&receiver), 3);
}

#[test]
fn the_last_handle_ends_the_reaper() {
    let name = "ends-by-drop";
    let payload = Arc::new(());
    let timer = Timer::builder().name(name).start().unwrap();
    let held = Arc::clone(&payload);
    timer
        .add(TimerEntry::after(HOUR, move || drop(held)))
        .unwrap();
    if cfg!(target_os = "linux") {
        until("the reaper has its name", || has_thread(name));
    }
    let clone = timer.clone();
    drop(timer);
    assert_eq!(Arc::strong_count(&payload), 2);
    drop(clone);
    assert_eq!(
        Arc::strong_count(&payload),
        1,
        "pending tasks are dropped at once"
    );
    until("the thread ends", || !has_thread(name));
}

#[test]
fn the_last_handle_may_be_dropped_by_a_task_on_the_reaper() {
    let name = "ends-by-task";
    let (sender, receiver) = channel();
    let own = Arc::new(Mutex::new(None));
    let payload = Arc::new(());
    let timer = Timer::builder().name(name).start().unwrap();
    let last = Arc::clone(&own);
    let held = Arc::clone(&payload);
    timer
        .add(TimerEntry::after(HOUR, move || drop(held)))
        .unwrap();
    let task = move || {
        let timer: Option<Timer> = last.lock().unwrap().take();
        drop(timer);
        sender
            .send(std::thread::current().name().map(str::to_owned))
            .unwrap();
    };
    let inner = timer.clone();
    let keys = Arc::clone(&own);
    *keys.lock().unwrap() = Some(timer);
    // Only the timer in `own` is left when the task runs.
    inner.add(TimerEntry::after(20 * MS, task)).unwrap();
    drop(inner);
    assert_eq!(get(&receiver).as_deref(), Some(name));
    until("the pending task is dropped", || {
        Arc::strong_count(&payload) == 1
    });
    until("the thread ends", || !has_thread(name));
}

#[test]
fn shutdown_ends_a_reaper_that_sleeps_for_hours() {
    let (timer, _receiver) = numbers();
    timer.add(TimerEntry::after(24 * HOUR, 1)).unwrap();
    sleeping(&timer);
    let (sender, done) = channel();
    let stopper = timer.clone();
    let thread = std::thread::spawn(move || sender.send(stopper.shutdown().len()).unwrap());
    assert_eq!(get(&done), 1);
    thread.join().unwrap();
    assert_eq!(timer.shutdown().len(), 0);
}

#[test]
fn a_task_on_the_reaper_may_shut_the_timer_down() {
    let (sender, receiver) = channel();
    let timer = Timer::builder().name("ends-by-stop").start().unwrap();
    timer.add(TimerEntry::after(HOUR, || ())).unwrap();
    let inner = timer.clone();
    let task = move || sender.send(inner.shutdown().len()).unwrap();
    timer.add(TimerEntry::after(MS, task)).unwrap();
    assert_eq!(get(&receiver), 1);
    until("the thread ends", || !has_thread("ends-by-stop"));
    assert_eq!(timer.shutdown().len(), 0);
}

/// A reaper that is busy when a timer expires has not slept, so it may take some timers.
#[test]
fn a_wake_up_is_counted() {
    let (timer, receiver) = numbers();
    let expires = || timer.add(TimerEntry::after(MS, 1)).is_ok() && get(&receiver) == 1;
    until("the reaper wakes up for a timer", || {
        expires() && timer.stats().wakeups > 0
    });
}

/// The sleeps are there to let wake-ups happen that must not. The first timer wakes the reaper
/// once, however late it gets a core for that; a bug would cause hundreds.
#[test]
fn an_idle_timer_does_not_wake_up() {
    let (timer, _receiver) = numbers();
    let mut far = vec![timer.add(TimerEntry::after(HOUR, 0)).unwrap()];
    // Later ones, first in the same bucket, then in buckets of their own.
    for step in [MS, 10_000 * MS] {
        let deadlines = (1..1000).map(|id| (HOUR + step * id, id));
        far.extend(deadlines.map(|(at, id)| timer.add(TimerEntry::after(at, id)).unwrap()));
    }
    std::thread::sleep(300 * MS);
    assert!(
        timer.stats().wakeups <= 2,
        "far timers are pending, and later ones came"
    );
    for timeout in &far {
        assert!(timeout.touch(2 * HOUR));
        assert!(timeout.cancel().is_cancelled());
    }
    std::thread::sleep(300 * MS);
    assert!(
        timer.stats().wakeups <= 2,
        "cancelled timers are left in the queue"
    );
}

/// It does not look at the clock again and again while less than a tick is left.
#[test]
fn a_near_timer_wakes_it_once_or_twice() {
    let (timer, receiver) = numbers();
    for id in 0..30 {
        timer
            .add(TimerEntry::after(MS * (1 + id % 7) + MS / 3, id))
            .unwrap();
        assert_eq!(get(&receiver), id);
    }
    // For each, one as it comes and one as it is due; the system may add some.
    let wakeups = timer.stats().wakeups;
    assert!(wakeups <= 3 * 30, "{wakeups} wake-ups for 30 timers");
}

/// Each has a bucket of its own. The reaper wakes for the first one, and finds all of them empty.
#[test]
fn cancelled_timers_do_not_wake_it_one_by_one() {
    let (timer, _receiver) = numbers();
    let near = (0..200).map(|id| timer.add(TimerEntry::after((250 + id) * MS, id)).unwrap());
    let near: Vec<_> = near.collect();
    // On a slow machine some expire before.
    let expired = near
        .iter()
        .filter(|timeout| !timeout.cancel().is_cancelled())
        .count() as u64;
    std::thread::sleep(500 * MS);
    let wakeups = timer.stats().wakeups;
    assert!(
        wakeups <= 3 + expired,
        "{wakeups} wake-ups, {expired} timers"
    );
}

#[test]
fn a_thread_in_advance_clock_wakes_for_an_earlier_timer_and_for_shutdown() {
    let (sender, receiver) = channel();
    let timer: Timer<u32> = Timer::builder().executor(|_| ()).build().unwrap();
    timer.add(TimerEntry::after(HOUR, 1)).unwrap();
    let waiting = timer.clone();
    let thread = std::thread::spawn(move || {
        for _ in 0..2 {
            sender.send(waiting.advance_clock(Duration::MAX)).unwrap();
        }
    });
    timer.add(TimerEntry::after(5 * MS, 2)).unwrap();
    assert_eq!(get(&receiver), 1);
    assert_eq!(timer.shutdown().len(), 1);
    assert_eq!(get(&receiver), 0);
    thread.join().unwrap();
}

#[test]
fn advance_clock_waits_no_longer_than_it_is_told_to() {
    let timer: Timer = Timer::builder().build().unwrap();
    timer.add(TimerEntry::after(HOUR, || ())).unwrap();
    let start = Instant::now();
    assert_eq!(timer.advance_clock(20 * MS), 0);
    assert!(
        (20 * MS..HANG).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

/// A manual clock that is moved by nothing wakes all who wait, as the system does at times.
#[test]
fn a_wake_up_without_a_reason_expires_nothing() {
    let clock = ManualClock::new();
    let (timer, receiver) = numbers_by(|builder| builder.clock(clock.clone()));
    timer.add(TimerEntry::after(HOUR, 1)).unwrap();
    sleeping(&timer);
    let before = timer.stats().wakeups;
    until("it is woken", || {
        clock.advance(Duration::ZERO);
        timer.stats().wakeups >= before + 20
    });
    assert_eq!((receiver.try_iter().count(), timer.len()), (0, 1));
    clock.advance(HOUR);
    assert_eq!(get(&receiver), 1);
}

/// Real time goes on far beyond the moment for which the reaper waits, and means nothing to it.
#[test]
fn a_reaper_on_a_manual_clock_does_not_wake_up_by_itself() {
    let clock = ManualClock::new();
    let (timer, _receiver) = numbers_by(|builder| builder.clock(clock));
    timer.add(TimerEntry::after(MS, 1)).unwrap();
    sleeping(&timer);
    std::thread::sleep(100 * MS);
    assert!(
        timer.stats().wakeups <= 2,
        "{} wake-ups",
        timer.stats().wakeups
    );
    assert_eq!(timer.len(), 1);
}
