//! A process that forks after a timer was started. On Linux, where one can see a thread sleep.

#![cfg(target_os = "linux")]

#[path = "../../common/listener.rs"]
mod listener;
#[path = "../../common/until.rs"]
mod until;

use daemonize::{Daemonize, Outcome};
use listener::Listener;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, process, thread};
use tickwheel::{Task, Timer, Worker};
use tracing::{Event, Level};

const HOUR: Duration = Duration::from_secs(3600);
/// Only a bug takes that long.
const HANG: Duration = Duration::from_secs(60);
/// What was reported as an error in this process.
static ERRORS: AtomicUsize = AtomicUsize::new(0);

fn errors() -> usize {
    ERRORS.load(Ordering::SeqCst)
}

/// Returns whether the thread of this name waits for something.
fn sleeps(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let wanted = format!("({name}) S ");
    stats.into_iter().any(|stat| stat.contains(&wanted))
}

/// Drives a timer that has lost its reaper, and says what it has seen.
fn repaired(driven: Timer) -> String {
    let own = driven.clone();
    let driver = thread::spawn(move || {
        while !own.is_shutdown() {
            own.advance_clock(Duration::MAX);
        }
    });
    let (sender, receiver) = mpsc::channel();
    // The second is earlier, and wakes the driver.
    driven.after(HOUR, || ()).unwrap();
    driven
        .after(Duration::ZERO, move || sender.send(()).unwrap())
        .unwrap();
    let expired = receiver.recv_timeout(HANG);
    let returned = driven.shutdown().len();
    let joined = driver.join();
    format!("repaired {expired:?}, {returned}, {joined:?}")
}

/// Uses the timers in the child, and says what it has seen.
fn in_the_child(started: Timer, built: Timer, driven: Timer) -> String {
    let mut said = vec![repaired(driven)];
    ERRORS.store(0, Ordering::SeqCst);
    // The first wakes the reaper, if there is one; the second is earlier, and does too.
    for delay in [HOUR, HOUR / 2] {
        let added = started.after(delay, || ()).is_ok();
        said.push(format!("added {added}, errors {}", errors()));
    }
    let stats = started.stats();
    said.push(format!(
        "forked {}, pending {}",
        stats.forked, stats.pending
    ));
    said.push(stats.to_string().lines().nth(1).unwrap().to_owned());
    // Not by its reaper, but by this call.
    started.after(Duration::ZERO, || ()).unwrap();
    said.push(format!("expired {}", started.advance_clock(HANG)));
    said.push(format!("shut down with {}", started.shutdown().len()));
    drop(started); // Its worker is not joined either.
    built.after(Duration::ZERO, || ()).unwrap();
    said.push(format!("built expired {}", built.advance_clock(HANG)));
    said.push(format!("built forked {}", built.stats().forked));
    let own = Timer::builder().start().unwrap();
    let (sender, receiver) = mpsc::channel();
    own.after(Duration::ZERO, move || sender.send(()).unwrap())
        .unwrap();
    said.push(format!("own {:?}", receiver.recv_timeout(HANG)));
    own.shutdown();
    said.push(format!("own forked {}", own.stats().forked));
    said.push(format!("errors {}", errors()));
    said.join("\n")
}

#[test]
fn a_timer_that_was_started_before_a_fork_says_so_and_ends() {
    let is_error = Listener(
        |metadata| *metadata.level() == Level::ERROR,
        |_: &Event<'_>| _ = ERRORS.fetch_add(1, Ordering::SeqCst),
    );
    tracing::subscriber::set_global_default(is_error).unwrap();
    let worker = Worker::unbounded("worker", Task::run).unwrap();
    let builder = Timer::builder().name("started").executor(worker);
    let started = builder.start().unwrap();
    let built = Timer::builder().build().unwrap();
    let driven = Timer::builder().name("driven").start().unwrap();
    driven.after(2 * HOUR, || ()).unwrap(); // The child gets a copy.
    // The child has a copy of each lock, so no other thread may hold one.
    until::until("the threads sleep", || {
        ["started", "worker", "driven"].into_iter().all(sleeps)
    });
    let (mut parent, mut child) = UnixStream::pair().unwrap();
    let Outcome::Parent(forked) = Daemonize::new().execute() else {
        // Not forked, so that a hang is not for ever.
        thread::spawn(|| {
            thread::sleep(HANG);
            process::exit(1);
        });
        let said = catch_unwind(|| in_the_child(started, built, driven));
        let said = said.unwrap_or_else(|_| "a panic".to_owned());
        child.write_all(said.as_bytes()).unwrap();
        process::exit(0);
    };
    forked.unwrap();
    drop(child);
    parent.set_read_timeout(Some(2 * HANG)).unwrap();
    let mut said = String::new();
    parent.read_to_string(&mut said).unwrap();
    let expected = [
        "repaired Ok(()), 2, Ok(())",
        "added true, errors 1",
        "added true, errors 1",
        "forked true, pending 2",
        "no reaper: the timer was started before a fork",
        "expired 1",
        "shut down with 2",
        "built expired 1",
        "built forked false",
        "own Ok(())",
        "own forked false",
        "errors 1",
    ];
    assert_eq!(said, expected.join("\n"));
    // In the parent nothing has changed.
    started.after(HOUR, || ()).unwrap();
    assert!(!started.stats().forked);
    assert_eq!((started.shutdown().len(), errors()), (1, 0));
    assert_eq!(driven.shutdown().len(), 1);
}
