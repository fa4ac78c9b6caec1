//! A service with all parts of the library, on two timers in virtual time, that writes down what
//! happens and when.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::{Periodic, Run, Series};
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer, TimerEntry};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const SESSIONS: u64 = 40;

/// What has happened. Clones write to the same.
#[derive(Clone)]
pub(crate) struct Journal {
    clock: ManualClock,
    start: Instant,
    text: Arc<Mutex<String>>,
}

impl Journal {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Journal { clock: clock.clone(), start: clock.now(), text: Arc::default() }
    }

    pub(crate) fn note(&self, what: &str, which: impl Debug) {
        let elapsed_us = (self.clock.now() - self.start).as_micros();
        writeln!(self.text.lock().unwrap(), "{elapsed_us} {what} {which:?}").unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }
}

/// Waits for a number of pages in all of its keys together.
struct Fetch {
    number: u64,
    wanted: usize,
    pages: Arc<Mutex<Vec<u64>>>,
    journal: Journal,
}

impl DelayedOperation for Fetch {
    fn try_complete(&mut self) -> bool {
        self.journal.note("checks", self.number);
        self.pages.lock().unwrap().len() >= self.wanted
    }

    fn on_complete(&mut self) {
        self.journal.note("completes", self.number);
    }

    fn on_expiration(&mut self) {
        self.journal.note("expires", self.number);
    }
}

/// Fails by the seed.
struct Store(Journal);

impl LeaseStore<u64> for Store {
    fn renew(&self, batch: Vec<Renewal<u64>>) {
        for renewal in batch {
            let answer = self.0.clock.random() % 8;
            self.0.note("renews", (*renewal.key(), answer));
            match answer {
                0 => renewal.gone(),
                1..5 => renewal.failed(),
                _ => renewal.renewed(),
            }
        }
    }

    fn lost(&self, key: u64) {
        self.0.note("lost", key);
    }
}

/// Everything that is on the two timers.
struct Service {
    clock: ManualClock,
    journal: Journal,
    timer: Timer,
    /// The time of another host, with a type of task and a tick of its own.
    other: Timer<u64>,
    sessions: KeyedTimer<u64, u32>,
    fetches: Purgatory<u64, Fetch>,
    pages: Arc<Mutex<Vec<u64>>>,
}

/// Runs the service for 40 seconds, and returns its journal.
pub(crate) fn run(seed: u64) -> String {
    let clock = ManualClock::seeded(seed);
    let journal = Journal::new(&clock);
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let noted = journal.clone();
    let other = Timer::builder().clock(clock.ahead(S)).tick(10 * MS).wheel_size(8);
    let other = other.executor(move |task: u64| noted.note("other", task)).build().unwrap();
    let noted = journal.clone();
    let expired = move |key, beats: u32| noted.note("session", (key, beats));
    let sessions = KeyedTimer::new(&timer, expired);
    let fetches = Purgatory::new(&other);
    let (inner, pages) = (clock.clone(), Arc::default());
    let service = Service { clock: inner, journal, timer, other, sessions, fetches, pages };
    let leases =
        Leases::new(&service.timer, LeaseTerms::new(9 * S), Store(service.journal.clone()));
    let held: Vec<Lease<u64>> = (0..30).map(|key| leases.hold(key).unwrap()).collect();
    let series = service.series();
    let service = Arc::new(service);
    (0..SESSIONS).for_each(|key| beat(&service, key));
    clock.block_on(service.requests()).unwrap();
    service.journal.note("held", held.iter().filter(|lease| lease.is_held()).count());
    service.journal.note("runs", series.iter().map(Series::runs).collect::<Vec<_>>());
    let left = |key: &u64, beats: &u32, _| service.journal.note("left", (*key, *beats));
    service.sessions.for_each(left);
    let unserved = service.fetches.shutdown().iter().map(|fetch| fetch.number).collect::<Vec<_>>();
    service.journal.note("unserved", unserved);
    let pending = service.other.shutdown().into_iter().map(TimerEntry::into_task);
    service.journal.note("pending", pending.collect::<Vec<_>>());
    service.journal.text()
}

/// Extends a session and its neighbour, and comes again after a time that the seed decides, as long
/// as the session lasts.
fn beat(service: &Arc<Service>, key: u64) {
    let random = service.clock.random();
    let lasts = S + MS * (random % 1_000) as u32;
    service.sessions.touch(&((key + 1) % SESSIONS), lasts);
    let count = |beats: &mut u32, _| {
        *beats += 1;
        *beats
    };
    let beats = service.sessions.with(&key, count).unwrap_or(0);
    service.journal.note("beat", (key, beats));
    service.sessions.after(key, lasts, beats).unwrap();
    let again = Arc::clone(service);
    let delay = MS * ((random >> 32) % 2_500) as u32;
    service.timer.after(delay, move || beat(&again, key)).unwrap();
}

impl Service {
    /// Starts series that deliver pages, and add tasks to the other timer.
    fn series(&self) -> Vec<Series> {
        let start = |number: u64| {
            let (journal, other) = (self.journal.clone(), self.other.downgrade());
            let (pages, fetches) = (Arc::clone(&self.pages), self.fetches.clone());
            let every = Periodic::every(700 * MS).jitter(MS * (number % 3 * 50) as u32);
            let run = move |run: &Run<'_>| {
                journal.note("run", (number, run.number()));
                pages.lock().unwrap().push(number);
                fetches.check_and_complete(&number);
                if let Some(other) = other.upgrade() {
                    _ = other.after(S, number);
                    _ = other.after(200 * S, number);
                }
            };
            every.start(&self.timer, run).unwrap()
        };
        (0..12).map(start).collect()
    }

    /// Makes requests, each after a pause, for 40 seconds.
    async fn requests(&self) {
        let end = self.clock.now() + 40 * S;
        for number in 0.. {
            let pause = MS * (self.clock.random() % 1_000) as u32;
            self.timer.sleep(pause).await.unwrap();
            if self.clock.now() >= end {
                break;
            }
            self.journal.note("request", number);
            let keys = [(); 3].map(|()| self.clock.random() % 12);
            let wanted = self.pages.lock().unwrap().len() + 5 + number as usize % 20;
            let (pages, journal) = (Arc::clone(&self.pages), self.journal.clone());
            let fetch = Fetch { number, wanted, pages, journal };
            let watched = self.fetches.try_complete_else_watch(fetch, S, &keys).unwrap();
            drop(watched.pending().filter(|_| number % 5 == 0).map(|pending| pending.cancel()));
        }
    }
}
