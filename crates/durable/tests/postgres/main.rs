//! Nodes on PostgreSQL, by the public API. Most tests share a server: each has a namespace, or a
//! schema, of its own.

mod bounds;
mod calls;
#[path = "../common/certified.rs"]
mod certified;
mod failover;
mod locked;
mod proxy;
#[path = "../common/stores.rs"]
mod stores;
mod swallowed;
mod schemas;
mod server_ends;
mod tls;
mod together;
mod triggers;
mod within;
#[path = "../common/server.rs"]
mod server;

use server::{Server, connect};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
pub(crate) use stores::{HOUR, ends, until};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::{Postgres, PostgresServer};
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, Outcome};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{Client, Config};

/// Ends with the program.
pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(|| {
    Server::start(&["fsync=off", "wal_level=logical", "max_connections=300"])
        .expect("PostgreSQL is installed")
});

/// Returns the name of a namespace that no other test has.
pub(crate) fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn client() -> Client {
    connect(&SERVER.config()).await.unwrap()
}

pub(crate) type Fired = UnboundedReceiver<Due>;

/// Sets up a node of a namespace.
pub(crate) fn builder(config: Config, namespace: &str) -> DurableBuilder<PostgresServer> {
    Durable::postgres(config).namespace(namespace)
}

/// Sets up one whose claims are soon taken over.
pub(crate) fn short(config: Config, namespace: &str) -> DurableBuilder<PostgresServer> {
    builder(config, namespace).lease(Duration::from_secs(1))
}

/// Starts a node whose handler tells what it gets.
pub(crate) async fn start(builder: DurableBuilder<PostgresServer>) -> (Durable<Postgres>, Fired) {
    let timer = Timer::builder().start().unwrap();
    let (sender, fired) = unbounded_channel();
    let handler = move |due| {
        let _ = sender.send(due); // Nobody looks any more.
        async { Outcome::Done }
    };
    (builder.start(&timer, handler).await.unwrap(), fired)
}

/// Starts a node of a namespace on the server that all share.
pub(crate) async fn node(namespace: &str) -> (Durable<Postgres>, Fired) {
    start(builder(SERVER.config(), namespace)).await
}

/// Schedules a key.
pub(crate) async fn schedule(node: &Durable<Postgres>, key: &str, delay: Duration) {
    node.schedule(Entry::keyed(key, delay, "x")).await.unwrap();
}

/// Returns the next timer that fires.
pub(crate) async fn next(fired: &mut Fired) -> Due {
    ends(fired.recv()).await.expect("the node is there")
}

/// Returns the key of the next timer that fires.
pub(crate) async fn next_key(fired: &mut Fired) -> String {
    next(fired).await.key.expect("it has a key")
}

pub(crate) async fn count(client: &Client, of: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {of}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}
