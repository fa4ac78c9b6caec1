//! Durable timers that can be watched: on a file, or on PostgreSQL with three nodes.

mod alone;
mod primaries;
mod shared;
#[path = "../support/server.rs"]
mod server;

use clap::Parser;
use std::error::Error;

/// Durable timers that can be watched.
#[derive(Parser)]
struct Options {
    /// Three nodes on a private PostgreSQL, one of which is killed.
    #[arg(long)]
    postgres: bool,
    /// One namespace on two private PostgreSQLs, half of whose slots move.
    #[arg(long, conflicts_with = "postgres")]
    primaries: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match Options::parse() {
        Options { primaries: true, .. } => primaries::run().await,
        Options { postgres: true, .. } => shared::run().await,
        _ => alone::run().await,
    }
}
