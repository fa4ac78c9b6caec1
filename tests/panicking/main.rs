//! Whatever a user's code panics with, and wherever: the threads of the library go on, and nothing
//! comes out of its calls. Here each report panics, too, where there are reports.

mod counts;
#[cfg(feature = "tracing")]
#[path = "../common/listener.rs"]
mod listener;
// A model checker's locks are not made to be used after a panic.
#[cfg(not(tickwheel_model))]
mod unwind;

use std::panic::panic_any;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tickwheel::{Batch, Executor, ManualClock, Task, Timer, TimerEntry, WeakTimer, Worker};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// What a panic carries. Its drop panics with another one, so many times.
pub(crate) struct Payload(pub(crate) u32);

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(left) = self.0.checked_sub(1) {
            panic_any(Payload(left));
        }
    }
}

/// Payloads of which the last has no end.
const PAYLOADS: [u32; 4] = [1, 2, 5, u32::MAX];

/// Makes each report panic from now on, on all threads, including the reaper.
pub(crate) fn no_report_succeeds() {
    #[cfg(feature = "tracing")]
    {
        static INSTALLED: std::sync::Once = std::sync::Once::new();
        INSTALLED.call_once(|| {
            let panics = |_: &tracing::Event<'_>| panic_any(Payload(3));
            let brittle = listener::Listener(|_| true, panics);
            tracing::subscriber::set_global_default(brittle).expect("the first");
        });
    }
}

/// Waits for a message that must come.
pub(crate) fn get<T>(receiver: &Receiver<T>) -> T {
    receiver
        .recv_timeout(HANG)
        .expect("a message within the bound")
}

pub(crate) fn by_hand() -> (Timer, ManualClock) {
    let clock = ManualClock::new();
    (
        Timer::builder().clock(clock.clone()).build().unwrap(),
        clock,
    )
}

#[test]
fn the_reaper_survives_every_payload_and_stops_when_it_is_told_to() {
    no_report_succeeds();
    let timer = Timer::builder().start().unwrap();
    let (sender, ran) = channel();
    for payload in PAYLOADS {
        timer
            .add(TimerEntry::after(MS, move || panic_any(Payload(payload))))
            .unwrap();
        let sender = sender.clone();
        timer
            .add(TimerEntry::after(5 * MS, move || {
                sender.send(payload).unwrap()
            }))
            .unwrap();
        assert_eq!(get(&ran), payload);
    }
    assert_eq!(timer.stats().panicked, 4);
    assert!(timer.shutdown().is_empty());
}

#[test]
fn no_payload_comes_out_of_advance_clock_and_the_tasks_behind_it_run() {
    no_report_succeeds();
    let (timer, clock) = by_hand();
    let (sender, ran) = channel();
    for payload in PAYLOADS {
        timer
            .add(TimerEntry::after(MS, move || panic_any(Payload(payload))))
            .unwrap();
        let sender = sender.clone();
        timer
            .add(TimerEntry::after(MS, move || sender.send(payload).unwrap()))
            .unwrap();
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 8);
    assert_eq!(timer.stats().panicked, 4);
    assert_eq!(ran.try_iter().count(), 4);
}

#[test]
fn the_worker_survives_every_payload() {
    no_report_succeeds();
    let worker = Worker::unbounded("survives", Task::run).unwrap();
    let (sender, ran) = channel();
    for payload in PAYLOADS {
        worker
            .execute(Task::new(move || panic_any(Payload(payload))))
            .unwrap();
        let sender = sender.clone();
        worker
            .execute(Task::new(move || sender.send(payload).unwrap()))
            .unwrap();
        assert_eq!(get(&ran), payload);
    }
    assert_eq!(worker.panicked(), 4);
}

/// An executor whose own count of panics is of no use.
struct Counts(fn() -> u64);

impl Executor<Task> for Counts {
    fn execute(&self, task: Task) -> Result<(), Task> {
        task.run();
        Ok(())
    }

    fn panicked(&self) -> u64 {
        (self.0)()
    }
}

#[test]
fn no_count_of_an_executor_makes_the_statistics_panic() {
    no_report_succeeds();
    for (count, expected) in [
        ((|| panic!("counting")) as fn() -> u64, 1),
        (|| u64::MAX, u64::MAX),
    ] {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .clock(clock.clone())
            .executor(Counts(count))
            .build()
            .unwrap();
        timer
            .add(TimerEntry::after(Duration::ZERO, || panic!("a task")))
            .unwrap();
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert_eq!(timer.stats().panicked, expected);
    }
}

/// A task whose drop panics, where it is refused.
struct Brittle(bool);

