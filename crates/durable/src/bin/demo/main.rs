//! Durable timers that can be watched: on a file, or on PostgreSQL with three nodes.

mod alone;
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
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match Options::parse().postgres {
        true => shared::run().await,
        false => alone::run().await,
    }
}
