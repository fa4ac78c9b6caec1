//! Runs from schedule to acknowledgement.

use crate::server::Server;
use hdrhistogram::Histogram;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::store::Store;
use tickwheel_durable::{Due, Durable, Entry, Outcome, StoreTime};
use tokio_postgres::NoTls;

/// What a run gave, in timers a second, and bytes.
pub(crate) struct Run {
    pub(crate) scheduled: f64,
    pub(crate) fired: f64,
    pub(crate) wal: f64,
}

fn entry(number: u64, keyed: bool, delay: Duration) -> Entry {
    match keyed {
        true => Entry::keyed(format!("key {number}"), delay, [7; 100]),
        false => Entry::unkeyed(delay, [7; 100]),
    }
}

/// Schedules them all as due at once, and waits until all are done.
async fn run<S: Store>(node: &Durable<S>, timers: u64, keyed: bool) -> Result<Run, Box<dyn Error>> {
    while node.stats().slots == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Far away first: what a schedule alone takes.
    let far = Duration::from_secs(86_400);
    let entries = (0..timers).map(|n| entry(n, keyed, far).tag("far")).collect();
    let begun = Instant::now();
    node.schedule_many(entries).await?;
    let scheduled = timers as f64 / begun.elapsed().as_secs_f64();
    node.cancel_tag("far").await?;
    let entries = (0..timers).map(|n| entry(n, keyed, Duration::ZERO)).collect();
    let begun = Instant::now();
    node.schedule_many(entries).await?;
    while node.stats().done < timers {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(Run { scheduled, fired: timers as f64 / begun.elapsed().as_secs_f64(), wal: 0.0 })
}

pub(crate) async fn on_a_file(
    file: &Path,
    timers: u64,
    keyed: bool,
) -> Result<Run, Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let node = Durable::sqlite(file).start(&timer, |_| async { Outcome::Done }).await?;
    run(&node, timers, keyed).await
}

pub(crate) async fn on_a_server(
    server: &Server,
    timers: u64,
    keyed: bool,
) -> Result<Run, Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let node = Durable::postgres(server.config()).namespace(format!("keyed {keyed}"));
    let node = node.start(&timer, |_| async { Outcome::Done }).await?;
    let before = written(server).await?;
    let all = run(&node, timers, keyed).await?;
    // For each timer: a schedule and a cancel, and a whole life.
    let wal = (written(server).await? - before) as f64 / timers as f64;
    node.drain().await;
    Ok(Run { wal, ..all })
}

/// Returns how many bytes of write-ahead log the server has written.
async fn written(server: &Server) -> Result<i64, tokio_postgres::Error> {
    let (client, connection) = server.config().connect(NoTls).await?;
    tokio::spawn(connection);
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Returns how late timers are, in microseconds by the server's clock, which is this machine's, at
/// a rate that leaves room.
pub(crate) async fn lateness(server: &Server) -> Result<Histogram<u64>, Box<dyn Error>> {
    let late = Arc::new(Mutex::new(Histogram::<u64>::new(3)?));
    let record = Arc::clone(&late);
    let handler = move |due: Due| {
        let late = StoreTime::from(std::time::SystemTime::now()).since(due.at).as_micros() as u64;
        if let Ok(mut all) = record.lock() {
            let _ = all.record(late);
        }
        async { Outcome::Done }
    };
    let timer = Timer::builder().start()?;
    let node = Durable::postgres(server.config()).namespace("lateness");
    let node = node.start(&timer, handler).await?;
    let spread = |n| Duration::from_secs(3) + Duration::from_millis(2 * n);
    let entries = (0..5_000).map(|n| entry(n, false, spread(n))).collect();
    node.schedule_many(entries).await?;
    while node.stats().done < 5_000 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.drain().await;
    let late = late.lock().map_err(|_| "a handler panicked")?.clone();
    Ok(late)
}
