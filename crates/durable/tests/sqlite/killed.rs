//! A process that is killed again and again.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::Sqlite;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Error, Outcome};

const FOLDER: &str = "TICKWHEEL_KILLED_FOLDER";

/// Opens the file once its former owner's lock has gone; handlers write down what they get.
async fn open(folder: &Path, timer: &Timer) -> Durable<Sqlite> {
    loop {
        let ledger = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("ledger"));
        let ledger = ledger.unwrap();
        let handler = move |due: Due| {
            let line = format!("{}\n", due.key.unwrap());
            (&ledger).write_all(line.as_bytes()).unwrap();
            async { Outcome::Done }
        };
        match Durable::sqlite(folder.join("timers"))
            .start(timer, handler)
            .await
        {
            Ok(node) => return node,
            Err(Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs the process that is killed: it tells each answer once it has it.
#[tokio::test]
async fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let timer = Timer::builder().start().unwrap();
    let node = open(Path::new(&folder), &timer).await;
    for number in 0_u64.. {
        let key = format!("{}-{number}", std::process::id());
        let delay = Duration::from_millis(number % 50);
        node.schedule(Entry::keyed(&key, delay, "x")).await.unwrap();
        println!("scheduled {key}");
        if number % 3 == 0 {
            if let Cancelled::Cancelled(_) = node.cancel(&key).await.unwrap() {
                println!("cancelled {key}");
            }
        }
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut scheduled = HashSet::new();
    let mut cancelled = HashSet::new();
    for life in 0..8_usize {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "killed::child", "--nocapture"])
            .env(FOLDER, folder.path());
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let mut last = String::new();
        for line in told {
            // The harness says a word before the first.
            if let Some((_, key)) = line.split_once("scheduled ") {
                scheduled.insert(key.to_owned());
                key.clone_into(&mut last);
            } else if let Some(key) = line.strip_prefix("cancelled ") {
                cancelled.insert(key.to_owned());
            }
            // Not before it has told one: those before it may have told more by their ends.
            if !last.is_empty() && scheduled.len() >= 60 * (life + 1) {
                child.kill().unwrap(); // What it has told by then is read to the end.
            }
        }
        child.wait().unwrap();
        // It may have been cancelled, and killed before it was told.
        let (_, number) = last.split_once('-').unwrap();
        if number.parse::<u64>().unwrap() % 3 == 0 && !cancelled.contains(&last) {
            scheduled.remove(&last);
        }
    }
    let timer = Timer::builder().start().unwrap();
    let node = open(folder.path(), &timer).await;
    let mut fired: HashMap<String, u32> = HashMap::new();
    let expected: HashSet<&String> = scheduled.difference(&cancelled).collect();
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        fired.clear();
        let ledger = std::fs::read_to_string(folder.path().join("ledger")).unwrap();
        ledger
            .lines()
            .for_each(|key| *fired.entry(key.to_owned()).or_default() += 1);
        if expected.iter().all(|key| fired.contains_key(*key)) {
            break;
        }
        let lost = || expected.iter().find(|key| !fired.contains_key(**key));
        assert!(Instant::now() < patience, "{:?} is lost", lost());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        cancelled.iter().all(|key| !fired.contains_key(key)),
        "cancelled, yet fired"
    );
    assert!(!cancelled.is_empty() && fired.len() >= expected.len());
    node.drain().await;
    // Each kill may repeat what was in flight then.
    assert!(fired.values().filter(|times| **times > 1).count() <= 8 * 50);
}
