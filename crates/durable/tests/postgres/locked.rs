//! Rows that somebody's open transaction has locked.

use crate::server::Server;
use crate::{client, name, node};
use std::future::Future;
use std::time::Duration;
use tickwheel_durable::Entry;
use tokio_postgres::Client;

/// Waits until something is so, with a bound that only a bug exceeds.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect(what);
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {sql}"), &[]).await.unwrap().get(0)
}

const WAITING: &str = "pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Has one of 5,000 timers touched while a step of the cancel finds it.
/// Seen to fail: the step found 1,000 and deleted 999, and was taken for the last.
pub(crate) async fn a_tag_is_cancelled_to_its_end_beside_touches(server: &Server) {
    let (node, _fired) = node(server, &name()).await;
    let far = |n| Entry::keyed(format!("{n}"), Duration::from_secs(3_600), "x").tag("t");
    node.schedule_many((0..5_000).map(far).collect()).await.unwrap();
    let (mut client, watcher) = (client(server).await, client(server).await);
    let transaction = client.transaction().await.unwrap();
    let touch = "UPDATE tickwheel.timer SET due = due + 1 WHERE tag = 't' AND slot % 8 = 0";
    assert!(transaction.execute(touch, &[]).await.unwrap() > 100);
    let canceller = node.clone();
    let cancelling = tokio::spawn(async move { canceller.cancel_tag("t").await });
    until("it meets the touch", || async { count(&watcher, WAITING).await > 0 }).await;
    transaction.commit().await.unwrap();
    assert_eq!(cancelling.await.unwrap().unwrap(), 5_000);
    assert_eq!(count(&watcher, "tickwheel.timer WHERE tag = 't'").await, 0);
}