impl Drop for Brittle {
    fn drop(&mut self) {
        if self.0 {
            panic_any("a drop");
        }
    }
}

/// Returns an executor that refuses the brittle tasks, and counts the others.
fn refuses(seen: Sender<()>) -> impl Fn(Brittle) -> Result<(), Brittle> {
    move |task| {
        if task.0 {
            Err(task)
        } else {
            seen.send(()).map_err(|_| task)
        }
    }
}

/// There, what is due in a tick is handed over one by one. Seen to fail: only what came before the
/// first that panicked was.
#[test]
fn the_drop_of_what_is_refused_costs_no_other_task_of_its_tick_on_a_seeded_clock() {
    no_report_succeeds();
    for seed in 1..5 {
        let clock = ManualClock::seeded(seed);
        let (sender, seen) = channel();
        let timer = Timer::builder()
            .clock(clock.clone())
            .executor(refuses(sender))
            .build()
            .unwrap();
        for panics in [false, true, false, false] {
            timer.after(MS, Brittle(panics)).unwrap();
        }
        clock.advance(MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 4);
        assert_eq!(
            (seen.try_iter().count(), timer.stats().refused),
            (3, 1),
            "seed {seed}"
        );
    }
}

/// What a user's `Drop` panics with comes as far as the reaper, and not further: only the value
/// that panicked is lost.
#[test]
fn the_reaper_survives_the_drop_of_what_is_refused() {
    no_report_succeeds();
    let (sender, seen) = channel();
    let timer = Timer::builder().executor(refuses(sender)).start().unwrap();
    for panics in [false, true, false, false] {
        timer.add(TimerEntry::after(MS, Brittle(panics))).unwrap();
    }
    (0..3).for_each(|_| get(&seen));
    while timer.stats().panicked == 0 {
        std::thread::sleep(MS);
    }
    timer.add(TimerEntry::after(MS, Brittle(false))).unwrap();
    get(&seen);
    assert_eq!((timer.stats().panicked, timer.stats().refused), (1, 1));
}

/// Seen to fail: each panic of a `Drop` cost the timers after it a pause of a tenth of a second. A
/// bug is never faster than that; without it, one round in twenty seconds has to be.
#[test]
fn the_reaper_goes_on_at_once_after_a_single_panic_of_a_drop() {
    no_report_succeeds();
    let (sender, seen) = channel();
    let timer = Timer::builder().executor(refuses(sender)).start().unwrap();
    let first = Instant::now();
    for round in 1.. {
        let begun = Instant::now();
        timer.after(Duration::ZERO, Brittle(true)).unwrap();
        while timer.stats().panicked < round {
            std::thread::sleep(MS / 10);
        }
        timer.after(Duration::ZERO, Brittle(false)).unwrap();
        get(&seen);
        if begun.elapsed() < 100 * MS {
            return;
        }
        assert!(
            first.elapsed() < HANG,
            "there was a pause in each of {round} rounds"
        );
    }
}

/// Shuts its timer down, hands the brittle tasks back to be repeated, and refuses the others.
struct Ends(OnceLock<WeakTimer<Brittle>>);

impl Executor<Brittle> for Arc<Ends> {
    fn execute(&self, task: Brittle) -> Result<(), Brittle> {
        Err(task)
    }

    fn execute_batch(&self, batch: &mut Batch<'_, Brittle>) {
        let timer = self
            .0
            .get()
            .and_then(WeakTimer::upgrade)
            .expect("its caller has it");
        assert!(timer.shutdown().is_empty());
        while let Some(task) = batch.next() {
            if task.0 {
                batch.add(TimerEntry::after(MS, task));
            } else {
                batch.refuse(task);
            }
        }
    }
}

/// Seen to fail: the first drop came out of the call, the second one ended the process.
#[test]
fn the_drop_of_what_is_repeated_after_a_shutdown_costs_no_refused_task() {
    no_report_succeeds();
    let ends = Arc::new(Ends(OnceLock::new()));
    let (sender, refused) = channel();
    let timer = Timer::builder()
        .clock(ManualClock::new())
        .executor(Arc::clone(&ends))
        .on_refused(move |task: Brittle| sender.send(task.0).unwrap())
        .build()
        .unwrap();
    ends.0.set(timer.downgrade()).expect("the first");
    for panics in [false, true, false, true] {
        timer.after(Duration::ZERO, Brittle(panics)).unwrap();
    }
    assert_eq!(timer.advance_clock(Duration::ZERO), 4);
    assert_eq!(refused.try_iter().collect::<Vec<_>>(), [false, false]);
    assert_eq!((timer.stats().refused, timer.stats().panicked), (2, 2));
}
