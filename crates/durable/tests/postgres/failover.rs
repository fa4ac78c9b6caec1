//! Servers that crash, and that others take the place of.

use crate::proxy::Proxy;
use crate::server::{Server, connect};
use crate::{HOUR, SERVER, builder, client, name, next_key, schedule, short, start, until};
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Durable, Entry, Error, Search};
use tokio::net::TcpListener;
use tokio::task::{JoinSet, block_in_place};
use tokio_postgres::Client;

/// Calls by each connection that users' calls have.
async fn calls(node: &Durable<Postgres>) -> Vec<Result<(), Error>> {
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(node.schedule(Entry::keyed("a", HOUR, "x")).await.map(drop));
        answers.push(node.touch("a", HOUR).await.map(drop));
        answers.push(node.get("a").await.map(drop));
        answers.push(node.pause(Some("tag"), HOUR).await);
        answers.push(node.pauses().await.map(drop));
        answers.push(node.cancel("a").await.map(drop));
        answers.push(node.list(Search::new(1)).await.map(drop));
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_finds_the_server_that_was_promoted() {
    let old = Server::start(&["fsync=off"]).unwrap();
    let new = Server::standby(&old).unwrap();
    let proxy = Proxy::start(&old, None).await;
    let (node, mut fired) = start(short(proxy.config(), &name())).await;
    schedule(&node, "before", Duration::from_secs(5)).await;
    for answer in calls(&node).await {
        answer.unwrap();
    }
    block_in_place(|| {
        old.shut_down().unwrap();
        new.promote().unwrap();
        old.follow(&new).unwrap();
    });
    calls(&node).await; // What was lost with the old connections is uncertain.
    let is_refused = |answer: &Result<(), Error>| matches!(answer, Err(Error::Unavailable(_)));
    let refused = calls(&node).await;
    assert!(refused.iter().all(is_refused), "by a standby: {refused:?}");
    proxy.lead_to(&new);
    for answer in calls(&node).await {
        answer.unwrap();
    }
    assert_eq!(next_key(&mut fired).await, "before");
    schedule(&node, "after", Duration::ZERO).await;
    assert_eq!(next_key(&mut fired).await, "after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_and_a_crash_lose_nothing() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let (node, mut fired) = start(short(server.config(), &name())).await;
    let entries = (0..200).map(|n| {
        let delay = Duration::from_millis(500 + 10 * n);
        Entry::keyed(n.to_string(), delay, "x")
    });
    node.schedule_many(entries.collect()).await.unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let client = connect(&server.config()).await.unwrap();
    client.batch_execute(cut).await.unwrap();
    let mut keys = HashSet::new();
    while keys.len() < 50 {
        keys.insert(next_key(&mut fired).await);
    }
    block_in_place(|| {
        server.crash().unwrap();
        server.go(&["fsync=off"]).unwrap();
    });
    while keys.len() < 200 {
        keys.insert(next_key(&mut fired).await);
    }
    assert!(node.stats().errors > 0);
}

async fn backends(client: &Client) -> HashSet<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'told'";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// A trigger says it, after which the server keeps the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_made_anew_after_what_its_server_says() {
    let mut config = SERVER.config();
    config.application_name("told");
    let idle = builder(config, "some").max_in_flight(0).schema("told");
    let (node, _fired) = start(idle).await;
    let client = client().await;
    let says = "CREATE TABLE told.said (code text);
        CREATE FUNCTION told.say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF (SELECT code FROM told.said) IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = (SELECT code FROM told.said);
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER say AFTER INSERT OR UPDATE ON told.timer
            FOR EACH STATEMENT EXECUTE FUNCTION told.say()";
    client.batch_execute(says).await.unwrap();
    let ends = [
        "25006", "57P01", "57P02", "57P03", "0A000", "26000", "08006",
    ];
    let ends = ends.map(|code| (code, 2)); // Two connections write.
    for (code, gone) in ends.into_iter().chain([("P0001", 0), ("57014", 0)]) {
        for _ in 0..2 {
            schedule(&node, "a", HOUR).await;
        }
        let before = backends(&client).await;
        let say = "INSERT INTO told.said VALUES ($1)";
        client.execute(say, &[&code]).await.unwrap();
        for _ in 0..2 {
            let refused = node.schedule(Entry::keyed("a", HOUR, "x")).await;
            refused.expect_err(code);
        }
        let gone_by_now = async || {
            let now = backends(&client).await;
            before.difference(&now).count()
        };
        until(async || gone_by_now().await >= gone).await;
        let left = gone_by_now().await;
        assert_eq!(left, gone, "{code}");
        client.batch_execute("DELETE FROM told.said").await.unwrap();
    }
}

/// The first of two hosts accepts connections and says nothing, as a server that was stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_says_nothing_is_asked_once() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = tokio_postgres::Config::new();
    config
        .host("127.0.0.1")
        .port(silent.local_addr().unwrap().port())
        .host("127.0.0.1")
        .port(SERVER.config().get_ports()[0])
        .user("postgres")
        .dbname("postgres");
    let (node, mut fired) = start(builder(config, &name())).await;
    schedule(&node, "a", Duration::ZERO).await;
    assert_eq!(next_key(&mut fired).await, "a");
    node.list(Search::new(1)).await.unwrap();
    // Nobody has accepted it, so that no other try was made.
    silent.accept().await.unwrap();
    let another = tokio::time::timeout(Duration::from_millis(10), silent.accept()).await;
    assert!(another.is_err(), "it was asked twice");
}

/// Each way to the server connects once, whoever asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_a_new_connection() {
    let proxy = Proxy::start(&SERVER, None).await;
    let (node, _fired) = start(builder(proxy.config(), &name()).max_in_flight(0)).await;
    let before = proxy.connections.load(SeqCst);
    let mut calls = JoinSet::new();
    for _ in 0..60 {
        let node = node.clone();
        calls.spawn(async move { node.list(Search::new(1)).await.map(drop) });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    assert_eq!(proxy.connections.load(SeqCst), before + 1);
}
