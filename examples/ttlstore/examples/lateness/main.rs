//! How late do keys expire? A million of them, at redis-server and at ours, by the events that
//! both publish: a table, and a plot.
//!
//! Both servers run already. They are measured one after the other.

mod crowd;
mod keys;
mod listener;
mod plot;

use clap::Parser;
use crowd::Crowd;
use hdrhistogram::Histogram;
use keys::Keys;
use serde::Serialize;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Parser)]
#[command(about = "How late keys expire, by keyspace events", name = "lateness")]
struct Options {
    /// Servers, each as name=port
    #[arg(required = true)]
    servers: Vec<String>,
    /// How many keys expire
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Over how many seconds their deadlines are spread
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How many others listen to the events
    #[arg(long, default_value_t = 0)]
    subscribers: usize,
    /// Draws the distributions into this file
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Writes the figures to standard output
    #[arg(long)]
    json: bool,
}

/// In microseconds, but for `name` and `keys`.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    keys: u64,
    early: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut measured = Vec::new();
    for server in &options.servers {
        let (name, port) = server.split_once('=').ok_or("a server is name=port")?;
        let port = port.parse()?;
        let _crowd = Crowd::join(port, options.subscribers)?;
        let late = measure(port, options.keys, Duration::from_secs(options.seconds))?;
        eprintln!("{name}: {} keys have expired", late.by_us.len());
        measured.push((name.to_owned(), late));
    }
    let rows: Vec<Row> = measured.iter().map(|(name, late)| Row::of(name, late)).collect();
    if let Some(path) = &options.svg {
        let lines = measured.iter().map(|(name, late)| (name.as_str(), &late.by_us)).collect();
        fs::write(path, plot::svg(lines)?)?;
    }
    if options.json {
        println!("{}", serde_json::to_string(&rows)?);
        return Ok(());
    }
    println!("| server | keys | early | p50 | p99 | max |\n|---|---:|---:|---:|---:|---:|");
    for Row { name, keys, early, p50_us, p99_us, max_us } in rows {
        let [p50, p99, max] =
            [p50_us, p99_us, max_us].map(|us| format!("{:.1?}", Duration::from_micros(us)));
        println!("| {name} | {keys} | {early} | {p50} | {p99} | {max} |");
    }
    Ok(())
}

impl Row {
    fn of(name: &str, late: &Lateness) -> Self {
        let by_us = &late.by_us;
        let [p50_us, p99_us] = [0.5, 0.99].map(|share| by_us.value_at_quantile(share));
        let (name, max_us) = (name.to_owned(), by_us.max());
        Row { name, keys: by_us.len(), early: late.early, p50_us, p99_us, max_us }
    }
}

/// How late the keys of a server were.
struct Lateness {
    by_us: Histogram<u64>,
    /// Should be none.
    early: u64,
}

fn measure(port: u16, count: u64, spread: Duration) -> Result<Lateness, Box<dyn Error>> {
    // Time to set them all, and to come to rest, before the first expires.
    let keys = Keys::new(count, Duration::from_secs(5 + count / 50_000), spread);
    let listener = listener::listen(port, keys)?;
    keys.set(port)?;
    Ok(listener.join().map_err(|_| "the listener panicked")?.map_err(|error| error.to_string())?)
}
