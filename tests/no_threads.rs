//! No threads: what happens in a process that cannot start any.
//!
//! Each way to have none is a process of its own, which runs the test again with a variable set.
//! With one test thread, the harness runs a test on the main thread.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::{BuildError, ManualClock, Task, Timer, TimerEntry, Worker};

const MS: Duration = Duration::from_millis(1);
const INSIDE: &str = "TICKWHEEL_NO_THREADS";

/// What both a builder and a worker answer, and that they give back what they were given.
fn nothing_starts(clock: &ManualClock) {
    let given = Arc::new(());
    let held = Arc::clone(&given);
    let executor = move |task: Task| {
        let _held = &held;
        task.run();
    };
    let builder = Timer::builder().clock(clock.clone()).executor(executor);
    let held = Arc::clone(&given);
    let started = builder.on_refused(move |_| drop(Arc::clone(&held))).start();
    assert!(matches!(started, Err(BuildError::Thread(_))), "{started:?}");
    let held = Arc::clone(&given);
    let worker = Worker::unbounded("worker", move |_: u32| drop(Arc::clone(&held)));
    assert!(matches!(worker, Err(BuildError::Thread(_))), "{worker:?}");
    assert_eq!(
        Arc::strong_count(&given),
        1,
        "the executor and the handler were dropped"
    );
}

fn inside() {
    let clock = ManualClock::new();
    let (sender, expired) = std::sync::mpsc::channel();
    let executor = move |id: u32| sender.send(id).expect("the receiver lives");
    let builder = Timer::builder().clock(clock.clone()).executor(executor);
    let timer = builder.build().expect("no thread is needed");
    for id in 0..1000 {
        timer.add(TimerEntry::after(MS * id, id)).expect("no limit");
        nothing_starts(&clock);
    }
    // A timer on the same clock that did not start leaves no trace in it.
    clock.advance(500 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 501);
    nothing_starts(&clock);
    clock.advance(500 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 499);
    assert!(expired.try_iter().eq(0..1000));
    timer.assert_invariants();
    assert!(timer.shutdown().is_empty());
}

/// Runs this test in a process that `prepare` has changed.
fn run_inside(prepare: impl FnOnce(&str) -> Command) {
    let own = std::env::current_exe().expect("this program");
    let mut command = prepare(own.to_str().expect("its path is text"));
    command.args([
        "--exact",
        "a_reaper_that_cannot_start_is_an_error",
        "--test-threads=1",
    ]);
    let output = command.env(INSIDE, "1").output().expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn a_reaper_that_cannot_start_is_an_error() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    // A thread with a stack that no address space has room for.
    run_inside(|own| {
        let mut command = Command::new(own);
        command.env("RUST_MIN_STACK", (usize::MAX / 8 * 7).to_string());
        command
    });
}

/// A user who has as many threads as it may have. Only root can become another user; the first way
/// is tried everywhere.
#[test]
fn a_user_without_threads_gets_an_error() {
    let limited = [
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "prlimit",
        "--nproc=1",
    ];
    let tried = Command::new("setpriv").args(limited).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        assert!(
            std::env::var_os("CI").is_none(),
            "needs root, setpriv and prlimit"
        );
        return println!("not tried: needs root, setpriv and prlimit");
    }
    run_inside(|own| {
        let mut command = Command::new("setpriv");
        command.args(limited).arg(own);
        command
    });
}
