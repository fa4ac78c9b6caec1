//! What durable timers cost on this machine: a table, beside polling with SKIP LOCKED.

mod alone;
mod beside;
#[path = "../../../../durable/tests/common/server.rs"]
mod server;

use crate::server::{Server, connect};
use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::Store;
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, OpenStore, Outcome, StoreTime, When};
use tokio_postgres::types::Type;

/// Measures durable timers on this machine: prints a table, in about two minutes.
///
/// The server is a private PostgreSQL, with `fsync`, on this machine; so are the nodes. By id means
/// without keys. A life is a schedule, a claim and an acknowledgement. Scheduled and fired: all are
/// due at once, from the first schedule to the last acknowledgement. At one instant: all are
/// scheduled before, from then to the last acknowledgement. CPU with nothing to do: of a node in a
/// process of its own for 20 s, and of the server meanwhile, beside timers a week away, and beside
/// none; for ten of them the node makes 50 queries a second, then it rests. SKIP LOCKED: two
/// pollers without pauses on the same table, which is full before; without schedules and handlers.
#[derive(Parser)]
struct Options {
    /// How many timers a run has.
    #[arg(long, default_value_t = 30_000)]
    timers: u64,
    /// How many timers lie far away while a node has nothing to do.
    #[arg(long, default_value_t = 1_000_000)]
    far: u64,
    /// Measures only schedules among so many timers, beside a client that lists them all.
    #[arg(long)]
    listed: Option<u64>,
    /// Measures only a start among so many dead rows, which a snapshot keeps.
    #[arg(long)]
    dead: Option<u64>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Tells how much memory a window of that many timers in a file takes.
    #[command(hide = true)]
    Window { file: PathBuf, timers: u64 },
    /// Tells what CPU a node uses in a namespace in which nothing is due.
    #[command(hide = true)]
    Idle { port: u16, namespace: String },
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    match &options.role {
        Some(Role::Window { file, timers }) => alone::tell_window(file, *timers).await,
        Some(Role::Idle { port, namespace }) => alone::tell_idle(*port, namespace).await,
        None => measure(&options).await,
    }
}

fn row(what: &str, figure: f64, digits: usize) {
    println!("| {what} | {figure:.digits$} |");
}

async fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    let busy = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("Load of the machine before: {}", busy.trim());
    println!("| what | figure |\n|---|---:|");
    if let Some(listed) = options.listed {
        return beside::lists(listed).await;
    }
    if let Some(dead) = options.dead {
        return beside::dead_rows(dead).await;
    }
    row("memory of a near timer, bytes", alone::window().await?, 0);
    let folder = tempfile::tempdir()?;
    for how in ["by id", "keyed"] {
        on_a_file(&folder.path().join(how), options.timers, how).await?;
    }
    let server = tokio::task::block_in_place(|| Server::start(&[]))?;
    for how in ["by id", "keyed"] {
        on_a_server(&server, options.timers, how).await?;
    }
    let took = mass(&server, options.timers).await?;
    row(
        "PostgreSQL: all due at one instant, s until all are done",
        took,
        1,
    );
    let polled = poll(&server, options.timers).await?;
    row(
        "the same table, polled with SKIP LOCKED: claimed and deleted/s",
        polled,
        0,
    );
    let lateness = lateness(&server).await?;
    let ms = |at| lateness.value_at_quantile(at) as f64 / 1_000.0;
    row("lateness at 500/s, ms: p50", ms(0.5), 1);
    row("lateness at 500/s, ms: p99", ms(0.99), 1);
    for timers in [0, options.far] {
        let [node, server] = alone::idle(&server, timers).await?;
        let beside = format!("beside {timers} timers a week away, us each second");
        row(&format!("CPU of a node {beside}"), node, 0);
        row(&format!("CPU of the server meanwhile, {beside}"), server, 0);
    }
    Ok(())
}

/// Starts a node whose handler does nothing, and waits until it has slots.
async fn start<O: OpenStore>(node: DurableBuilder<O>) -> Result<Durable<O::Store>, Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let node = node.start(&timer, |_| async { Outcome::Done }).await?;
    until(|| node.stats().slots > 0).await;
    Ok(node)
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn entry(number: u64, keyed: bool, when: impl Into<When>) -> Entry {
    match keyed {
        true => Entry::keyed(format!("key {number}"), when, [7; 100]),
        false => Entry::unkeyed(when, [7; 100]),
    }
}

/// Schedules them all far away, and cancels them; returns how many were scheduled in a second.
async fn schedule<S: Store>(
    node: &Durable<S>,
    timers: u64,
    keyed: bool,
) -> Result<f64, Box<dyn Error>> {
    let far = Duration::from_secs(86_400);
    let entries = (0..timers)
        .map(|n| entry(n, keyed, far).tag("far"))
        .collect();
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
    let entries = (0..timers)
        .map(|n| entry(n, keyed, Duration::ZERO))
        .collect();
    let begun = Instant::now();
    node.schedule_many(entries).await?;
    until(|| node.stats().done >= timers).await;
    Ok(timers as f64 / begun.elapsed().as_secs_f64())
}

