//! Nodes on a private PostgreSQL.

use crate::server::{Server, connect};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Due, Durable, Outcome};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{Client, Config};

/// Returns a prefix for names of namespaces: each test has its own.
pub(crate) fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn client(server: &Server) -> Client {
    connect(&server.config()).await.unwrap()
}

pub(crate) type Fired = UnboundedReceiver<Due>;

/// Starts a node whose handler tells what it gets.
#[allow(dead_code, reason = "a server may be reached by other settings")]
pub(crate) async fn node(server: &Server, namespace: &str) -> (Durable<Postgres>, Fired) {
    node_at(server.config(), namespace).await
}

/// The same by other settings.
pub(crate) async fn node_at(config: Config, namespace: &str) -> (Durable<Postgres>, Fired) {
    let timer = Timer::builder().start().unwrap();
    let (sender, fired) = unbounded_channel();
    let handler = move |due| {
        let _ = sender.send(due);
        async { Outcome::Done }
    };
    let node = Durable::postgres(config).namespace(namespace);
    let node = node
        .lease(Duration::from_secs(1))
        .start(&timer, handler)
        .await
        .unwrap();
    (node, fired)
}

/// Returns the next timer that fires, within a bound that only a bug exceeds.
pub(crate) async fn next(fired: &mut Fired) -> Due {
    let due = tokio::time::timeout(Duration::from_secs(60), fired.recv()).await;
    due.expect("it fires").expect("the node is there")
}

/// Has the nodes of a namespace rest no more: something in it is due, and claimed for ever.
#[allow(dead_code, reason = "not each file counts who owns what")]
pub(crate) async fn keep_awake(server: &Server, namespace: &str) {
    let sql = "INSERT INTO tickwheel.timer (slot, due, id, claim, payload)
        SELECT 1024 * id, 0, 0, 1::bigint << 60, '' FROM tickwheel.namespace WHERE name = $1";
    assert_eq!(
        client(server)
            .await
            .execute(sql, &[&namespace])
            .await
            .unwrap(),
        1
    );
}

/// Waits until something is so, with a bound that only a bug exceeds.
#[allow(dead_code, reason = "not each file waits so")]
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect(what);
}
