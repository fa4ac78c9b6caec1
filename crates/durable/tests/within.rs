//! Timers inside a transaction of the user's own: on a file, on PostgreSQL, and by plain SQL.

#[path = "common/postgres.rs"]
mod helpers;
#[path = "common/server.rs"]
mod server;

use helpers::{client, name, next, node};
use server::{Server, connect};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::{Sqlite, Transaction};
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, Outcome, Scheduled, Search, Touched,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

const HOUR: Duration = Duration::from_secs(3_600);

/// What a handler was given, and who waits for its outcome.
type Running = mpsc::UnboundedReceiver<(Due, oneshot::Sender<Outcome>)>;

/// Opens a node whose handler waits for what the test answers, and a table of orders beside it.
async fn file(path: &Path, timer: &Timer) -> (Durable<Sqlite>, Running) {
    let (sender, running) = mpsc::unbounded_channel();
    let handler = move |due| {
        let (answer, outcome) = oneshot::channel();
        let _ = sender.send((due, answer));
        async { outcome.await.unwrap_or(Outcome::Done) }
    };
    let node = loop {
        match Durable::sqlite(path).start(timer, handler.clone()).await {
            Ok(node) => break node,
            // The thread of a former node ends in its own time.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let table = "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY)";
    let made = node
        .transact(|own| Ok::<_, Error>(own.connection().execute_batch(table)?))
        .await;
    made.unwrap();
    (node, running)
}

async fn running(running: &mut Running) -> (Due, oneshot::Sender<Outcome>) {
    let due = tokio::time::timeout(Duration::from_secs(60), running.recv()).await;
    due.expect("it fires").expect("the node is there")
}

async fn orders(node: &Durable<Sqlite>) -> i64 {
    let count = |file: &rusqlite::Connection| {
        file.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
    };
    node.transact(move |own| Ok::<_, Error>(count(own.connection())?))
        .await
        .unwrap()
}

/// Inserts an order and schedules its timer, in a transaction.
async fn order(node: Durable<Sqlite>, number: i64) -> Result<Scheduled, Error> {
    node.transact(move |own| {
        let scheduled = own.schedule(Entry::keyed(format!("{number}"), HOUR, "x"))?;
        own.connection()
            .execute("INSERT INTO orders VALUES (?)", [number])?;
        Ok(scheduled)
    })
    .await
}

#[tokio::test]
async fn on_a_file_all_of_a_transaction_is_done_or_nothing() {
    let (folder, timer) = (
        tempfile::tempdir().unwrap(),
        Timer::builder().start().unwrap(),
    );
    let (node, mut handlers) = file(&folder.path().join("timers"), &timer).await;
    // All at once: those that fail take nobody along.
    let all: JoinSet<_> = (0..100).map(|n| order(node.clone(), n / 2)).collect();
    let answers = all.join_all().await;
    let done = answers
        .iter()
        .filter(|answer| matches!(answer, Ok(Scheduled::New)))
        .count();
    let refused = answers
        .iter()
        .filter(|answer| matches!(answer, Err(Error::Refused(_))))
        .count();
    assert_eq!(
        (done, refused, orders(&node).await, node.stats().scheduled),
        (50, 50, 50, 50)
    );
    what_fails_or_panics_is_taken_back(&node).await;
    let changed = node.transact(|own| {
        own.cancel("0")?;
        own.touch("1", Duration::ZERO)
    });
    assert_eq!(changed.await.unwrap(), Touched::Moved);
    let (due, outcome) = running(&mut handlers).await;
    assert_eq!(
        (due.key.as_deref(), node.get("0").await.unwrap()),
        (Some("1"), None)
    );
    let late = node.transact(|own| Ok::<_, Error>((own.cancel("1")?, own.touch("1", HOUR)?)));
    assert_eq!(late.await.unwrap(), (Cancelled::Running, Touched::Running));
    outcome.send(Outcome::Done).unwrap();
    node.drain().await;
    let closed = node
        .transact(|own| own.schedule(Entry::unkeyed(HOUR, "x")))
        .await;
    assert!(matches!(closed, Err(Error::Closed)));
}

async fn what_fails_or_panics_is_taken_back(node: &Durable<Sqlite>) {
    let changed = node.transact(|own| {
        assert_eq!(own.cancel("0")?, Cancelled::Cancelled(b"x".to_vec()));
        assert_eq!(own.touch("1", Duration::ZERO)?, Touched::Moved);
        assert_eq!(
            (own.cancel("z")?, own.touch("z", HOUR)?),
            (Cancelled::Unknown, Touched::Unknown)
        );
        Err::<(), _>(Error::Closed)
    });
    assert!(matches!(changed.await, Err(Error::Closed)));
    assert!(node.get("0").await.unwrap().is_some(), "it was rolled back");
    let panics = node.clone();
    let panics = tokio::spawn(async move {
        panics
            .transact(|own| {
                own.cancel("0")?;
                own.connection().execute("DELETE FROM orders", [])?;
                panic!("as it should");
                #[expect(unreachable_code, reason = "it says what the type is")]
                Ok::<(), Error>(())
            })
            .await
    });
    assert!(panics.await.unwrap_err().is_panic());
    assert_eq!(
        (node.get("0").await.unwrap().is_some(), orders(node).await),
        (true, 50)
    );
}

/// Fails where all that is asked for waits for one: as it is committed, and with a roll-back by
/// SQLite itself.
/// Seen to fail: all were told that another one had failed, or that their answers were lost, and
/// nothing of theirs was done.
#[tokio::test]
async fn on_a_file_what_its_commit_refuses_takes_nobody_along() {
    let (folder, timer) = (
        tempfile::tempdir().unwrap(),
        Timer::builder().start().unwrap(),
    );
    let (node, _handlers) = file(&folder.path().join("timers"), &timer).await;
    let table =
        "CREATE TABLE item (number INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)";
    node.transact(|own| Ok::<_, Error>(own.connection().execute_batch(table)?))
        .await
        .unwrap();
    let (go, gone) = std::sync::mpsc::channel();
    let waits = node.transact(move |_| gone.recv().map_err(|_| Error::Closed));
    let add = |sql: &'static str, key: &'static str| {
        node.transact(move |own| {
            own.schedule(Entry::keyed(key, HOUR, "x"))?;
            own.connection().execute(sql, [])?;
            own.connection().execute(sql, [])?;
            own.schedule(Entry::unkeyed(HOUR, "x"))
        })
    };
    let bad = add("INSERT INTO item VALUES (77)", "bad");
    let rolled_back = add("INSERT OR ROLLBACK INTO orders VALUES (1)", "rolled back");
    let beside = node.transact(|own| own.schedule(Entry::keyed("beside", HOUR, "x")));
    let (_, bad, rolled_back, beside, ()) = tokio::join!(waits, bad, rolled_back, beside, async {
        go.send(()).unwrap()
    });
    assert_eq!(beside.unwrap(), Scheduled::New);
    for (answer, reason) in [
        (bad, "FOREIGN KEY constraint"),
        (rolled_back, "UNIQUE constraint"),
    ] {
        let error = answer.unwrap_err();
        assert!(
            matches!(error, Error::Refused(_)) && error.to_string().contains(reason),
            "{error}"
        );
    }
    let there = node.list(tickwheel_durable::Search::new(9)).await.unwrap();
    let keys: Vec<_> = there.iter().map(|timer| timer.key.as_deref()).collect();
    assert_eq!((keys, orders(&node).await), (vec![Some("beside")], 0));
    assert_eq!((node.stats().scheduled, node.stats().errors), (1, 0));
}

#[tokio::test]
async fn a_file_is_copied_while_its_node_runs() {
    let (folder, timer) = (
        tempfile::tempdir().unwrap(),
        Timer::builder().start().unwrap(),
    );
    let (node, mut handlers) = file(&folder.path().join("timers"), &timer).await;
    order(node.clone(), 7).await.unwrap();
    node.schedule(Entry::keyed("runs", Duration::ZERO, "x"))
        .await
        .unwrap();
    let (due, outcome) = running(&mut handlers).await;
    let copy = folder.path().join("the node's copy");
    node.backup(&copy).await.unwrap();
    for refused in [&copy, Path::new(""), &folder.path().join("no/folder")] {
        let answer = node.backup(refused).await;
        assert!(
            matches!(answer, Err(Error::Refused(_))),
            "{refused:?}: {answer:?}"
        );
    }
    // The node goes on, and the copy has what there was.
    outcome.send(Outcome::Done).unwrap();
    node.cancel("7").await.unwrap();
    node.drain().await;
    assert_eq!((node.stats().done, node.stats().errors), (1, 0));
    let (node, mut handlers) = file(&copy, &timer).await;
    let (again, _) = running(&mut handlers).await;
    assert_eq!(
        (again.id, again.attempt, orders(&node).await),
        (due.id, 2, 1)
    );
    assert!(node.get("7").await.unwrap().is_some());
}

/// A claim of a process that has gone acknowledges nothing any more; its effect is taken back.
#[tokio::test]
async fn on_a_file_an_effect_happens_once() {
    let (folder, timer) = (
        tempfile::tempdir().unwrap(),
        Timer::builder().start().unwrap(),
    );
    let path = folder.path().join("timers");
    let (node, mut handlers) = file(&path, &timer).await;
    node.schedule(Entry::keyed("a", Duration::ZERO, "x"))
        .await
        .unwrap();
    let (stale, _) = running(&mut handlers).await;
    drop((node, handlers)); // As a crash does.
    let (node, mut handlers) = file(&path, &timer).await;
    let (due, outcome) = running(&mut handlers).await;
    assert_eq!((due.id, due.attempt), (stale.id, 2));
    let ack = async |due: Due| {
        let effect = move |own: &mut Transaction<'_>| {
            own.connection()
                .execute("INSERT INTO orders VALUES (1)", [])?;
            own.ack(&due)
        };
        node.transact(effect).await
    };
    assert!(matches!(ack(stale).await, Err(Error::Fenced)));
    assert_eq!(orders(&node).await, 0);
    ack(due.clone()).await.unwrap();
    assert!(
        matches!(ack(due).await, Err(Error::Refused(_))),
        "the order is there"
    );
    outcome.send(Outcome::Done).unwrap();
    node.drain().await;
    assert_eq!((node.stats().done, node.stats().errors), (1, 0));
}

/// Runs all tests on PostgreSQL on one server, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    what_a_transaction_cancels_or_moves_is_so_if_it_commits(&server).await;
    plain_sql_schedules_cancels_and_moves(&server).await;
    plain_sql_is_refused_what_it_may_not(&server).await;
    an_effect_and_its_acknowledgement_are_one(&server).await;
}

