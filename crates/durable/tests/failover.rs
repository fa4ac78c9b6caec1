//! Connections to a server that takes no writes any more, and to one that has taken its place.

#[path = "common/postgres.rs"]
mod helpers;
#[path = "common/server.rs"]
mod server;

use helpers::{client, name, next, node_at};
use server::Server;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::time::Duration;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::store::{KeyName, NewRow, NodeId, Store};
use tickwheel_durable::{Durable, Entry, Error, OpenStore, StoreTime};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;
use tokio::time::timeout;
use tokio_postgres::{Client, Config};

/// Returns an address that leads to whatever port this is as a connection is made.
async fn moving(port: &Arc<AtomicU16>) -> Config {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = server::config(listener.local_addr().unwrap().port());
    let port = Arc::clone(port);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let Ok(mut far) = TcpStream::connect(("127.0.0.1", port.load(SeqCst))).await else {
                continue;
            };
            tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
        }
    });
    config
}

/// Calls all that a user calls, by each connection for that.
async fn calls(node: &Durable<Postgres>) -> Vec<Result<(), Error>> {
    let (mut answers, hour) = (Vec::new(), Duration::from_secs(3_600));
    for _ in 0..2 {
        answers.push(node.schedule(Entry::keyed("a", hour, "x")).await.map(drop));
        answers.push(node.touch("a", hour).await.map(drop));
        answers.push(node.get("a").await.map(drop));
        answers.push(node.pause(Some("tag"), hour).await.map(drop));
        answers.push(node.pauses().await.map(drop));
        answers.push(node.cancel("a").await.map(drop));
    }
    answers
}

/// Seen to fail: all calls of users failed until the node was started again, or were told what the
/// standby knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_finds_the_server_that_was_promoted() {
    let old = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let new = Server::standby(&old).unwrap();
    let port = |server: &Server| server.config().get_ports()[0];
    let address = Arc::new(AtomicU16::new(port(&old)));
    let (node, mut fired) = node_at(moving(&address).await, &name()).await;
    node.schedule(Entry::keyed("before", Duration::from_secs(5), "x"))
        .await
        .unwrap();
    assert!(calls(&node).await.iter().all(Result::is_ok));
    block_in_place(|| {
        old.shut_down().unwrap();
        new.promote().unwrap();
        old.follow(&new).unwrap();
    });
    let refused = |answer: &Result<(), Error>| matches!(answer, Err(Error::Unavailable(_)));
    calls(&node).await; // What was lost with the old connections is uncertain.
    assert!(
        calls(&node).await.iter().all(refused),
        "it leads to a standby"
    );
    address.store(port(&new), SeqCst);
    for answer in calls(&node).await {
        answer.unwrap();
    }
    assert_eq!(next(&mut fired).await.key.unwrap(), "before");
    node.schedule(Entry::keyed("after", Duration::ZERO, "x"))
        .await
        .unwrap();
    assert_eq!(next(&mut fired).await.key.unwrap(), "after");
}

async fn backends(client: &Client) -> HashSet<i32> {
    let sql = "SELECT pid FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    client
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Asks by each connection that writes for users, and by that of the lease. Returns how many fail.
async fn ask(store: &Postgres) -> usize {
    let (node, lease) = (NodeId(1), Duration::from_secs(60));
    let key = KeyName {
        slot: store.slot(0),
        key: "a".to_owned(),
    };
    let mut failed = usize::from(store.renew(node, lease).await.is_err());
    for _ in 0..2 {
        let mut row = NewRow {
            key: Some(key.key.clone()),
            ..NewRow::default()
        };
        row.place.slot = key.slot;
        failed += usize::from(store.schedule(node, vec![row]).await.is_err());
        failed += usize::from(
            store
                .touch(vec![(key.clone(), StoreTime::MAX)])
                .await
                .is_err(),
        );
        failed += usize::from(store.cancel(vec![key.clone()]).await.is_err());
        failed += usize::from(store.pause(None, None).await.is_err());
        failed += usize::from(store.get(key.clone()).await.is_err()); // So that each turns.
    }
    failed
}

/// Has the server say these things by a trigger, after which it keeps the connection.
/// Seen to fail: so did the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_dropped_after_what_its_server_says() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let store = Durable::postgres(server.config())
        .namespace(name())
        .store()
        .open()
        .await
        .unwrap();
    let client = client(&server).await;
    let mut says = "CREATE TABLE said (code text);
        CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF (SELECT code FROM said) IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = (SELECT code FROM said);
            END IF;
            RETURN NULL;
        END $$;"
        .to_owned();
    for table in ["timer", "pause", "member"] {
        says += &format!(
            "CREATE TRIGGER say BEFORE INSERT OR UPDATE OR DELETE ON tickwheel.{table}
            FOR EACH STATEMENT EXECUTE FUNCTION say();"
        );
    }
    client.batch_execute(&says).await.unwrap();
    let end = [
        "25006", "57P01", "57P02", "57P03", "0A000", "26000", "08006",
    ]
    .map(|code| (code, 3));
    for (code, gone) in end.into_iter().chain([("P0001", 0), ("57014", 0)]) {
        client.batch_execute("DELETE FROM said").await.unwrap();
        assert_eq!(ask(&store).await, 0);
        let before = backends(&client).await;
        let say = "INSERT INTO said VALUES ($1)";
        client.execute(say, &[&code]).await.unwrap();
        assert_eq!(ask(&store).await, 9, "{code}");
        let all_gone = async {
            while before.difference(&backends(&client).await).count() < gone {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), all_gone)
            .await
            .expect(code);
        assert_eq!(
            before.difference(&backends(&client).await).count(),
            gone,
            "{code}"
        );
    }
}
