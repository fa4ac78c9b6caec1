//! Files that are opened again, by others, or not at all.

use crate::{HOUR, open, until};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Entry, Error, Outcome};
use tokio::sync::mpsc::unbounded_channel;

const PATH: &str = "TICKWHEEL_SECOND_PATH";

/// Runs in a process of its own.
#[tokio::test]
async fn second() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    match open(path.as_ref()).await {
        Ok(_) => println!("it is opened"),
        Err(error) => println!("it is refused: {error}"),
    }
}

/// Returns what another process says that opens the file.
async fn other(path: &Path) -> String {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "opened::second", "--nocapture"]);
    other.env(PATH, path);
    // This thread has the tasks of a node that was dropped, which end meanwhile.
    let output = tokio::task::spawn_blocking(move || other.output());
    String::from_utf8(output.await.unwrap().unwrap().stdout).unwrap()
}

#[tokio::test]
async fn a_second_process_is_refused_also_after_somebody_has_read_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let node = open(&path).await.unwrap();
    assert!(other(&path).await.contains("has the file open"));
    // As a copy, a checksum, or a look at its health does.
    drop(File::open(&path).unwrap());
    drop(File::open(folder.path().join("timers-lock")).unwrap());
    assert!(other(&path).await.contains("has the file open"));
    drop(node);
    assert!(other(&path).await.contains("it is opened"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_node_is_refused_by_another_name_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let (node, _calls) = open(&path).await.unwrap();
    node.drain().await; // It has the file all the same.
    let linked = folder.path().join("linked");
    std::os::unix::fs::symlink(&path, &linked).unwrap();
    let refused = open(&linked).await.unwrap_err().to_string();
    assert!(refused.contains("drop all of its clones"), "{refused}");
    assert!(!folder.path().join("linked-lock").exists());
}

/// Seen to fail: some of them asked the store first.
#[tokio::test]
async fn a_drained_node_refuses_each_change_without_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let (node, _calls) = open(&path).await.unwrap();
    node.drain().await;
    fs::remove_file(&path).unwrap();
    until(async || node.get("a").await.is_err()).await; // The store is closed.
    let changes = [
        node.cancel_tag("a").await.map(drop),
        node.touch_tag("a", HOUR).await.map(drop),
        node.requeue(7).await.map(drop),
        node.requeue_all(None).await.map(drop),
        node.delete_dead(Some("a")).await.map(drop),
        node.pause(None, HOUR).await,
        node.resume(Some("a")).await.map(drop),
    ];
    for change in changes {
        assert!(matches!(change, Err(Error::Closed)), "{change:?}");
    }
}

#[tokio::test]
async fn what_a_dropped_node_had_is_run_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let timer = Timer::builder().start().unwrap();
    let (tell, mut begun) = unbounded_channel();
    let handler = move |due: Due| {
        let _ = tell.send(due.key);
        std::future::pending()
    };
    let node = Durable::sqlite(&path).start(&timer, handler).await.unwrap();
    let entries = ["a", "b"].map(|key| Entry::keyed(key, Duration::ZERO, key).tag("t"));
    node.schedule_many(entries.to_vec()).await.unwrap();
    begun.recv().await.unwrap();
    begun.recv().await.unwrap();
    node.schedule(Entry::keyed("b", Duration::ZERO, "next"))
        .await
        .unwrap();
    node.schedule(Entry::keyed("c", HOUR, "far").debounce(HOUR))
        .await
        .unwrap();
    drop(node);
    let (node, mut calls) = open(&path).await.unwrap();
    let mut got = Vec::new();
    for _ in 0..2 {
        let due = calls.next().await;
        got.push((due.key.unwrap(), due.payload, due.tag, due.attempt));
    }
    got.sort();
    let expected = [
        ("a".to_owned(), b"a".to_vec(), Some("t".to_owned()), 1),
        ("b".to_owned(), b"next".to_vec(), None, 1),
    ];
    assert_eq!(got, expected);
    let far = node.get("c").await.unwrap().unwrap();
    assert_eq!((&*far.payload, far.running), (&b"far"[..], false));
    node.drain().await;
}