async fn what_a_transaction_cancels_or_moves_is_so_if_it_commits(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let mut client = client(server).await;
    for key in ["a", "b"] {
        node.schedule(Entry::keyed(key, HOUR, "x")).await.unwrap();
    }
    for commits in [false, true] {
        let own = client.transaction().await.unwrap();
        let cancelled = node.cancel_in(&own, "a").await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled(b"x".to_vec()));
        assert_eq!(node.cancel_in(&own, "a").await.unwrap(), Cancelled::Unknown);
        let moved = node.touch_in(&own, "b", Duration::ZERO).await.unwrap();
        assert_eq!(
            (moved, node.get("a").await.unwrap().is_some()),
            (Touched::Moved, true)
        );
        assert_eq!(
            node.touch_in(&own, "c", HOUR).await.unwrap(),
            Touched::Unknown
        );
        if commits {
            own.commit().await.unwrap()
        } else {
            own.rollback().await.unwrap()
        }
    }
    assert_eq!(next(&mut fired).await.key.as_deref(), Some("b"));
    assert_eq!(
        (node.get("a").await.unwrap(), node.stats().cancelled),
        (None, 2)
    );
    let long = "x".repeat(513);
    let own = client.transaction().await.unwrap();
    assert!(matches!(
        node.cancel_in(&own, &long).await,
        Err(Error::BadName(_))
    ));
}

