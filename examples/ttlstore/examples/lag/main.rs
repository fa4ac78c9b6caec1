//! How long do keys outlive their deadlines? A thousand with one deadline, in redis-server with its
//! defaults and in ttlstore, beside none to a million others that are not due.

mod chart;
#[path = "../../tests/common/mod.rs"]
mod common;
mod probe;

use clap::Parser;
use common::{RedisServer, Server};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
#[command(name = "lag", about = "How long keys outlive their deadlines")]
struct Options {
    /// Fewer other keys, and no long wait
    #[arg(long)]
    quick: bool,
    /// Draws the medians into this file
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// How long after their deadline a server told of the keys, the shortest first.
struct Row {
    server: &'static str,
    others: usize,
    heard: Vec<Duration>,
    patience: Duration,
}

impl Row {
    /// Returns the time that this share of all keys did not exceed, if so many were heard of.
    fn quantile(&self, share: f64) -> Option<Duration> {
        self.heard.get((share * probe::KEYS as f64) as usize - 1).copied()
    }

    /// Returns the same as text.
    fn text(&self, share: f64) -> String {
        match self.quantile(share).map(|lag| lag.as_secs_f64()) {
            Some(lag) if lag < 1.0 => format!("{:.1} ms", lag * 1e3),
            Some(lag) => format!("{lag:.1} s"),
            None => format!("over {} s", self.patience.as_secs()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (sizes, patience): (&[usize], u64) =
        if options.quick { (&[0, 1000], 5) } else { (&[0, 10_000, 100_000, 1_000_000], 60) };
    let patience = Duration::from_secs(patience);
    let (redis, ours) = (RedisServer::start(), Server::real());
    println!("| other keys | server | p50 | p99 | heard of |\n|---:|---|---:|---:|---:|");
    let mut rows = Vec::new();
    for others in sizes.iter().copied() {
        for (server, port) in [("redis-server", redis.port), ("ttlstore", ours.port)] {
            let heard = probe::lags(port, others, patience)?;
            let row = Row { server, others, heard, patience };
            let (p50, p99, heard) = (row.text(0.5), row.text(0.99), row.heard.len());
            println!("| {others} | {server} | {p50} | {p99} | {heard} |");
            if server == "ttlstore" && heard < probe::KEYS {
                return Err("ttlstore did not tell of all keys".into());
            }
            rows.push(row);
        }
    }
    if let Some(path) = options.svg {
        fs::write(path, chart::svg(&rows))?;
    }
    Ok(())
}
