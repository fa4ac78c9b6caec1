//! What becomes of lateness and of the table in the long run, also while a snapshot is held.

use crate::server::connect;
use crate::{Answer, drain, entry, lates, lock, ms, row, start_nodes, start_server};
use std::time::{Duration, SystemTime};
use tokio_postgres::Client;

/// Holds a snapshot, for as long as its session lives.
const READER: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()";
/// Holds a transaction's number besides.
const WRITER: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()";

/// How many batches are scheduled in a second.
const BATCHES: u32 = 10;

pub(crate) async fn lasts(rate: u64, seconds: u64) -> Answer<()> {
    last(rate, seconds, "nobody", "").await
}

pub(crate) async fn snapshots(rate: u64, seconds: u64) -> Answer<()> {
    let reader = last(rate, seconds, "a reader", READER);
    let writer = last(rate, seconds, "a writer", WRITER);
    tokio::try_join!(reader, writer)?;
    Ok(())
}

/// Has so many timers fire a second, each a second after it was scheduled, while somebody holds a
/// snapshot.
async fn last(rate: u64, seconds: u64, who: &str, sql: &str) -> Answer<()> {
    let server = &start_server()?;
    let holder = connect(&server.config()).await?;
    holder.batch_execute(sql).await?;
    let lates = lates();
    let nodes = start_nodes(server, 1, &lates).await?;
    let client = connect(&server.config()).await?;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / BATCHES);
    let each = rate / u64::from(BATCHES);
    let ticks_in_a_part = seconds * u64::from(BATCHES) / 6;
    let mut number = 0;
    for part in 1..=6 {
        lock(&lates).reset();
        for _ in 0..ticks_in_a_part {
            ticks.tick().await;
            let from = SystemTime::now() + Duration::from_secs(1);
            let spread = |n| from + Duration::from_micros(n * 1_000_000 / rate);
            let entries = (0..each).map(|n| entry(number + n, true, spread(n)));
            nodes[0].schedule_many(entries.collect()).await?;
            number += each;
        }
        if part == 1 || part == 6 {
            let what =
                format!("{rate}/s for {seconds} s, {who} holds a snapshot, part {part} of 6");
            row(
                &format!("{what}: lateness p99, ms"),
                ms(&lock(&lates), 0.99),
            );
            row(&format!("{what}: table, MB"), size(&client).await?);
        }
    }
    drain(nodes).await;
    Ok(())
}

/// Returns how large the table is, with its indexes.
async fn size(client: &Client) -> Answer<f64> {
    let sql = "SELECT pg_total_relation_size('tickwheel.timer')";
    let size: i64 = client.query_one(sql, &[]).await?.get(0);
    Ok(size as f64 / 1e6)
}