/// Asks for one value, by what other languages have as well.
async fn ask(client: &Client, call: &str) -> String {
    let row = client
        .query_one(&format!("SELECT tickwheel.{call}::text"), &[])
        .await;
    row.expect(call).get(0)
}

async fn plain_sql_schedules_cancels_and_moves(server: &Server) {
    let own = name();
    let (node, mut fired) = node(server, &own).await;
    let mut client = client(server).await;
    let long = "interval '1 hour' + clock_timestamp()";
    // Each key lies where the node looks for it.
    for key in ["", "a", "foobar", "Grüße", "order-7", &"k".repeat(512)] {
        let schedule = format!("schedule('{own}', '{key}', {long}, 'x', 'tag')");
        assert_eq!(ask(&client, &schedule).await, "false");
        assert_eq!(ask(&client, &schedule).await, "true", "it is replaced");
        assert!(
            node.list(Search::new(1)).await.unwrap()[0].id > 0,
            "as those that a node draws"
        );
        let pending = node.get(key).await.unwrap().expect(key);
        let in_an_hour = SystemTime::now() + HOUR;
        let late = in_an_hour
            .duration_since(pending.at.into())
            .unwrap_or_default();
        assert!(late < Duration::from_secs(60) && pending.payload == b"x");
        assert_eq!(
            node.schedule(Entry::keyed(key, HOUR, "")).await.unwrap(),
            Scheduled::Replaced
        );
        let cancel = format!("cancel('{own}', '{key}')");
        assert_eq!(ask(&client, &cancel).await, "cancelled");
        assert_eq!(
            (node.get(key).await.unwrap(), &*ask(&client, &cancel).await),
            (None, "unknown")
        );
    }
    let transaction = client.transaction().await.unwrap();
    let sql = "SELECT tickwheel.schedule($1, NULL, clock_timestamp(), 'no key')";
    transaction.query(sql, &[&own]).await.unwrap();
    transaction.commit().await.unwrap();
    let due = next(&mut fired).await;
    assert_eq!((due.key, due.payload), (None, b"no key".to_vec()));
    ask(&client, &format!("schedule('{own}', 'a', {long}, 'x')")).await;
    let touch = |key| format!("touch('{own}', '{key}', clock_timestamp())");
    assert_eq!(ask(&client, &touch("b")).await, "unknown");
    assert_eq!(ask(&client, &touch("a")).await, "moved");
    assert_eq!(next(&mut fired).await.key.as_deref(), Some("a"));
    let claim = "UPDATE tickwheel.timer SET claim = 1::bigint << 60 WHERE key = 'held'";
    ask(&client, &format!("schedule('{own}', 'held', {long}, 'x')")).await;
    client.batch_execute(claim).await.unwrap();
    assert_eq!(ask(&client, &touch("held")).await, "running");
    assert_eq!(
        ask(&client, &format!("cancel('{own}', 'held')")).await,
        "running"
    );
    client
        .batch_execute("DELETE FROM tickwheel.timer WHERE key = 'held'")
        .await
        .unwrap();
    node.drain().await;
}

