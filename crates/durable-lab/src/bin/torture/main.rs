//! Everything at once, at random: nodes as processes on a private PostgreSQL, and what may befall
//! them. Ledgers say what has fired; it ends with a failure if a promise was broken.

mod clock;
mod faults;
mod fleet;
mod load;
mod node;
mod probe;
mod report;
#[path = "../../../../durable/tests/common/server.rs"]
mod server;

use crate::clock::Settings;
use clap::{Parser, Subcommand};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use tickwheel_durable::{Durable, OpenStore};

/// What is done to durable timers while it is counted what they do.
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
    /// How many timers are scheduled in a second.
    #[arg(long, default_value_t = 1_000)]
    rate: u64,
    /// Another version's torture program, for upgrades and rollbacks of the nodes; by default they
    /// are restarted on the same.
    #[arg(long)]
    other: Option<PathBuf>,
    /// Ends with one line of figures.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// A node on both primaries, which the driver starts.
    #[command(hide = true)]
    Node {
        port: u16,
        second: u16,
        ledger: PathBuf,
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
            second,
            ledger,
        }) => node::run([*port, *second], ledger).await,
        None => drive(&options).await,
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{error}");
    ExitCode::FAILURE
}

async fn drive(options: &Options) -> Result<(), Box<dyn Error>> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    fastrand::seed(seed);
    eprintln!("seed {seed}");
    let start = || server::Server::start(faults::SETTINGS);
    let servers = [start()?, start()?];
    for server in &servers {
        let user = node::USER;
        let make = format!("CREATE ROLE {user} LOGIN; GRANT CREATE ON DATABASE postgres TO {user}");
        server::connect(&server.config())
            .await?
            .batch_execute(&make)
            .await?;
        let config = server.config().user(user).clone();
        Durable::postgres(config)
            .namespace(NAMESPACE)
            .store()
            .open()
            .await?; // Its are the tables.
    }
    let fleet = fleet::Fleet::start(&servers, 3).await?;
    let (other, faults, settings) = (options.other.as_deref(), Vec::new(), Settings::default());
    let (locked, locks) = mpsc::channel();
    let mut scene = faults::Scene {
        servers: &servers,
        fleet,
        other,
        faults,
        settings,
        locked,
    };
    let load = load::Load::open(&servers, options.rate).await?;
    let (tell, looks) = mpsc::channel();
    for server in &servers {
        tokio::spawn(probe::run(server.config(), tell.clone()));
    }
    let writing = tokio::spawn(load.run(Duration::from_secs(options.seconds)));
    faults::run(&mut scene, options.seconds, &options.only).await?;
    let mut told = writing.await??;
    let left = faults::end(&mut scene).await?;
    let dead = faults::count(&servers, "dead", faults::INNOCENT).await?;
    let looks: Vec<_> = looks.try_iter().collect();
    while scene.fleet.remove()? {}
    let aborts = node::read(scene.fleet.ledger.path(), &mut told.written)?;
    for (number, until) in locks.try_iter() {
        told.written[number].locked = Some(until);
    }
    let report = report::Report::new(seed, told, &aborts, &scene, &looks, (left, dead));
    match options.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    report.check().map_err(Into::into)
}
