//! How calls fare beside what others do to the same database: a client that lists all timers, and
//! rows that are dead and that somebody's snapshot keeps.

use crate::server::{Server, connect};
use crate::{entry, row, start, until};
use hdrhistogram::Histogram;
use std::error::Error;
use std::time::{Duration, Instant};
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Durable, OpenStore, Search};
use tokio_postgres::Client;

const DAY: Duration = Duration::from_secs(86_400);

/// Inserts so many timers, spread over the slots and from one moment to another, in seconds from
/// now.
async fn fill(client: &Client, count: u64, from: i64, to: i64) -> Result<(), Box<dyn Error>> {
    let sql = format!(
        "INSERT INTO tickwheel.timer (slot, due, id, payload)
        SELECT slots[1 + n % array_length(slots, 1)],
            tickwheel.clock() + {from}000000 + n * {}000000 / {count},
            ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(63)::bigint,
            decode(repeat('07', 100), 'hex')
        FROM generate_series(1::bigint, {count}) AS n,
            (SELECT array_agg(slot) AS slots FROM tickwheel.slot) AS all_slots",
        to - from
    );
    Ok(client.batch_execute(&sql).await?)
}

/// Opens the namespace's store, which makes its slots, on a server of its own.
async fn server() -> Result<(Server, Client), Box<dyn Error>> {
    let server = tokio::task::block_in_place(|| Server::start(&["max_wal_size=8GB"]))?;
    Durable::postgres(server.config()).store().open().await?;
    let client = connect(&server.config()).await?;
    Ok((server, client))
}

async fn list_all(node: Durable<Postgres>) -> Result<(), tickwheel_durable::Error> {
    let mut search = Search::new(1_000);
    loop {
        let page = node.list(search).await?;
        let next = Search::new(1_000);
        search = page.last().map_or(next.clone(), |last| next.after(last));
    }
}

/// Schedules timers one after the other for ten seconds, beside a client that lists all, page after
/// page, and beside none.
pub(crate) async fn lists(listed: u64) -> Result<(), Box<dyn Error>> {
    let (server, client) = server().await?;
    fill(&client, listed, 86_400, 2 * 86_400).await?;
    client.batch_execute("ANALYZE tickwheel.timer").await?;
    client.batch_execute("CHECKPOINT").await?;
    let node = start(Durable::postgres(server.config())).await?;
    for (beside, lists) in [("none", false), ("a client that lists all", true)] {
        let lister = lists.then(|| tokio::spawn(list_all(node.clone())));
        let (mut took, begun) = (Histogram::<u64>::new(3)?, Instant::now());
        for number in 0.. {
            let call = Instant::now();
            node.schedule(entry(number, true, DAY)).await?;
            took.record(call.elapsed().as_micros() as u64)?;
            if begun.elapsed() > Duration::from_secs(10) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if let Some(lister) = lister {
            assert!(!lister.is_finished(), "it lists until it is stopped");
            lister.abort();
        }
        let of = format!("a schedule among {listed} timers beside {beside}, ms");
        row(
            &format!("{of}: p50"),
            took.value_at_quantile(0.5) as f64 / 1e3,
            1,
        );
        row(&format!("{of}: longest"), took.max() as f64 / 1e3, 1);
    }
    node.drain().await;
    Ok(())
}

/// Starts the first node of a namespace that has overdue timers, among so many dead rows.
pub(crate) async fn dead_rows(dead: u64) -> Result<(), Box<dyn Error>> {
    let (server, client) = server().await?;
    let holder = connect(&server.config()).await?;
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tickwheel.timer";
    holder.batch_execute(hold).await?;
    for _ in 0..10 {
        fill(&client, dead / 10, -3_000, -100).await?;
        client.batch_execute("DELETE FROM tickwheel.timer").await?;
    }
    fill(&client, 50, -3_000, -700).await?;
    let begun = Instant::now();
    let node = start(Durable::postgres(server.config())).await?;
    until(|| node.stats().done >= 50).await;
    row(
        &format!("start among {dead} dead rows, s"),
        begun.elapsed().as_secs_f64(),
        1,
    );
    node.drain().await;
    Ok(())
}
