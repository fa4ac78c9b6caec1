//! Every `tracing` event about a timer names the timer.
#![cfg(feature = "tracing")]

#[path = "common/listener.rs"]
mod listener;

use listener::Listener;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::panic_any;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Task, Timer, TimerEntry, Worker};
use tracing::Event;
use tracing::field::{Field, Visit};

const MS: Duration = Duration::from_millis(1);
const DROPPED: &str =
    "pending tasks were dropped with their timer; `warn_on_drop(false)` silences this";

/// What was reported: the timer, the thread, the message, and how many tasks it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Report {
    timer: String,
    thread: String,
    message: String,
    tasks: u64,
}

static REPORTS: Mutex<Vec<Report>> = Mutex::new(Vec::new());

fn record(event: &Event<'_>) {
    let mut report = Report::default();
    event.record(&mut report);
    REPORTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(report);
}

impl Visit for Report {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "timer" => self.timer = value.to_owned(),
            "thread" => self.thread = value.to_owned(),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "tasks" {
            self.tasks = value;
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

/// Something whose drop panics.
struct Brittle;

impl Drop for Brittle {
    fn drop(&mut self) {
        panic_any("dropped");
    }
}

/// Creates a task that panics, three that are pending at the end, and a reaper.
fn started() {
    let timer = Timer::builder().name("started").start().unwrap();
    timer
        .add(TimerEntry::after(MS, || panic_any("a task")))
        .unwrap();
    while timer.stats().panicked == 0 {
        std::thread::sleep(MS);
    }
    (0..3).for_each(|_| _ = timer.add(TimerEntry::after(Duration::MAX, || ())).unwrap());
}

/// Creates an executor that refuses.
fn refused() {
    let timer = Timer::builder()
        .name("refused")
        .executor(Err::<(), Task>)
        .build()
        .unwrap();
    timer.add(TimerEntry::after(Duration::ZERO, || ())).unwrap();
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
}

/// Shuts a timer of its own tasks down that has a pending closure.
fn shut_down() {
    let timer = Timer::builder().name("shut down").executor(|_: ()| ());
    let timer = timer.build().unwrap();
    let closures = timer.closures();
    closures.after(Duration::MAX, || ()).unwrap();
    assert!(timer.shutdown().is_empty());
}

/// Panics in every method, and when it is dropped.
struct Breaks {
    checks: u32,
    _brittle: Brittle,
}

impl DelayedOperation for Breaks {
    fn try_complete(&mut self) -> bool {
        self.checks += 1;
        assert!(self.checks < 3, "a check");
        false
    }

    fn on_complete(&mut self) {
        panic_any("a callback");
    }
}

/// Adds operations whose check, callback and drop panic.
fn operations() {
    let timer = Timer::builder()
        .name("operations")
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let purgatory = Purgatory::new(&timer);
    for (key, checks) in [(1, 0), (2, 0), (3, 2)] {
        let watch = purgatory.try_complete_else_watch(
            Breaks {
                checks,
                _brittle: Brittle,
            },
            MS,
            &[key],
        );
        assert!(watch.is_ok());
    }
    assert_eq!(purgatory.check_and_complete(&1), 0);
    assert_eq!(purgatory.stats().panicked, 4);
    drop(purgatory);
}

#[test]
fn each_names_its_timer() {
    let listener = Listener(|event| event.target().starts_with("tickwheel"), record);
    tracing::subscriber::set_global_default(listener).expect("the first");
    let worker = Worker::unbounded("a worker", Task::run).unwrap();
    let handed = Timer::builder()
        .name("handed")
        .executor(worker)
        .build()
        .unwrap();
    handed
        .add(TimerEntry::after(Duration::ZERO, || panic_any("a task")))
        .unwrap();
    handed.advance_clock(Duration::ZERO);
    drop(handed); // Waits for the worker.
    started();
    refused();
    shut_down();
    operations();
    let reports = REPORTS.lock().unwrap().clone();
    let seen: BTreeSet<_> = reports
        .iter()
        .map(|report| (&*report.timer, &*report.message))
        .collect();
    let panicked = "a timer's task panicked";
    let expected = [
        ("operations", panicked),
        ("started", "the reaper has started"),
        ("started", "the reaper has stopped"),
        ("started", panicked),
        ("started", DROPPED),
        ("refused", "the executor refused expired tasks: dropped"),
        ("shut down", "pending closures were dropped by a shutdown"),
        ("", panicked), // The worker's: it knows no timer.
    ];
    assert_eq!(seen, expected.into_iter().collect());
    let nameless: Vec<_> = reports
        .iter()
        .filter(|report| report.timer.is_empty())
        .collect();
    assert!(
        nameless.len() == 1 && nameless[0].thread == "a worker",
        "{nameless:?}"
    );
    let of = |timer: &str| {
        reports
            .iter()
            .filter(|report| report.timer == timer)
            .count()
    };
    assert_eq!((of("started"), of("refused")), (4, 1), "{reports:#?}");
    let dropped = reports.iter().find(|report| report.message == DROPPED);
    assert_eq!(dropped.map(|report| report.tasks), Some(3));
}
