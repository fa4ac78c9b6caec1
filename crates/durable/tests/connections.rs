//! A database that gives too few connections.

#[path = "common/postgres.rs"]
mod helpers;
#[path = "common/server.rs"]
mod server;

use helpers::{client, keep_awake, name, next, node, node_at, until};
use server::Server;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Durable, Entry, Outcome};
use tokio_postgres::{Client, Config};

/// Each node has so many, as the README says.
const ALL: i64 = 7;

/// Returns the settings of a user that may have so many connections.
async fn limited(server: &Server, client: &Client, user: &str, limit: i64) -> Config {
    let make = format!("CREATE ROLE {user} LOGIN");
    let _ = client.batch_execute(&make).await; // Or it is there.
    let grant = format!(
        "ALTER ROLE {user} CONNECTION LIMIT {limit};
        GRANT ALL ON SCHEMA tickwheel TO {user};
        GRANT ALL ON ALL TABLES IN SCHEMA tickwheel TO {user}"
    );
    client.batch_execute(&grant).await.unwrap();
    let mut config = server.config();
    config.user(user);
    config
}

async fn connections(client: &Client, user: &str) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    client.query_one(sql, &[&user]).await.unwrap().get(0)
}

/// Returns why a node of this user does not start.
async fn refusal(config: Config, namespace: &str) -> String {
    let timer = Timer::builder().start().unwrap();
    let builder = Durable::postgres(config).namespace(namespace);
    builder
        .start(&timer, |_| async { Outcome::Done })
        .await
        .unwrap_err()
        .to_string()
}

/// Seen to fail: it started, had all slots and fired nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_too_few_connections_does_not_start() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let client = client(&server).await;
    drop(node(&server, &name()).await); // Makes the tables.
    for limit in 1..ALL {
        let config = limited(&server, &client, "few", limit).await;
        let told = refusal(config, &name()).await;
        let needs = format!("a node needs {ALL} connections, and was given {limit}:");
        assert!(
            told.contains(&needs) && told.contains("too many connections"),
            "{told}"
        );
        until("they end", async || connections(&client, "few").await == 0).await;
    }
    // Enough for one of two.
    let config = limited(&server, &client, "few", ALL + 1).await;
    let namespace = name();
    let (node, mut fired) = node_at(config.clone(), &namespace).await;
    let told = refusal(config, &namespace).await;
    assert!(told.contains("and was given 1:"), "{told}");
    for _ in 0..100 {
        node.schedule(Entry::unkeyed(Duration::ZERO, "x"))
            .await
            .unwrap();
    }
    for _ in 0..100 {
        next(&mut fired).await;
    }
    assert_eq!(
        connections(&client, "few").await,
        ALL,
        "of which none is made later"
    );
}

/// Seen to fail: all of them started, and those that were last never fired anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_namespaces_start_as_there_are_connections_for() {
    // One for the test, and two too few for a sixth node.
    let most = format!("max_connections={}", 1 + 6 * ALL - 2);
    let server = Server::start(&["fsync=off", &most]).expect("PostgreSQL is installed");
    let _client = client(&server).await;
    let mut nodes = Vec::new();
    for _ in 0..5 {
        nodes.push(node(&server, &name()).await);
    }
    let told = refusal(server.config(), &name()).await;
    let needs = format!("a node needs {ALL} connections, and was given {}:", ALL - 2);
    assert!(
        told.contains(&needs) && told.contains("too many clients"),
        "{told}"
    );
    for (node, fired) in &mut nodes {
        node.schedule(Entry::keyed("a", Duration::ZERO, "x"))
            .await
            .unwrap();
        assert_eq!(next(fired).await.key.unwrap(), "a");
    }
}

/// Has the database take connections away from a node that has started, and give them back.
/// Seen to fail: it kept its slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_too_few_left_gives_its_slots_up() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    let client = client(&server).await;
    let namespace = name();
    let (rich, mut fired) = node(&server, &namespace).await;
    keep_awake(&server, &namespace).await;
    let config = limited(&server, &client, "poor", ALL).await;
    let (poor, mut fired_there) = node_at(config, &namespace).await;
    let slots = |rich: u64, poor: u64| (rich, poor);
    let stand = || slots(rich.stats().slots, poor.stats().slots);
    until("they share", async || stand() == (512, 512)).await;
    limited(&server, &client, "poor", 3).await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'poor'";
    client.batch_execute(cut).await.unwrap();
    until("it gives them up", async || stand() == (1_024, 0)).await;
    for _ in 0..100 {
        rich.schedule(Entry::unkeyed(Duration::ZERO, "x"))
            .await
            .unwrap();
    }
    for _ in 0..100 {
        next(&mut fired).await;
    }
    assert!(fired_there.try_recv().is_err());
    limited(&server, &client, "poor", ALL).await;
    until("they share again", async || stand() == (512, 512)).await;
}