/// Seen to fail: a time that is null was the year 5138, and other errors told of loops and numbers.
async fn plain_sql_is_refused_what_it_may_not(server: &Server) {
    let own = name();
    let (node, _fired) = node(server, &own).await;
    let client = client(server).await;
    let refused = async |call: &str, why: &str| {
        let error = client.batch_execute(call).await.expect_err(call);
        let told = error
            .as_db_error()
            .expect("the server's")
            .message()
            .to_owned();
        assert!(told.contains(why), "{told}");
        client.batch_execute("ROLLBACK").await.unwrap();
    };
    let call = |key: &str, payload: &str| {
        format!("SELECT tickwheel.schedule('{own}', {key}, clock_timestamp(), {payload})")
    };
    refused(
        "SELECT tickwheel.cancel('nobody', 'a')",
        "there is no namespace nobody",
    )
    .await;
    refused(
        &format!("SELECT tickwheel.cancel('{own}', NULL)"),
        "a key is null",
    )
    .await;
    refused(
        &format!("SELECT tickwheel.touch('{own}', NULL, now())"),
        "a key is null",
    )
    .await;
    node.schedule(Entry::keyed("live", HOUR, "x"))
        .await
        .unwrap();
    for time in ["NULL", "now() + NULL", "'infinity'", "'-infinity'"] {
        let call = format!("SELECT tickwheel.schedule('{own}', 'live', {time}, 'y')");
        refused(&call, "a time is null or infinite").await;
        let call = format!("SELECT tickwheel.touch('{own}', 'live', {time})");
        refused(&call, "a time is null or infinite").await;
    }
    let live = node.get("live").await.unwrap().unwrap();
    assert!(live.payload == b"x" && SystemTime::from(live.at) < SystemTime::now() + 2 * HOUR);
    refused(&call("repeat('x', 513)", "'x'"), "512 bytes").await;
    refused(
        &call("'a'", "convert_to(repeat('x', 1048577), 'UTF8')"),
        "1 MiB",
    )
    .await;
    // Far away: what is due at once might have ended by the time it is looked for.
    let far = format!("SELECT tickwheel.schedule('{own}', 'b', now() + interval '1 hour', 'x')");
    let past = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {far}; COMMIT");
    client.batch_execute(&past).await.unwrap();
    assert!(node.get("b").await.unwrap().is_some());
    client
        .batch_execute("BEGIN; DELETE FROM tickwheel.slot")
        .await
        .unwrap();
    refused(&call("'a'", "'x'"), "has lost slots").await;
    assert_eq!(node.get("a").await.unwrap(), None);
    node.drain().await;
}

/// Acknowledges by plain SQL.
async fn ack(
    on: &tokio_postgres::Transaction<'_>,
    name: &str,
    due: &Due,
) -> Result<u64, tokio_postgres::Error> {
    let (partition, at) = (due.token.partition as i32, due.at.as_micros());
    let sql = "SELECT tickwheel.ack($1, $2, $3, $4, $5)";
    on.execute(sql, &[&name, &partition, &at, &due.id, &due.token.epoch])
        .await
}