/// Schedules them for one instant; returns in how many seconds after it all are done.
async fn mass(server: &Server, timers: u64) -> Result<f64, Box<dyn Error>> {
    let node = start(Durable::postgres(server.config()).namespace("mass")).await?;
    let at = SystemTime::now() + Duration::from_millis(2_000 + timers / 5);
    node.schedule_many((0..timers).map(|n| entry(n, true, at)).collect())
        .await?;
    until(|| node.stats().done >= timers).await;
    let took = at.elapsed()?.as_secs_f64();
    node.drain().await;
    Ok(took)
}

async fn on_a_file(file: &Path, timers: u64, how: &str) -> Result<(), Box<dyn Error>> {
    let node = start(Durable::sqlite(file)).await?;
    let scheduled = schedule(&node, timers, how == "keyed").await?;
    row(
        &format!("SQLite: schedules/s in batches, {how}"),
        scheduled,
        0,
    );
    let fired = live(&node, timers, how == "keyed").await?;
    row(&format!("SQLite: scheduled and fired/s, {how}"), fired, 0);
    Ok(())
}

async fn on_a_server(server: &Server, timers: u64, how: &str) -> Result<(), Box<dyn Error>> {
    let port = server.config().get_ports()[0];
    let node = start(Durable::postgres(server.config()).namespace(how)).await?;
    let scheduled = schedule(&node, timers, how == "keyed").await?;
    row(
        &format!("PostgreSQL: schedules/s in batches, {how}"),
        scheduled,
        0,
    );
    let before = (written(server).await?, alone::of(port).await?);
    let fired = live(&node, timers, how == "keyed").await?;
    let (wal, cpu) = (
        written(server).await? - before.0,
        alone::of(port).await? - before.1,
    );
    row(
        &format!("PostgreSQL: scheduled and fired/s, {how}"),
        fired,
        0,
    );
    let wal = wal as f64 / timers as f64;
    row(
        &format!("PostgreSQL: bytes of WAL for a life, {how}"),
        wal,
        0,
    );
    let cpu = cpu.as_secs_f64() * 1e6 / timers as f64;
    row(
        &format!("PostgreSQL: the server's CPU for a life, us, {how}"),
        cpu,
        1,
    );
    node.drain().await;
    Ok(())
}

/// Returns how many bytes of write-ahead log the server has written.
async fn written(server: &Server) -> Result<i64, tokio_postgres::Error> {
    let client = connect(&server.config()).await?;
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Returns how late timers are, in microseconds by the server's clock, which is this machine's, at
/// a rate that leaves room.
async fn lateness(server: &Server) -> Result<Histogram<u64>, Box<dyn Error>> {
    let (tell, told) = mpsc::channel();
    let handler = move |due: Due| {
        let _ = tell.send(StoreTime::from(SystemTime::now()).since(due.at));
        async { Outcome::Done }
    };
    let timer = Timer::builder().start()?;
    let node = Durable::postgres(server.config()).namespace("lateness");
    let node = node.start(&timer, handler).await?;
    let spread = |n| Duration::from_secs(3) + Duration::from_millis(2 * n);
    let entries = (0..5_000).map(|n| entry(n, false, spread(n))).collect();
    node.schedule_many(entries).await?;
    until(|| node.stats().done >= 5_000).await;
    node.drain().await;
    let mut all = Histogram::new(3)?;
    for late in told.try_iter() {
        all.record(late.as_micros() as u64)?;
    }
    Ok(all)
}

/// As many pollers as a node has claimers, with batches of the same size.
const POLLERS: usize = 2;

/// Fills the timer table, and drains it; returns timers a second, without the filling.
async fn poll(server: &Server, timers: u64) -> Result<f64, Box<dyn Error>> {
    let client = connect(&server.config()).await?;
    let fill = "INSERT INTO tickwheel.timer (slot, due, id, payload)
        SELECT -1 - n % 1024, n, n, decode(repeat('07', 100), 'hex')
        FROM generate_series(1, $1) AS n";
    client
        .query_typed(fill, &[(&(timers as i64), Type::INT8)])
        .await?;
    client
        .batch_execute("ANALYZE tickwheel.timer; CREATE INDEX poll ON tickwheel.timer (due)")
        .await?;
    let begun = Instant::now();
    let mut pollers = tokio::task::JoinSet::new();
    for _ in 0..POLLERS {
        let client = connect(&server.config()).await?;
        pollers.spawn(async move {
            let claim = "UPDATE tickwheel.timer SET claim = 1, attempts = attempts + 1
                WHERE (slot, due, id) IN (SELECT slot, due, id FROM tickwheel.timer
                    WHERE slot < 0 AND claim = 0 AND due <= tickwheel.clock()
                    ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED)
                RETURNING slot, due, id, payload";
            let done = "DELETE FROM tickwheel.timer t USING unnest($1, $2, $3) AS i(slot, due, id)
                WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id";
            loop {
                let rows = client.query_typed(claim, &[]).await?;
                if rows.is_empty() {
                    return Ok::<(), tokio_postgres::Error>(());
                }
                let slots: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
                let dues: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
                let ids: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
                let params = [
                    (&slots as _, Type::INT4_ARRAY),
                    (&dues as _, Type::INT8_ARRAY),
                    (&ids as _, Type::INT8_ARRAY),
                ];
                client.query_typed(done, &params).await?;
            }
        });
    }
    for ended in pollers.join_all().await {
        ended?;
    }
    let rate = timers as f64 / begun.elapsed().as_secs_f64();
    client.batch_execute("DROP INDEX tickwheel.poll").await?;
    Ok(rate)
}
