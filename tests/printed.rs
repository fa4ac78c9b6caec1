//! What the public types and errors print: each names itself, in a line or a few however many
//! timers there are, and none shows, asks or locks what a user has put into it.

#[path = "common/idle.rs"]
mod idle;

use idle::Idle;
use std::cell::Cell;
use std::error::Error;
use std::fmt::Debug;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tickwheel::future::{SleepError, TimedError};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{FutureOperation, Purgatory, WatchError};
use tickwheel::{AddError, BuildError, LocalTimer, ManualClock, Timer, TimerEntry};

const S: Duration = Duration::from_secs(1);
const MANY: u32 = 5_000;
/// A few lines. What prints each of its timers, or a number for each slot, prints far more.
const MOST: usize = 2_000;

/// A key and a task that must not be printed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Secret(u32);

impl Debug for Secret {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("a user's value is printed");
    }
}

/// Returns a timer on which very much is pending.
fn timer() -> Timer {
    let timer = Timer::builder()
        .clock(ManualClock::default())
        .build()
        .unwrap();
    (0..MANY).for_each(|id| assert!(timer.after(1_000 * S * id, || ()).is_ok()));
    timer
}

fn shows(value: &impl Debug, wanted: &str) {
    let shown = format!("{value:?}");
    assert!(
        shown.starts_with(wanted),
        "{shown:.400} instead of {wanted}"
    );
    assert!(
        shown.len() <= MOST,
        "{} characters: {shown:.400}",
        shown.len()
    );
}

#[test]
fn a_local_timer_prints_a_line() {
    let mut timer = LocalTimer::starting_at(0, 1 << 12);
    let keys: Vec<_> = (0..MANY)
        .map(|id| timer.add(u64::from(id) << (id % 20), id))
        .collect();
    shows(&timer, "LocalTimer { now: 0, pending: 5000, .. }");
    // What is left behind, and is still to be handed out.
    let panics = || timer.advance(1 << 20, |_| panic!("at the first"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    shows(&timer, "LocalTimer { now: 1048576, pending: 4999, .. }");
    shows(&keys[0], "TimerKey");
}

#[test]
fn a_timer_of_ones_own_tasks_prints_little_and_no_task() {
    let clock = ManualClock::new();
    let builder = Timer::builder()
        .name("mine")
        .shards(1)
        .wheel_size(1 << 12)
        .clock(clock.clone());
    let builder = builder.executor(|_: Secret| ());
    shows(&builder, "Options { name: \"mine\"");
    let timer = builder.build().unwrap();
    let add = |id: u32| timer.after((1 << (id % 32)) * S / 1000 + S * id, Secret(id));
    let mut timeouts: Vec<_> = (0..MANY).map(|id| add(id).unwrap()).collect();
    shows(&timer, "Timer { name: \"mine\", .. }");
    shows(&timer.downgrade(), "WeakTimer");
    shows(&timer.listener(), "Listener { timer: \"mine\"");
    let series = Periodic::every(1_000 * S).start(&timer, |_| ());
    shows(&series.unwrap(), "Series { periodic: Periodic");
    shows(&timeouts[0], "Timeout");
    shows(&timeouts.remove(1).cancel_on_drop(), "CancelOnDrop");
    shows(&timer.snapshot(), "Snapshot");
    shows(&timer.snapshot().levels[0], "LevelSnapshot");
    for bits in 0..40 {
        (0..10).for_each(|id| assert!(timer.after(S / 1000, Secret(id)).is_ok()));
        clock.advance(Duration::from_nanos(1 << bits));
    }
    timer.advance_clock(Duration::ZERO);
    shows(&timer.stats(), "Stats { name: \"mine\"");
    shows(&timer.stats().lateness, "{");
}

#[test]
fn keyed_timers_print_neither_keys_nor_tasks() {
    let timer = timer();
    let keyed = KeyedTimer::<Secret, Secret>::new(&timer, |_, _| ());
    shows(&keyed, "KeyedTimer { .. }");
    let Entry::Vacant(vacant) = keyed.entry(Secret(1)) else {
        panic!("no key yet")
    };
    assert_eq!(format!("{vacant:?}"), "VacantEntry { .. }");
    vacant.add(Duration::MAX, Secret(2)).unwrap();
    let Entry::Occupied(occupied) = keyed.entry(Secret(1)) else {
        panic!("scheduled")
    };
    assert_eq!(
        format!("{occupied:?}"),
        "OccupiedEntry { deadline: None, .. }"
    );
}

#[test]
fn a_purgatory_prints_neither_keys_nor_operations() {
    let timer = timer();
    let watched = Purgatory::<Secret, Idle>::new(&timer);
    let watch = watched
        .try_complete_else_watch(Idle, S, &[Secret(1)])
        .unwrap();
    assert_eq!(
        format!("{watched:?} {watch:?}"),
        "Purgatory { .. } Pending(Pending { .. })"
    );
    let guard = watch.pending().expect("it waits").cancel_on_drop();
    assert_eq!(format!("{guard:?}"), "CancelPendingOnDrop(Pending { .. })");
    let purgatory = Purgatory::<Secret, FutureOperation>::new(&timer);
    let wait = purgatory.wait(|| false, S, &[Secret(1)]).unwrap();
    assert_eq!(format!("{wait:?}"), "Wait { .. }");
    let operation = purgatory.shutdown().pop().expect("one waits");
    assert_eq!(
        format!("{operation:?}"),
        "FutureOperation { waited: Cancelled, .. }"
    );
}

/// Returns an error as `?` does; its own task need not be `Sync`.
fn boxed<E: Error + Send + Sync + 'static>(error: E) -> Box<dyn Error + Send + Sync> {
    error.into()
}

#[test]
fn errors_can_be_boxed_and_sent_with_each_task_that_can() {
    boxed(AddError::Full(TimerEntry::after(S, Cell::new(1)).into()));
    boxed(WatchError::Full(Cell::new(1).into()));
    boxed(BuildError::Tick);
    boxed(SleepError::Full);
    boxed(TimedError::Elapsed);
}

#[test]
fn errors_print_no_task() {
    let refused = TimerEntry::after(S, Secret(1));
    shows(
        &AddError::Full(refused.into()),
        "AddError(the timer is full)",
    );
    shows(
        &WatchError::NoKeys(Secret(1).into()),
        "WatchError(the operation has no key)",
    );
}

/// The operating system's error is kept: it can be asked for, and becomes itself again.
#[test]
fn a_thread_that_cant_be_started_tells_why() {
    let error = BuildError::Thread(io::ErrorKind::OutOfMemory.into());
    assert!(
        error
            .to_string()
            .starts_with("the thread could not be started: "),
        "{error}"
    );
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(
        source.map(io::Error::kind),
        Some(io::ErrorKind::OutOfMemory)
    );
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::OutOfMemory);
    let error = io::Error::from(Timer::builder().shards(0).start().unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(
        error
            .get_ref()
            .is_some_and(|inner| inner.is::<BuildError>())
    );
}
