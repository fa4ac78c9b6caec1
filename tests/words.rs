//! What the public types print, and what errors say: each names itself, and none shows, asks or
//! locks what a user has put into it.

use std::error::Error;
use std::fmt::Debug;
use std::io;
use std::time::Duration;
use tickwheel::future::{SleepError, TimedError};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{DelayedOperation, FutureOperation, Purgatory, WatchError};
use tickwheel::{AddError, BuildError, ManualClock, Task, Timer, TimerEntry};

const S: Duration = Duration::from_secs(1);

/// A key and a task that must not be printed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Secret(u32);

impl Debug for Secret {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("a user's value is printed");
    }
}

/// Leaves every renewal unanswered, and shows the first.
struct Store;

impl LeaseStore<Secret> for Store {
    fn renew(&self, batch: Vec<Renewal<Secret>>) {
        assert_eq!(format!("{:?}", batch[0]), "Renewal { .. }");
    }

    fn lost(&self, _: Secret) {}
}

/// An operation whose condition never holds, and which can't be printed.
struct Never;

impl DelayedOperation for Never {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {}
}

fn timer() -> (Timer, ManualClock) {
    let clock = ManualClock::default();
    (Timer::builder().name("mine").clock(clock.clone()).build().unwrap(), clock)
}

fn shows(value: &impl Debug, wanted: &str) {
    let shown = format!("{value:?}");
    assert!(shown.starts_with(wanted), "{shown} instead of {wanted}");
}

#[test]
fn a_timer_and_its_parts_print_their_names_and_no_task() {
    let (timer, clock) = timer();
    shows(&timer, "Timer { name: \"mine\", pending: 0");
    shows(&timer.downgrade(), "WeakTimer");
    shows(&timer.downgrade().clone(), "WeakTimer");
    shows(&Task::new(|| ()), "Task");
    clock.advance(3 * S);
    assert_eq!(format!("{clock:?}"), "ManualClock { elapsed: 3s }");
    let timeout = timer.after(S, || ()).unwrap();
    shows(&timeout, "Timeout");
    shows(&timer.sleep(S), "Sleep");
}

#[test]
fn keyed_timers_print_neither_keys_nor_tasks() {
    let (timer, _) = timer();
    let keyed = KeyedTimer::<Secret, Secret>::new(&timer, |_, _| ());
    shows(&keyed, "KeyedTimer");
    let Entry::Vacant(vacant) = keyed.entry(Secret(1)) else { panic!("no key yet") };
    assert_eq!(format!("{vacant:?}"), "VacantEntry { .. }");
    vacant.schedule(TimerEntry::after(Duration::MAX, Secret(2))).unwrap();
    let Entry::Occupied(occupied) = keyed.entry(Secret(1)) else { panic!("scheduled") };
    assert_eq!(format!("{occupied:?}"), "OccupiedEntry { deadline: None, .. }");
}

#[test]
fn series_print_their_options_and_runs_their_number() {
    let (timer, clock) = timer();
    let series = Periodic::every(S)
        .start(&timer, |run| assert!(format!("{run:?}").ends_with("number: 0, .. }"), "{run:?}"))
        .unwrap();
    assert!(format!("{series:?}").starts_with("Series { periodic: Periodic"), "{series:?}");
    clock.advance(S);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(timer.stats().panicked, 0);
}

#[test]
fn leases_print_no_key() {
    let (timer, clock) = timer();
    let leases = Leases::new(&timer, LeaseTerms::new(3 * S), Store);
    let lease = leases.hold(Secret(1)).unwrap();
    assert_eq!(format!("{leases:?} {lease:?}"), "Leases { .. } Lease { .. }");
    clock.advance(S);
    timer.advance_clock(Duration::ZERO);
    assert_eq!((leases.stats().failed, timer.stats().panicked), (1, 0));
}

#[test]
fn a_purgatory_prints_neither_keys_nor_operations() {
    let (timer, _) = timer();
    let purgatory = Purgatory::<Secret, FutureOperation>::new(&timer);
    shows(&purgatory, "Purgatory");
    let watched = Purgatory::<Secret, Never>::new(&timer);
    let watch = watched.try_complete_else_watch(Never, S, &[Secret(1)]).unwrap();
    shows(&watch.pending().expect("it waits"), "Pending");
    let wait = purgatory.wait(&[Secret(1)], S, || false).unwrap();
    assert_eq!(format!("{wait:?}"), "Wait { .. }");
    let operation = purgatory.shutdown().pop().expect("one waits");
    assert_eq!(format!("{operation:?}"), "FutureOperation { waited: Cancelled, .. }");
}

#[test]
fn errors_say_in_words_what_was_wrong() {
    let said = |error: &dyn Error| error.to_string();
    assert_eq!(said(&SleepError::Full), "the timer is full");
    assert_eq!(said(&SleepError::Shutdown), "the timer was shut down");
    assert_eq!(said(&TimedError::Elapsed), "the time was up");
    assert_eq!(said(&TimedError::Sleep(SleepError::Full)), "the timer is full");
    let entry = || TimerEntry::after(S, Secret(1));
    assert_eq!(said(&AddError::Full(entry())), "the timer is full");
    assert_eq!(said(&AddError::Shutdown(entry())), "the timer was shut down");
    for (error, wanted) in [
        (WatchError::NoKeys(Secret(1)), "the operation has no key"),
        (WatchError::Full(Secret(1)), "the timer is full"),
        (WatchError::Shutdown(Secret(1)), "the purgatory was shut down"),
    ] {
        assert_eq!(said(&error), wanted);
        shows(&error, "WatchError(");
    }
    let refused = [
        (Timer::builder().tick(Duration::ZERO), "the tick must be"),
        (Timer::builder().wheel_size(0), "the wheel size must be"),
        (Timer::builder().shards(0), "the number of shards must be"),
        (Timer::builder().on_refused(drop).executor(|_| ()), "on_refused must be"),
        (Timer::builder().name("nul \0"), "a thread's name must not"),
    ];
    for (builder, wanted) in refused {
        let error = builder.start().unwrap_err();
        assert!(said(&error).starts_with(wanted), "{error}");
        assert!(error.source().is_none());
    }
}

/// The operating system's error is kept: it can be asked for, and becomes itself again.
#[test]
fn a_thread_that_cant_be_started_tells_why() {
    let error = BuildError::Thread(io::ErrorKind::OutOfMemory.into());
    assert!(error.to_string().starts_with("the thread could not be started: "), "{error}");
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::OutOfMemory));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::OutOfMemory);
    let error = io::Error::from(Timer::builder().shards(0).start().unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.get_ref().is_some_and(|inner| inner.is::<BuildError>()));
}
