//! The store in a file: beside the store in memory, and as a file.

#[path = "common/driven.rs"]
mod driven;
#[path = "common/poison.rs"]
mod poison;

use driven::{Wrapped, compare};
use quickcheck::quickcheck;
use std::time::Duration;
use tickwheel::{SystemClock, Timer};
use tickwheel_durable::store::memory::Memory;
use tickwheel_durable::{Durable, Entry, Error, OpenStore, Outcome};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

quickcheck! {
    fn it_answers_as_the_store_in_memory_does(steps: Wrapped) -> bool {
        let folder = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let file = Durable::sqlite(folder.path().join("timers")).store();
            let file = file.open().await.unwrap();
            compare(Memory::new(1, SystemClock), file, &steps.0).await;
        });
        true
    }
}

#[tokio::test]
async fn a_second_process_and_a_newer_file_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let first = Durable::sqlite(&path).store().open().await.unwrap();
    assert!(matches!(Durable::sqlite(&path).store().open().await, Err(Error::Unavailable(_))));
    drop(first);
    // The thread ends in its own time.
    let newer = loop {
        match rusqlite::Connection::open(&path).and_then(|file| {
            file.pragma_update(None, "user_version", 99)?;
            Ok(())
        }) {
            Ok(()) => break Durable::sqlite(&path).store().open().await,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(matches!(newer, Err(Error::NewerSchema { found: 99, known: 2 })), "{newer:?}");
}

/// Goes back to the tables of version 1, as the README says, and forth again.
#[tokio::test]
async fn a_file_of_version_1_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    drop(Durable::sqlite(&path).store().open().await.unwrap());
    let back = "BEGIN EXCLUSIVE; ALTER TABLE timer DROP COLUMN crashes; PRAGMA user_version = 1;
        UPDATE owner SET epoch = 7;
        INSERT INTO timer (due, id, claim, attempts, key, payload)
            VALUES (1, 1, 7, 1, 'old', x'78');
        COMMIT;";
    // The thread ends in its own time.
    while rusqlite::Connection::open(&path).and_then(|file| file.execute_batch(back)).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let timer = Timer::builder().start().unwrap();
    let (sender, mut fired) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |due: tickwheel_durable::Due| {
        sender.send((due.key.unwrap(), due.attempt)).unwrap();
        async { Outcome::Done }
    };
    let node = Durable::sqlite(&path).start(&timer, handler).await.unwrap();
    assert_eq!(fired.recv().await.unwrap(), ("old".to_owned(), 2));
    node.drain().await;
}

#[tokio::test]
async fn timers_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let timer = Timer::builder().start().unwrap();
    let (sender, mut fired) = tokio::sync::mpsc::unbounded_channel();
    let start = || {
        let sender = sender.clone();
        let handler = move |due: tickwheel_durable::Due| {
            sender.send(due.key.unwrap()).unwrap();
            async { Outcome::Done }
        };
        Durable::sqlite(&path).start(&timer, handler)
    };
    let node = start().await.unwrap();
    for (key, delay) in [("soon", 400), ("later", 700)] {
        node.schedule(Entry::keyed(key, Duration::from_millis(delay), "x")).await.unwrap();
    }
    node.drain().await;
    drop(node);
    tokio::time::sleep(Duration::from_millis(500)).await; // It falls due meanwhile.
    let node = start().await.unwrap();
    assert_eq!(fired.recv().await.unwrap(), "soon");
    assert_eq!(fired.recv().await.unwrap(), "later");
    assert!(node.get("soon").await.unwrap().is_none());
}

#[tokio::test]
async fn one_poison_timer_takes_no_neighbour_along() {
    let folder = tempfile::tempdir().unwrap();
    poison::takes_no_neighbour_along(|| {
        Durable::sqlite(folder.path().join("timers")).lease(Duration::from_millis(500))
    })
    .await;
}
