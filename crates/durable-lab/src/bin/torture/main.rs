//! Everything at once, at random: nodes as processes on a private PostgreSQL, and faults of both.
//! The handlers write a ledger. The program fails if the ledger shows a broken promise.

mod book;
mod calls;
mod clock;
mod faults;
mod fleet;
mod node;
mod report;
#[path = "../../../../durable/tests/common/server.rs"]
mod server;

use crate::book::Book;
use crate::calls::Caller;
use clap::{Parser, Subcommand};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Due, Durable, Entry};
use tokio::sync::Notify;
use tokio_postgres::Config;

/// Runs durable timers under random faults, and counts what they do and which promises they break.
#[derive(Parser)]
struct Options {
    /// How long faults go on, in seconds.
    #[arg(long, default_value_t = 90)]
    seconds: u64,
    /// Chooses the faults; what is scheduled differs each time.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these faults, at random.
    #[arg(long, value_delimiter = ',')]
    only: Vec<faults::Kind>,
    /// How many callers there are: each makes about ten calls a second.
    #[arg(long, default_value_t = 40)]
    callers: usize,
    /// Ends with one line of figures.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// A node, which the driver starts.
    #[command(hide = true)]
    Node {
        port: u16,
        ledger: PathBuf,
        process: usize,
    },
}

/// How long a node's lease is.
const LEASE: Duration = Duration::from_secs(2);
const NAMESPACE: &str = "torture";

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.role {
        Some(Role::Node {
            port,
            ledger,
            process,
        }) => node::run(*port, ledger, *process).await,
        None => drive(&options).await,
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{error:?}"); // A database says its reason there alone.
    ExitCode::FAILURE
}

async fn drive(options: &Options) -> Result<(), Box<dyn Error>> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    fastrand::seed(seed);
    eprintln!("seed {seed}");
    let server = server::Server::start(faults::SETTINGS)?;
    let timer = Timer::builder().start()?;
    let mut fleet = fleet::Fleet::new(&server).await?;
    let driver = driver(server::config(fleet.port), &timer).await?;
    let client = server::connect(&server.config()).await?;
    client.batch_execute(faults::TABLES).await?;
    for _ in 0..3 {
        fleet.add().await?;
    }
    let book = Arc::new(Book::default());
    let mut scene = faults::Scene {
        fleet,
        server,
        driver: driver.clone(),
        book: Arc::clone(&book),
        faults: Vec::new(),
        settings: clock::Settings::default(),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let caller = |number| Caller::new(number, &driver, &scene.fleet.server, &book);
    let callers: Vec<_> = (0..options.callers)
        .map(|number| tokio::spawn(caller(number).run(Arc::clone(&stop))))
        .collect();
    faults::run(&mut scene, options.seconds, &options.only).await?;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await?;
    }
    let ends = faults::end(&mut scene).await?;
    scene.fleet.shrink(0)?;
    let report = report::Report::new(seed, &scene, ends)?;
    match options.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    report.check().map_err(Into::into)
}

/// Starts the node by which the driver calls. Its one place is taken for good: it runs no timer,
/// and lives.
async fn driver(
    config: Config,
    timer: &Timer,
) -> Result<Durable<Postgres>, tickwheel_durable::Error> {
    let taken = Arc::new(Notify::new());
    let told = Arc::clone(&taken);
    let node = Durable::postgres(config).namespace(NAMESPACE).lease(LEASE);
    let handler = move |_: Due| {
        told.notify_one();
        std::future::pending()
    };
    let node = node.max_in_flight(1).start(timer, handler).await?;
    node.schedule(Entry::keyed(node::DRIVER, Duration::ZERO, []))
        .await?;
    taken.notified().await;
    Ok(node)
}
