//! In virtual time the same seed gives the same run, and another seed another order: with a service
//! that has all parts of the library on two timers, and writes down what happens and when.

use std::collections::BTreeSet;
use std::env;
use std::fmt::{Debug, Write};
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::{Periodic, Run, Series};
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer, TimerEntry};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const SESSIONS: u64 = 40;

/// What has happened. Clones write to the same.
#[derive(Clone)]
struct Journal {
    clock: ManualClock,
    start: Instant,
    text: Arc<Mutex<String>>,
}

impl Journal {
    fn new(clock: &ManualClock) -> Self {
        Journal {
            clock: clock.clone(),
            start: clock.now(),
            text: Arc::default(),
        }
    }

    fn note(&self, what: &str, which: impl Debug) {
        let elapsed_us = (self.clock.now() - self.start).as_micros();
        writeln!(self.text.lock().unwrap(), "{elapsed_us} {what} {which:?}").unwrap();
    }

    fn text(&self) -> String {
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
fn run(seed: u64) -> String {
    let clock = ManualClock::seeded(seed);
    let journal = Journal::new(&clock);
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let noted = journal.clone();
    let other = Timer::builder()
        .clock(clock.ahead(S))
        .tick(10 * MS)
        .wheel_size(8);
    let other = other
        .executor(move |task: u64| noted.note("other", task))
        .build()
        .unwrap();
    let noted = journal.clone();
    let expired = move |key, beats: u32| noted.note("session", (key, beats));
    let sessions = KeyedTimer::new(&timer, expired);
    let fetches = Purgatory::new(&other);
    let inner = clock.clone();
    let pages = Arc::default();
    let service = Service {
        clock: inner,
        journal,
        timer,
        other,
        sessions,
        fetches,
        pages,
    };
    let series = service.series();
    let service = Arc::new(service);
    (0..SESSIONS).for_each(|key| beat(&service, key));
    clock.block_on(service.requests()).unwrap();
    service
        .journal
        .note("runs", series.iter().map(Series::runs).collect::<Vec<_>>());
    let left = |key: &u64, beats: &u32, _| service.journal.note("left", (*key, *beats));
    service.sessions.for_each(left);
    let unserved = service
        .fetches
        .shutdown()
        .iter()
        .map(|fetch| fetch.number)
        .collect::<Vec<_>>();
    service.journal.note("unserved", unserved);
    let pending = service
        .other
        .shutdown()
        .into_iter()
        .map(TimerEntry::into_task);
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
    service.sessions.add(key, lasts, beats).unwrap();
    let again = Arc::clone(service);
    let delay = MS * ((random >> 32) % 2_500) as u32;
    service
        .timer
        .after(delay, move || beat(&again, key))
        .unwrap();
}

impl Service {
    /// Starts series that deliver pages, and add tasks to the other timer.
    fn series(&self) -> Vec<Series> {
        let start = |number: u64| {
            let journal = self.journal.clone();
            let other = self.other.downgrade();
            let pages = Arc::clone(&self.pages);
            let fetches = self.fetches.clone();
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
            let pages = Arc::clone(&self.pages);
            let journal = self.journal.clone();
            let fetch = Fetch {
                number,
                wanted,
                pages,
                journal,
            };
            let watched = self
                .fetches
                .try_complete_else_watch(fetch, S, &keys)
                .unwrap();
            drop(
                watched
                    .pending()
                    .filter(|_| number % 5 == 0)
                    .map(|pending| pending.cancel()),
            );
        }
    }
}

/// Names the file to which a process of its own writes.
const FILE: &str = "TICKWHEEL_JOURNAL";

#[test]
fn the_same_seed_gives_the_same_run_with_all_parts_in_three_processes() {
    let all = (0..20).map(run).collect::<Vec<_>>().join("\n");
    if let Ok(file) = env::var(FILE) {
        return fs::write(file, all).unwrap();
    }
    let kinds = [
        "beat",
        "session",
        "other",
        "run",
        "request",
        "checks",
        "completes",
        "expires",
    ];
    for what in [&kinds[..], &["left", "unserved [", "pending [1"]].concat() {
        assert!(all.contains(&format!(" {what}")), "{what}");
    }
    let name = thread::current().name().unwrap().to_owned();
    for process in 1..3 {
        let file = env::temp_dir().join(format!("tickwheel-{}-{process}", std::process::id()));
        let mut command = Command::new(env::current_exe().unwrap());
        let output = command
            .args(["--exact", &name])
            .env(FILE, &file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let other = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let differs = all
            .lines()
            .zip(other.lines())
            .find(|(one, other)| one != other);
        assert!(all == other, "{differs:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run_twice_in_one_process() {
    for seed in 0..5 {
        let one = run(seed);
        let other = run(seed);
        let differs = one
            .lines()
            .zip(other.lines())
            .find(|(one, other)| one != other);
        assert!(one == other, "{seed}: {differs:?}");
    }
}

/// Runs timers of all kinds that are due in the same ticks; returns what happened.
fn in_the_same_ticks(seed: u64) -> String {
    struct Operation(u32, Journal);
    impl DelayedOperation for Operation {
        fn try_complete(&mut self) -> bool {
            false
        }
        fn on_complete(&mut self) {
            self.1.note("operation", self.0);
        }
    }
    let clock = ManualClock::seeded(seed);
    let journal = Journal::new(&clock);
    let noted = journal.clone();
    let build = || Timer::builder().clock(clock.clone());
    let timer = build()
        .executor(move |task: u32| noted.note("task", task))
        .build()
        .unwrap();
    let closures = build().build().unwrap();
    let noted = journal.clone();
    let keyed = KeyedTimer::new(&timer, move |key: u32, ()| noted.note("key", key));
    let purgatory = Purgatory::new(&timer);
    let noted = journal.clone();
    let run = move |run: &Run<'_>| noted.note("run", run.number());
    let series = Periodic::every(S).start(&timer, run).unwrap();
    for number in 0..200 {
        let delay = S * (number % 4);
        timer.after(delay, number).unwrap();
        let noted = journal.clone();
        closures
            .after(delay, move || noted.note("closure", number))
            .unwrap();
        keyed.add(number, delay, ()).unwrap();
        let operation = Operation(number, journal.clone());
        purgatory
            .try_complete_else_watch(operation, delay, &[number])
            .unwrap();
    }
    clock.run_for(4 * S);
    assert_eq!(series.runs(), 4);
    journal.text()
}

#[test]
fn another_seed_gives_another_order_at_the_same_times() {
    let sorted = |journal: &str| {
        let mut lines: Vec<_> = journal.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let filed = in_the_same_ticks(0);
    let mut seen = vec![filed.clone()];
    for seed in 1..20 {
        let journal = in_the_same_ticks(seed);
        assert_eq!(sorted(&journal), sorted(&filed));
        assert!(!seen.contains(&journal), "{seed}");
        seen.push(journal);
    }
    // Within a kind, and without a seed, in the order in which they were added.
    for kind in ["task", "closure", "key", "operation", "run"] {
        let of_kind = |line: &&str| line.split(' ').nth(1) == Some(kind);
        let time_and_number = |line: &str| {
            let numbers = line.split(' ').filter_map(|word| word.parse::<u32>().ok());
            numbers.collect::<Vec<_>>()
        };
        assert!(
            filed
                .lines()
                .filter(of_kind)
                .map(time_and_number)
                .is_sorted(),
            "{kind}"
        );
    }
    // With one, what is of different kinds and of one tick is mixed.
    let kinds = |journal: &str| {
        let kinds = journal
            .lines()
            .map(|line| line.split(' ').nth(1).unwrap().to_owned());
        let mut kinds: Vec<_> = kinds.collect();
        kinds.dedup();
        kinds.len()
    };
    assert!(kinds(&seen[1]) > 300 && kinds(&seen[1]) > 5 * kinds(&filed));
}

#[test]
fn with_a_seed_any_of_several_timers_comes_first() {
    let order = |seed| {
        let clock = ManualClock::seeded(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        let hosts = [0, 1, 2].map(|host| {
            let timer = Timer::builder()
                .clock(clock.behind(S * host))
                .build()
                .unwrap();
            let order = Arc::clone(&order);
            timer
                .after(S, move || order.lock().unwrap().push(host))
                .unwrap();
            timer
        });
        clock.run_for(S);
        drop(hosts);
        Arc::into_inner(order).unwrap().into_inner().unwrap()
    };
    assert_eq!(order(0), [0, 1, 2]);
    assert_eq!((1..100).map(order).collect::<BTreeSet<_>>().len(), 6);
}

#[test]
fn ticks_keep_their_order_in_a_leap_and_a_long_cascade() {
    for seed in [0, 1, 2] {
        let clock = ManualClock::seeded(seed);
        let expired = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&expired);
        let builder = Timer::builder().clock(clock.clone());
        let see = move |tick| sees.lock().unwrap().push(tick);
        let timer = builder.executor(see).build().unwrap();
        let ticks: Vec<u64> = (0..100_000).map(|_| clock.random() % 30_000).collect();
        for tick in &ticks {
            timer.after(Duration::from_millis(*tick), *tick).unwrap();
        }
        clock.advance(30 * S);
        assert_eq!(timer.advance_clock(Duration::ZERO), 100_000);
        let expired = std::mem::take(&mut *expired.lock().unwrap());
        assert!(expired.is_sorted(), "{seed}");
        let mut ticks = ticks;
        ticks.sort();
        assert_eq!(expired, ticks);
    }
}

/// Seen to fail: the fourth came before the third. It was chosen to be next after the cancelled one
/// was taken off the front, which a task did whose tick came before both.
#[test]
fn a_task_that_asks_what_is_next_changes_no_order() {
    for seed in 0..4 {
        let clock = ManualClock::seeded(seed);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let asks = timer.downgrade();
        let keys = Arc::clone(&seen);
        let third = Arc::clone(&seen);
        let keyed = KeyedTimer::new(&timer, move |key: u32, ()| {
            keys.lock().unwrap().push(key);
            let _ = asks.upgrade().unwrap().next_expiration();
        });
        [1, 2, 4]
            .iter()
            .for_each(|key| _ = keyed.add(*key, MS * *key, ()).unwrap());
        timer
            .after(3 * MS, move || third.lock().unwrap().push(3))
            .unwrap();
        assert!(keyed.cancel(&2).is_some());
        clock.advance(S);
        timer.advance_clock(Duration::ZERO);
        assert_eq!(*seen.lock().unwrap(), [1, 3, 4], "seed {seed}");
    }
}

/// The parts of one timer serve the next one, with types that no other test has. Seen to fail: the
/// second time, what was due at the same time was listed in another order.
#[test]
fn what_is_pending_is_listed_in_the_same_order_each_time() {
    let list = || {
        let timer: Timer<char> = Timer::builder()
            .clock(ManualClock::new())
            .executor(|_| ())
            .build()
            .unwrap();
        let keyed = KeyedTimer::new(&timer, |_: char, ()| ());
        for name in ['a', 'b', 'c'] {
            keyed.add(name, S, ()).unwrap();
            timer.after(S, name).unwrap();
        }
        let mut listed = String::new();
        keyed.for_each(|name, (), _| listed.push(*name));
        listed.extend(keyed.cancel_all().into_iter().map(|(name, ())| name));
        listed.extend(timer.shutdown().into_iter().map(TimerEntry::into_task));
        listed
    };
    let first = list();
    assert_eq!([(); 3].map(|()| list()), [(); 3].map(|()| first.clone()));
}

#[test]
fn random_numbers_are_those_of_the_seed() {
    // The first outputs of the reference implementation of SplitMix64 with the state 0.
    let first = [
        0xE220_A839_7B1D_CDAF,
        0x6E78_9E6A_A1B9_65F4,
        0x06C4_5D18_8009_454F,
    ];
    let clock = ManualClock::new();
    assert_eq!([(); 3].map(|()| clock.random()), first);
    let host = ManualClock::seeded(7);
    let here = host.ahead(S);
    let there = host.behind(S);
    let numbers = [here.random(), there.random(), host.random()];
    let alone = ManualClock::seeded(7);
    assert_eq!(
        numbers,
        [(); 3].map(|()| alone.random()),
        "hosts draw from the same numbers"
    );
}