/// Checks that an acknowledgement of what is another's is refused, in Rust and by plain SQL.
async fn is_fenced(client: &mut Client, name: &str, due: &Due) {
    let answer = due.ack_in(&client.transaction().await.unwrap()).await;
    assert!(matches!(answer, Err(Error::Fenced)));
    for epoch in [due.token.epoch, 0] {
        let mut due = due.clone();
        due.token.epoch = epoch;
        let error = ack(&client.transaction().await.unwrap(), name, &due)
            .await
            .unwrap_err();
        assert_eq!(error.code().map(SqlState::code), Some("TW001"), "{error}");
    }
}

/// A handler takes so long that another node claims its timer, lets it go, and ends it; here that
/// is done by hand.
/// Seen to fail: nothing else on PostgreSQL noticed an acknowledgement without a fence.
async fn an_effect_and_its_acknowledgement_are_one(server: &Server) {
    let mut client = client(server).await;
    let retry = Outcome::RetryAt(Duration::ZERO.into(), String::new());
    for outcome in [Outcome::Done, retry, Outcome::Dead("".into())] {
        let timer = Timer::builder().start().unwrap();
        let (sender, mut fired) = mpsc::unbounded_channel();
        let (end, ended) = tokio::sync::watch::channel(false);
        let handler = move |due: Due| {
            let (sender, mut ended, outcome) = (sender.clone(), ended.clone(), outcome.clone());
            async move {
                sender.send(due).unwrap();
                ended.wait_for(|ended| *ended).await.unwrap();
                outcome
            }
        };
        let (name, key) = (name(), name());
        let node = Durable::postgres(server.config()).namespace(&name);
        let node = node.start(&timer, handler).await.unwrap();
        node.schedule(Entry::keyed(&key, Duration::ZERO, "x"))
            .await
            .unwrap();
        let due = next(&mut fired).await;
        for claim in ["0", "epoch + 1"] {
            let claim = format!(
                "UPDATE tickwheel.timer t SET claim = {claim} FROM tickwheel.slot s
                WHERE s.slot = t.slot AND key = $1"
            );
            assert_eq!(client.execute(&claim, &[&key]).await.unwrap(), 1);
            is_fenced(&mut client, &name, &due).await;
        }
        end.send(true).unwrap();
        node.drain().await;
        let sql = "SELECT claim <> 0 FROM tickwheel.timer WHERE key = $1";
        assert!(
            client
                .query_one(sql, &[&key])
                .await
                .unwrap()
                .get::<_, bool>(0)
        );
        client
            .execute("DELETE FROM tickwheel.timer WHERE key = $1", &[&key])
            .await
            .unwrap();
        is_fenced(&mut client, &name, &due).await;
    }
    client
        .batch_execute("CREATE TABLE effect (n int)")
        .await
        .unwrap();
    for plain in [false, true] {
        effects_happen_once(server, plain).await;
    }
}

/// Checks a handler that rolls its effect and the acknowledgement back, then commits them, and
/// returns `RetryAt` each time, as if the answer to its commit had been lost: nothing is left to
/// retry.
async fn effects_happen_once(server: &Server, plain: bool) {
    let timer = Timer::builder().start().unwrap();
    let (config, name) = (server.config(), name());
    let (sender, mut ran) = mpsc::unbounded_channel();
    let node = Durable::postgres(server.config()).namespace(&name);
    let handler = move |due: Due| {
        let (config, sender, name) = (config.clone(), sender.clone(), name.clone());
        async move {
            let mut client = connect(&config).await.unwrap();
            let transaction = client.transaction().await.unwrap();
            let effect = format!("INSERT INTO effect VALUES ({})", i32::from(plain));
            transaction.batch_execute(&effect).await.unwrap();
            match plain {
                true => drop(ack(&transaction, &name, &due).await.unwrap()),
                false => due.ack_in(&transaction).await.unwrap(),
            }
            match due.attempt {
                1 => transaction.rollback().await.unwrap(),
                _ => transaction.commit().await.unwrap(),
            }
            sender.send(()).unwrap();
            Outcome::RetryAt(Duration::ZERO.into(), String::new())
        }
    };
    let node = node.start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("a", Duration::ZERO, "x"))
        .await
        .unwrap();
    for _ in 0..2 {
        ran.recv().await.unwrap();
    }
    node.drain().await;
    let count = "SELECT count(*) FROM effect WHERE n = $1";
    let effects = client(server)
        .await
        .query_one(count, &[&i32::from(plain)])
        .await
        .unwrap();
    assert_eq!(effects.get::<_, i64>(0), 1);
    assert!(ran.try_recv().is_err());
}
