//! Timers inside users' transactions.

use crate::{HOUR, open, until};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::{Sqlite, Transaction};
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, Outcome, Scheduled, Series, Touched,
};
use tokio::sync::mpsc::unbounded_channel;

async fn make_table(node: &Durable<Sqlite>) {
    node.transact(|transaction| {
        let sql = "CREATE TABLE orders (number INTEGER PRIMARY KEY) STRICT;
            INSERT INTO orders VALUES (1)";
        transaction.connection().execute_batch(sql)?;
        Ok::<_, Error>(())
    })
    .await
    .unwrap();
}

async fn count(node: &Durable<Sqlite>) -> i64 {
    let count = |transaction: &mut Transaction<'_>| {
        let file = transaction.connection();
        Ok::<_, Error>(file.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?)
    };
    node.transact(count).await.unwrap()
}

#[tokio::test]
async fn a_transaction_does_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _calls) = open(&folder.path().join("timers")).await.unwrap();
    make_table(&node).await;
    node.schedule(Entry::keyed("moved", HOUR, "x"))
        .await
        .unwrap();
    node.schedule(Entry::keyed("gone", HOUR, "y"))
        .await
        .unwrap();
    let change = |transaction: &mut Transaction<'_>| {
        let file = transaction.connection();
        file.execute("INSERT INTO orders VALUES (2)", [])?;
        let answers = (
            transaction.schedule(Entry::keyed("new", HOUR, "z"))?,
            transaction.touch("moved", 2 * HOUR)?,
            transaction.cancel("gone")?,
        );
        Ok::<_, Error>(answers)
    };
    let before = node.get("moved").await.unwrap();
    let failed = node.transact(move |transaction| {
        change(transaction)?;
        Err::<(), _>(Error::Fenced)
    });
    assert!(matches!(failed.await, Err(Error::Fenced)));
    let failing = node.clone();
    let panicked = tokio::spawn(async move {
        failing
            .transact::<(), Error>(move |transaction| {
                change(transaction)?;
                panic!("as it is meant to");
            })
            .await
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert_eq!(node.get("new").await.unwrap(), None);
    assert_eq!(node.get("moved").await.unwrap(), before);
    assert!(node.get("gone").await.unwrap().is_some());
    assert_eq!(count(&node).await, 1);
    let answers = node.transact(change).await.unwrap();
    let gone = Cancelled::Cancelled(b"y".to_vec());
    assert_eq!(answers, (Scheduled::New, Touched::Moved, gone));
    assert!(node.get("new").await.unwrap().is_some());
    assert!(node.get("moved").await.unwrap().unwrap().at > before.unwrap().at);
    assert_eq!(node.get("gone").await.unwrap(), None);
    assert_eq!(count(&node).await, 2);
}

#[tokio::test]
async fn nothing_is_done_once_a_statement_has_ended_the_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _calls) = open(&folder.path().join("timers")).await.unwrap();
    make_table(&node).await;
    for statements in [
        "INSERT OR ROLLBACK INTO orders VALUES (1)",
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "COMMIT",
        "COMMIT; BEGIN",
        "INSERT INTO orders VALUES (3); COMMIT",
    ] {
        let ended = node.transact(move |transaction| {
            transaction.schedule(Entry::keyed("before", HOUR, "x"))?;
            // Whoever does not look at what it answers.
            let _ = transaction.connection().execute_batch(statements);
            let _ = transaction
                .connection()
                .execute("INSERT INTO orders VALUES (2)", []);
            let after = transaction.schedule(Entry::keyed("after", HOUR, "x"));
            assert!(matches!(after, Err(Error::Refused(_))), "{after:?}");
            let after = transaction.cancel("before");
            assert!(matches!(after, Err(Error::Refused(_))), "{after:?}");
            Ok::<_, Error>(())
        });
        let ended = ended.await;
        assert!(
            matches!(ended, Err(Error::Refused(_))),
            "{statements}: {ended:?}"
        );
        assert_eq!(node.get("before").await.unwrap(), None, "{statements}");
        assert_eq!(node.get("after").await.unwrap(), None, "{statements}");
        assert_eq!(count(&node).await, 1, "{statements}");
    }
    // Part of a transaction may be taken back.
    node.transact(|transaction| {
        let file = transaction.connection();
        file.execute_batch("SAVEPOINT part; INSERT INTO orders VALUES (2); ROLLBACK TO part")?;
        transaction.schedule(Entry::keyed("kept", HOUR, "x"))
    })
    .await
    .unwrap();
    assert!(node.get("kept").await.unwrap().is_some());
    assert_eq!(count(&node).await, 1);
}

/// An error whose conversion panics, and an answer whose drop does.
#[derive(Debug)]
struct Bomb;

impl From<Error> for Bomb {
    fn from(_: Error) -> Self {
        panic!("as it is meant to");
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("as it is meant to");
    }
}

