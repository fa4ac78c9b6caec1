//! What durable timers cost on this machine: a table, beside polling with SKIP LOCKED.

mod cpu;
mod far;
mod polling;
mod runs;
#[path = "../support/server.rs"]
mod server;
mod window;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::path::PathBuf;

/// Measures durable timers on this machine: prints a table, in about two minutes.
///
/// The server is a private PostgreSQL, with `fsync`, on this machine; so are the nodes. By id means
/// without keys. A life is a schedule, a claim and an acknowledgement. Scheduled and fired: all are
/// due at once, from the first schedule to the last acknowledgement. CPU with
/// nothing to do: of a node in a process of its own for 20 s, and of the server meanwhile, beside
/// timers a week away, and beside none; what the node uses is its 50 queries a second. SKIP LOCKED:
/// two pollers without pauses on the same table, which is full before; without schedules and
/// handlers.
#[derive(Parser)]
struct Options {
    /// How many timers a run has.
    #[arg(long, default_value_t = 30_000)]
    timers: u64,
    /// How many timers lie far away while a node has nothing to do.
    #[arg(long, default_value_t = 1_000_000)]
    far: u64,
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
        Some(Role::Window { file, timers }) => window::tell(file, *timers).await,
        Some(Role::Idle { port, namespace }) => far::tell(*port, namespace).await,
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
    row("memory of a near timer, bytes", window::measure().await?, 0);
    let folder = tempfile::tempdir()?;
    for keyed in [false, true] {
        let how = if keyed { "keyed" } else { "by id" };
        let run = runs::on_a_file(&folder.path().join(how), options.timers, keyed).await?;
        row(&format!("SQLite: schedules/s in batches, {how}"), run.scheduled, 0);
        row(&format!("SQLite: scheduled and fired/s, {how}"), run.fired, 0);
    }
    let server = tokio::task::block_in_place(|| server::Server::start(&[]))?;
    for keyed in [false, true] {
        let how = if keyed { "keyed" } else { "by id" };
        let (run, life) = runs::on_a_server(&server, options.timers, keyed).await?;
        row(&format!("PostgreSQL: schedules/s in batches, {how}"), run.scheduled, 0);
        row(&format!("PostgreSQL: scheduled and fired/s, {how}"), run.fired, 0);
        row(&format!("PostgreSQL: bytes of WAL for a life, {how}"), life.wal, 0);
        row(&format!("PostgreSQL: the server's CPU for a life, us, {how}"), life.cpu, 1);
    }
    let polled = polling::drain(&server, options.timers).await?;
    row("the same table, polled with SKIP LOCKED: claimed and deleted/s", polled, 0);
    let lateness = runs::lateness(&server).await?;
    let ms = |at| lateness.value_at_quantile(at) as f64 / 1_000.0;
    row("lateness at 500/s, ms: p50", ms(0.5), 1);
    row("lateness at 500/s, ms: p99", ms(0.99), 1);
    for timers in [0, options.far] {
        let idle = far::measure(&server, timers).await?;
        let beside = format!("beside {timers} timers a week away, us each second");
        row(&format!("CPU of a node {beside}"), idle.node, 0);
        row(&format!("CPU of the server meanwhile, {beside}"), idle.server, 0);
    }
    Ok(())
}
