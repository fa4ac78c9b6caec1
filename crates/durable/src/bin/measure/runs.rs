//! Runs from schedule to acknowledgement.

use crate::cpu;
use crate::server::{Server, connect};
use hdrhistogram::Histogram;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::store::Store;
use tickwheel_durable::{Due, Durable, Entry, Outcome, StoreTime};

/// What a run gave, in timers a second.
pub(crate) struct Run {
    pub(crate) scheduled: f64,
    pub(crate) fired: f64,
}

/// What a server spent on each whole life, from schedule to acknowledgement.
pub(crate) struct Life {
    /// Bytes of its write-ahead log.
    pub(crate) wal: f64,
    /// Microseconds of its CPU.
    pub(crate) cpu: f64,
}

fn entry(number: u64, keyed: bool, delay: Duration) -> Entry {
    match keyed {
        true => Entry::keyed(format!("key {number}"), delay, [7; 100]),
        false => Entry::unkeyed(delay, [7; 100]),
    }
}

/// Schedules them all far away, and cancels them; returns how many were scheduled in a second.
async fn schedule<S: Store>(
    node: &Durable<S>,
    timers: u64,
    keyed: bool,
) -> Result<f64, Box<dyn Error>> {
    while node.stats().slots == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let far = Duration::from_secs(86_400);
    let entries = (0..timers).map(|n| entry(n, keyed, far).tag("far")).collect();
    let begun = Instant::now();
    node.schedule_many(entries).await?;
    let scheduled = timers as f64 / begun.elapsed().as_secs_f64();
    node.cancel_tag("far").await?;
    Ok(scheduled)
}

/// Schedules them all as due at once, and waits until all are done; returns how many were in a
/// second.
async fn live<S: Store>(
    node: &Durable<S>,
    timers: u64,
    keyed: bool,
) -> Result<f64, Box<dyn Error>> {
    let entries = (0..timers).map(|n| entry(n, keyed, Duration::ZERO)).collect();
    let begun = Instant::now();
    node.schedule_many(entries).await?;
    while node.stats().done < timers {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(timers as f64 / begun.elapsed().as_secs_f64())
}

pub(crate) async fn on_a_file(
    file: &Path,
    timers: u64,
    keyed: bool,
) -> Result<Run, Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let node = Durable::sqlite(file).start(&timer, |_| async { Outcome::Done }).await?;
    let scheduled = schedule(&node, timers, keyed).await?;
    Ok(Run { scheduled, fired: live(&node, timers, keyed).await? })
}

pub(crate) async fn on_a_server(
    server: &Server,
    timers: u64,
    keyed: bool,
) -> Result<(Run, Life), Box<dyn Error>> {
    let (timer, port) = (Timer::builder().start()?, server.config().get_ports()[0]);
    let node = Durable::postgres(server.config()).namespace(format!("keyed {keyed}"));
    let node = node.start(&timer, |_| async { Outcome::Done }).await?;
    let scheduled = schedule(&node, timers, keyed).await?;
    let before = (written(server).await?, cpu::of(port).await?);
    let fired = live(&node, timers, keyed).await?;
    let (wal, cpu) = (written(server).await? - before.0, cpu::of(port).await? - before.1);
    let life =
        Life { wal: wal as f64 / timers as f64, cpu: cpu.as_secs_f64() * 1e6 / timers as f64 };
    node.drain().await;
    Ok((Run { scheduled, fired }, life))
}

/// Returns how many bytes of write-ahead log the server has written.
async fn written(server: &Server) -> Result<i64, tokio_postgres::Error> {
    let client = connect(&server.config()).await?;
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
