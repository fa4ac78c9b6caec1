//! What durable timers cost on this machine: a table.

mod calls;
mod fires;
mod kill;
mod lasts;
mod rests;
#[path = "../../../../durable/tests/common/server.rs"]
mod server;

use crate::server::{Server, connect};
use clap::{Parser, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::Store;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, OpenStore, Outcome, StoreTime, When};
use tokio::task::block_in_place;

/// Measures durable timers on this machine: prints a table.
///
/// Each figure has a private PostgreSQL of its own, with `fsync`, on this machine, where the nodes
/// are too. By id means without keys. A life is a schedule, a claim and an acknowledgement.
/// Lateness is from the due time to the handler's call.
#[derive(Parser)]
struct Options {
    /// Only these figures.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Figure>,
    /// How many timers are scheduled and fired, or scheduled and cancelled.
    #[arg(long, default_value_t = 30_000)]
    timers: u64,
    /// How many timers are due at one instant.
    #[arg(long, default_value_t = 100_000)]
    instant: u64,
    /// How many handlers run for a minute.
    #[arg(long, default_value_t = 1_000)]
    running: u32,
    /// How many timers lie a week away while a node has nothing to do.
    #[arg(long, default_value_t = 1_000_000)]
    far: u64,
    /// How many timers are held when others are due.
    #[arg(long, default_value_t = 300_000)]
    held: u64,
    /// How long lateness and schedules by clients are looked at, in seconds; idle time six times as
    /// long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many timers fire a second in the long run, which is sixty times as long.
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// A node that is killed, or lives on.
    #[command(hide = true)]
    Node { port: u16, ledger: PathBuf },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// All are due at once: from the first schedule to the last acknowledgement; and the
    /// write-ahead log of a life.
    Fired,
    /// Timeouts of 30 s, nine of ten cancelled, by 256 callers.
    Timeouts,
    /// At 500 a second.
    Lateness,
    /// All were scheduled before: from then to the last acknowledgement.
    Instant,
    /// One of three processes is killed, at 500 a second.
    Kill,
    /// The write-ahead log while handlers run for a minute.
    Running,
    /// The server's processor while a node has nothing to do.
    Idle,
    /// Ten timers that are due just after many held ones.
    Held,
    /// Transactions that schedule, of 16 clients.
    Clients,
    /// In the long run. Only if it is named.
    Lasts,
    /// The same while a reader holds a snapshot, and on another server a writer. Only if it is
    /// named.
    Snapshots,
}

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Node = Durable<Postgres>;

/// How late handlers were called, in microseconds.
type Lates = Arc<Mutex<Histogram<u64>>>;

#[tokio::main]
async fn main() -> Answer<()> {
    let options = Options::parse();
    if let Some(Role::Node { port, ledger }) = &options.role {
        return kill::node(*port, ledger).await;
    }
    let busy = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("Load of the machine before: {}", busy.trim());
    println!("| what | figure |\n|---|---:|");
    for figure in Figure::value_variants() {
        let is_long = matches!(figure, Figure::Lasts | Figure::Snapshots);
        if options.only.contains(figure) || (options.only.is_empty() && !is_long) {
            measure(*figure, &options).await?;
        }
    }
    Ok(())
}

async fn measure(figure: Figure, options: &Options) -> Answer<()> {
    match figure {
        Figure::Fired => fires::fired(options.timers).await,
        Figure::Timeouts => calls::timeouts(options.timers).await,
        Figure::Lateness => fires::lateness(500 * options.seconds).await,
        Figure::Instant => fires::instant(options.instant).await,
        Figure::Kill => kill::kill().await,
        Figure::Running => rests::running(options.running).await,
        Figure::Idle => rests::idle(options.far, 6 * options.seconds).await,
        Figure::Held => fires::held(options.held).await,
        Figure::Clients => calls::clients(Duration::from_secs(options.seconds)).await,
        Figure::Lasts => lasts::lasts(options.rate, 60 * options.seconds).await,
        Figure::Snapshots => lasts::snapshots(options.rate, 60 * options.seconds).await,
    }
}

fn row(what: &str, figure: f64) {
    println!("| {what} | {figure:.1} |");
}

fn ms(lates: &Histogram<u64>, quantile: f64) -> f64 {
    lates.value_at_quantile(quantile) as f64 / 1e3
}

/// Starts a server on which no checkpoint falls into a figure.
fn start_server() -> Answer<Server> {
    let settings = [
        "max_wal_size=8GB",
        "checkpoint_timeout=1h",
        "max_connections=200",
    ];
    Ok(block_in_place(|| Server::start(&settings))?)
}

/// Returns how many bytes of write-ahead log a server has written.
async fn wal(server: &Server) -> Answer<i64> {
    let client = connect(&server.config()).await?;
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

fn lates() -> Lates {
    let lates = Histogram::new(3).expect("three digits are few enough");
    Arc::new(Mutex::new(lates))
}

fn lock(lates: &Lates) -> MutexGuard<'_, Histogram<u64>> {
    lates.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts nodes on a server.
async fn start_nodes(server: &Server, count: usize, lates: &Lates) -> Answer<Vec<Node>> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(start(Durable::postgres(server.config()), lates).await?);
    }
    // Until they are connected, and have claimed for the first time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(nodes)
}

/// Starts a node whose handler takes as many seconds as its payload's first byte says.
async fn start<O: OpenStore>(node: DurableBuilder<O>, lates: &Lates) -> Answer<Durable<O::Store>> {
    let lates = Arc::clone(lates);
    let handler = move |due: Due| {
        let late = StoreTime::from(SystemTime::now()).since(due.at);
        let recorded = lock(&lates).record(late.as_micros() as u64);
        recorded.expect("a histogram that grows");
        async move {
            if let Some(seconds @ 1..) = due.payload.first() {
                tokio::time::sleep(Duration::from_secs((*seconds).into())).await;
            }
            Outcome::Done
        }
    };
    let timer = Timer::builder().start()?;
    Ok(node.start(&timer, handler).await?)
}

async fn drain(nodes: Vec<Node>) {
    for node in nodes {
        node.drain().await;
    }
}

fn done<S: Store>(nodes: &[Durable<S>]) -> u64 {
    nodes.iter().map(|node| node.stats().done).sum()
}

/// Waits until it is so; for ten minutes at most.
async fn until(is_so: impl Fn() -> bool) -> Answer<()> {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(tokio::time::timeout(Duration::from_secs(600), wait).await?)
}

fn entry(number: u64, keyed: bool, when: impl Into<When>) -> Entry {
    match keyed {
        true => Entry::keyed(format!("key {number}"), when, [0; 100]),
        false => Entry::unkeyed(when, [0; 100]),
    }
}

/// Returns a moment by which so many timers are scheduled.
fn soon(timers: u64) -> SystemTime {
    SystemTime::now() + Duration::from_secs(3) + Duration::from_micros(200 * timers)
}