#[tokio::test]
async fn a_panic_in_the_caller_s_types_does_not_end_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _calls) = open(&folder.path().join("timers")).await.unwrap();
    let failing = node.clone();
    let converted = tokio::spawn(async move {
        failing
            .transact::<(), Bomb>(|transaction| {
                transaction.connection().execute_batch("ROLLBACK").unwrap();
                Ok(())
            })
            .await
            .is_ok()
    });
    assert!(converted.await.unwrap_err().is_panic());
    // Asks, and is dropped before the answer.
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let dropped = node.transact(move |_| {
        let _ = gone.recv();
        Ok::<_, Error>(Bomb)
    });
    let asked = tokio::time::timeout(Duration::from_millis(10), dropped).await;
    assert!(asked.is_err());
    drop(go);
    assert!(node.get("any").await.unwrap().is_none());
}

#[tokio::test]
async fn a_constraint_that_is_checked_last_takes_the_timers_back() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _calls) = open(&folder.path().join("timers")).await.unwrap();
    let refused = node.transact(|transaction| {
        transaction.connection().execute_batch(
            "PRAGMA defer_foreign_keys = ON;
            CREATE TABLE one (number INTEGER PRIMARY KEY);
            CREATE TABLE other (number REFERENCES one DEFERRABLE INITIALLY DEFERRED);
            INSERT INTO other VALUES (7)",
        )?;
        transaction.schedule(Entry::keyed("a", HOUR, "x"))
    });
    let refused = refused.await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert_eq!(node.get("a").await.unwrap(), None);
}

/// The effect and the acknowledgement are one; a key that was scheduled meanwhile is next.
#[tokio::test]
async fn an_acknowledgement_commits_with_its_effect() {
    let folder = tempfile::tempdir().unwrap();
    let timer = Timer::builder().start().unwrap();
    let (tell, mut calls) = unbounded_channel();
    let handler = move |due: Due| {
        let tell = tell.clone();
        async move {
            let node = due.node::<Sqlite>().unwrap();
            if due.payload == b"first" {
                let next = Entry::keyed("a", Duration::ZERO, "second");
                node.schedule(next).await.unwrap();
            }
            let own = due.clone();
            let done = node.transact(move |transaction| {
                let file = transaction.connection();
                file.execute("INSERT INTO orders (number) VALUES (NULL)", [])?;
                transaction.ack(&own)
            });
            done.await.unwrap();
            let own = due.clone();
            let again = node.transact(move |transaction| {
                let file = transaction.connection();
                file.execute("INSERT INTO orders (number) VALUES (NULL)", [])?;
                transaction.ack(&own)
            });
            tell.send((due.payload, matches!(again.await, Err(Error::Fenced))))
                .unwrap();
            Outcome::Done
        }
    };
    let node = Durable::sqlite(folder.path().join("timers"));
    let node = node.start(&timer, handler).await.unwrap();
    make_table(&node).await;
    node.schedule(Entry::keyed("a", Duration::ZERO, "first"))
        .await
        .unwrap();
    assert_eq!(calls.recv().await.unwrap(), (b"first".to_vec(), true));
    assert_eq!(calls.recv().await.unwrap(), (b"second".to_vec(), true));
    assert_eq!(count(&node).await, 3);
    node.drain().await;
    assert_eq!(node.get("a").await.unwrap(), None);
}

/// Its next timer takes the place of its claim, which had not run out.
#[tokio::test]
async fn a_handler_that_goes_on_after_its_acknowledgement_has_lost_no_claim() {
    let folder = tempfile::tempdir().unwrap();
    let timer = Timer::builder().start().unwrap();
    let handler = |due: Due| async move {
        let node = due.node::<Sqlite>().unwrap();
        let is_first = due.payload == b"first";
        node.transact(move |transaction| {
            transaction.ack(&due)?;
            if is_first {
                transaction.schedule(Entry::keyed("series", Duration::ZERO, "next"))?;
            }
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
        while is_first && node.stats().claimed < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Outcome::Done
    };
    let path = folder.path().join("timers");
    let node = Durable::sqlite(path).start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("series", Duration::ZERO, "first"))
        .await
        .unwrap();
    until(async || node.stats().claimed == 2 && node.stats().in_flight == 0).await;
    node.drain().await;
    assert_eq!((node.stats().claims_lost, node.stats().panicked), (0, 0));
}

/// A run that was cancelled meanwhile does not come again.
#[tokio::test]
async fn a_series_goes_on_in_a_transaction_until_it_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let timer = Timer::builder().start().unwrap();
    let handler = |due: Due| async move {
        let node = due.node::<Sqlite>().unwrap();
        if due.payload == b"3" {
            assert_eq!(node.cancel("series").await.unwrap(), Cancelled::Running);
        }
        let again = node.transact(move |transaction| {
            let series = Series::every(Duration::from_millis(1));
            let run: u8 = str::from_utf8(&due.payload).unwrap().parse().unwrap();
            transaction.again(&due, series.next_time(&due), (run + 1).to_string())
        });
        again.await.unwrap();
        Outcome::Done
    };
    let path = folder.path().join("timers");
    let node = Durable::sqlite(path).start(&timer, handler).await.unwrap();
    let first = Entry::keyed("series", Duration::ZERO, "1");
    node.schedule(first).await.unwrap();
    until(async || node.get("series").await.unwrap().is_none()).await;
    node.drain().await;
    let stats = node.stats();
    assert_eq!((stats.claimed, stats.done, stats.panicked), (3, 3, 0));
}
