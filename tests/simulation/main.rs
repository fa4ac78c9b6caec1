//! In virtual time the same seed gives the same run, and another seed another order.

mod service;

use service::{Journal, run};
use std::env;
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::{Periodic, Run};
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer};

const S: Duration = Duration::from_secs(1);

/// Names the file to which a process of its own writes.
const FILE: &str = "TICKWHEEL_JOURNAL";

#[test]
fn the_same_seed_gives_the_same_run_with_all_parts_in_three_processes() {
    let all = (0..50).map(run).collect::<Vec<_>>().join("\n");
    if let Ok(file) = env::var(FILE) {
        return fs::write(file, all).unwrap();
    }
    let kinds = ["beat", "session", "other", "run", "request", "checks", "completes", "expires"];
    for what in
        [&kinds[..], &["renews", "lost", "held", "left", "unserved [", "pending [1"]].concat()
    {
        assert!(all.contains(&format!(" {what}")), "{what}");
    }
    let name = thread::current().name().unwrap().to_owned();
    for process in 0..3 {
        let file = env::temp_dir().join(format!("tickwheel-{}-{process}", std::process::id()));
        let mut command = Command::new(env::current_exe().unwrap());
        let output = command.args(["--exact", &name]).env(FILE, &file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let other = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let differs = all.lines().zip(other.lines()).find(|(one, other)| one != other);
        assert!(all == other, "{differs:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run_twice_in_one_process() {
    for seed in 0..5 {
        let (one, other) = (run(seed), run(seed));
        let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
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
    let timer = build().executor(move |task: u32| noted.note("task", task)).build().unwrap();
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
        closures.after(delay, move || noted.note("closure", number)).unwrap();
        keyed.after(number, delay, ()).unwrap();
        let operation = Operation(number, journal.clone());
        drop(purgatory.try_complete_else_watch(operation, delay, &[number]).unwrap());
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
        assert!(filed.lines().filter(of_kind).map(time_and_number).is_sorted(), "{kind}");
    }
    // With one, what is of different kinds and of one tick is mixed.
    let kinds = |journal: &str| {
        let kinds = journal.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned());
        let mut kinds: Vec<_> = kinds.collect();
        kinds.dedup();
        kinds.len()
    };
    assert!(kinds(&seen[1]) > 300 && kinds(&seen[1]) > 5 * kinds(&filed));
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

#[test]
fn random_numbers_are_those_of_the_seed() {
    // The first outputs of the reference implementation of SplitMix64 with the state 0.
    let first = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
    let clock = ManualClock::new();
    assert_eq!([(); 3].map(|()| clock.random()), first);
    let host = ManualClock::seeded(7);
    let (here, there) = (host.ahead(S), host.behind(S));
    let numbers = [here.random(), there.random(), host.random()];
    let alone = ManualClock::seeded(7);
    assert_eq!(numbers, [(); 3].map(|()| alone.random()), "hosts draw from the same numbers");
}
