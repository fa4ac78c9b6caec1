//! A timer that brings its process down.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, OpenStore, Outcome, Search};
use tokio::sync::watch;

const NEIGHBOURS: usize = 49;
const MAX_ATTEMPTS: u32 = 1;
/// What the crashes of a poison may be: until it is known, its own, and some that a slow machine
/// adds as a lease runs out.
const LIVES: u32 = 3 + MAX_ATTEMPTS + 10;

/// How a process stands: handlers that run as it goes down are not heard of any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Runs,
    Crashes,
    IsGone,
}

/// Starts nodes anew, each for a process that a handler has ended, until the poison is dead.
/// Seen to fail: all 50 were dead after as many crashes, 49 of which had never failed.
pub(crate) async fn a_poison_takes_no_neighbour_along<O: OpenStore>(
    builder: impl Fn() -> DurableBuilder<O>,
) {
    let timer = Timer::builder().start().unwrap();
    let done = Arc::new(Mutex::new(HashSet::new()));
    for life in 0..LIVES {
        let process = Arc::new(watch::Sender::new(Process::Runs));
        let node = start(&timer, &builder, &process, &done).await;
        if life == 0 {
            let name = |n: usize| {
                if n == NEIGHBOURS / 2 {
                    "poison".into()
                } else {
                    n.to_string()
                }
            };
            let entry = |n| Entry::keyed(name(n), Duration::from_millis(100), "x");
            node.schedule_many((0..=NEIGHBOURS).map(entry).collect())
                .await
                .unwrap();
        }
        let mut told = process.subscribe();
        let crash = told.wait_for(|process| *process == Process::Crashes);
        let dead = async {
            while node.stats().dead == 0 || node.stats().in_flight > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let end = async {
            tokio::select! {
                _ = crash => false,
                () = dead => true,
            }
        };
        // A bound that only a bug breaks.
        if tokio::time::timeout(Duration::from_secs(60), end)
            .await
            .expect("one of the two")
        {
            let dead = node.dead(Search::new(100)).await.unwrap();
            let keys: Vec<_> = dead
                .iter()
                .map(|dead| dead.key.as_deref().unwrap())
                .collect();
            assert_eq!(keys, ["poison"]);
            assert_eq!(done.lock().unwrap().len(), NEIGHBOURS);
            return node.drain().await;
        }
        drop(node);
        process.send_replace(Process::IsGone);
    }
    panic!("the poison did not end");
}

async fn start<O: OpenStore>(
    timer: &Timer,
    builder: impl Fn() -> DurableBuilder<O>,
    process: &Arc<watch::Sender<Process>>,
    done: &Arc<Mutex<HashSet<String>>>,
) -> Durable<O::Store> {
    loop {
        let (process, done) = (Arc::clone(process), Arc::clone(done));
        let handler = move |due: Due| handle(due, Arc::clone(&process), Arc::clone(&done));
        match builder()
            .max_attempts(MAX_ATTEMPTS)
            .start(timer, handler)
            .await
        {
            Ok(node) => return node,
            // A file is let go of in its own time.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn handle(
    due: Due,
    process: Arc<watch::Sender<Process>>,
    done: Arc<Mutex<HashSet<String>>>,
) -> Outcome {
    let key = due.key.unwrap();
    match key.as_str() {
        "poison" => drop(process.send_replace(Process::Crashes)),
        _ => tokio::time::sleep(Duration::from_millis(50)).await,
    }
    if *process.borrow() == Process::Runs {
        done.lock().unwrap().insert(key);
        return Outcome::Done;
    }
    let _ = process
        .subscribe()
        .wait_for(|process| *process == Process::IsGone)
        .await;
    Outcome::Done
}