#[tokio::test]
async fn a_copy_has_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _calls) = open(&folder.path().join("timers")).await.unwrap();
    node.schedule(Entry::keyed("a", HOUR, "x")).await.unwrap();
    let copy = folder.path().join("copy");
    node.backup(&copy).await.unwrap();
    let again = node.backup(&copy).await;
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    node.cancel("a").await.unwrap();
    let (copied, mut calls) = open(&copy).await.unwrap();
    assert_eq!(copied.get("a").await.unwrap().unwrap().payload, b"x");
    copied.touch("a", Duration::ZERO).await.unwrap();
    assert_eq!(calls.next().await.payload, b"x");
    assert_eq!(node.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn other_versions_and_damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let (node, _calls) = open(&path).await.unwrap();
    let entries = (0..200).map(|number| Entry::keyed(number.to_string(), HOUR, [7; 1_000]));
    node.schedule_many(entries.collect()).await.unwrap();
    let earlier = folder.path().join("earlier");
    let damaged = folder.path().join("damaged");
    node.backup(&earlier).await.unwrap();
    node.backup(&damaged).await.unwrap();
    let file = rusqlite::Connection::open(&earlier).unwrap();
    file.execute("UPDATE tickwheel_version SET version = 6", [])
        .unwrap();
    drop(file);
    let refused = open(&earlier).await.unwrap_err();
    assert!(
        matches!(refused, Error::UnknownSchema { found: 6, known: 1 }),
        "{refused}"
    );
    let mut bytes = fs::read(&damaged).unwrap();
    let half = bytes.len() / 2;
    bytes[half..half + 4_096].fill(0xff);
    fs::write(&damaged, bytes).unwrap();
    let refused = open(&damaged).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)));
    assert!(refused.to_string().contains("damaged"), "{refused}");
}

#[tokio::test]
async fn nothing_is_made_where_tables_must_exist() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own");
    let timer = Timer::builder().start().unwrap();
    let existing = || Durable::sqlite(&path).existing_tables();
    let done = |_| async { Outcome::Done };
    let missing = existing().start(&timer, done).await.unwrap_err();
    assert!(matches!(missing, Error::Unavailable(_)), "{missing}");
    assert!(!path.exists());
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch("CREATE TABLE orders (number INTEGER)")
        .unwrap();
    drop(file);
    let own = fs::read(&path).unwrap();
    let refused = existing().start(&timer, done).await.unwrap_err();
    assert!(
        matches!(refused, Error::UnknownSchema { found: 0, known: 1 }),
        "{refused}"
    );
    assert!(fs::read(&path).unwrap() == own, "it is as it was");
    drop(open(&path).await.unwrap());
    existing().start(&timer, done).await.unwrap();
}

#[tokio::test]
async fn a_path_without_a_folder_is_refused() {
    for path in ["", "/nowhere/timers", "file:/nowhere/timers?mode=memory"] {
        let refused = open(path.as_ref()).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{path:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path()).await.err().unwrap().to_string();
    assert!(error.contains("no file"), "{error}");
    let parent = folder.path().parent().unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    assert!(!parent.join(format!("{name}-lock")).exists());
}

/// As a function or an order of text that only the user's own connection has.
#[tokio::test]
async fn a_table_of_the_user_s_that_nobody_else_can_read_keeps_no_node_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timers");
    let (node, _calls) = open(&path).await.unwrap();
    node.schedule(Entry::keyed("a", HOUR, "x")).await.unwrap();
    drop(node);
    until(async || {
        rusqlite::Connection::open(&path).is_ok_and(|file| {
            let own = "CREATE TABLE own (mail TEXT CHECK (length(mail) > 2));
            INSERT INTO own VALUES ('a@b');
            PRAGMA writable_schema = ON;
            UPDATE sqlite_schema SET sql = replace(sql, 'length', 'is_mail') WHERE name = 'own'";
            file.execute_batch(own).is_ok()
        })
    })
    .await;
    let (node, _calls) = open(&path).await.unwrap();
    assert!(node.get("a").await.unwrap().is_some());
}
