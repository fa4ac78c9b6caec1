//! What durable timers cost on this machine: a table, beside polling with SKIP LOCKED.

mod polling;
mod runs;
#[path = "../support/server.rs"]
mod server;
mod window;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::path::PathBuf;

/// Measures durable timers on this machine.
#[derive(Parser)]
struct Options {
    /// How many timers a run has.
    #[arg(long, default_value_t = 30_000)]
    timers: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Tells how much memory a window of that many timers in a file takes.
    #[command(hide = true)]
    Window { file: PathBuf, timers: u64 },
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if let Some(Role::Window { file, timers }) = &options.role {
        return window::tell(file, *timers).await;
    }
    let busy = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("Load of the machine before: {}", busy.trim());
    println!("| what | figure |\n|---|---:|");
    let row = |what: &str, figure: String| println!("| {what} | {figure} |");
    row("memory of a near timer, bytes", format!("{:.0}", window::measure().await?));
    let folder = tempfile::tempdir()?;
    let file = || folder.path().join(format!("timers {}", fastrand::u64(..)));
    for keyed in [false, true] {
        let how = if keyed { "keyed" } else { "by id" };
        let run = runs::on_a_file(&file(), options.timers, keyed).await?;
        row(&format!("SQLite: schedules/s in batches, {how}"), format!("{:.0}", run.scheduled));
        row(&format!("SQLite: scheduled and fired/s, {how}"), format!("{:.0}", run.fired));
    }
    let server = tokio::task::block_in_place(|| server::Server::start(&[]))?;
    for keyed in [false, true] {
        let how = if keyed { "keyed" } else { "by id" };
        let run = runs::on_a_server(&server, options.timers, keyed).await?;
        row(&format!("PostgreSQL: schedules/s in batches, {how}"), format!("{:.0}", run.scheduled));
        row(&format!("PostgreSQL: scheduled and fired/s, {how}"), format!("{:.0}", run.fired));
        row(
            &format!("PostgreSQL: bytes of WAL for a life and a cancelled one, {how}"),
            format!("{:.0}", run.wal),
        );
    }
    let polled = polling::drain(&server, options.timers).await?;
    row("the same table, polled with SKIP LOCKED: claimed and deleted/s", format!("{polled:.0}"));
    let lateness = runs::lateness(&server).await?;
    let ms = |at| lateness.value_at_quantile(at) as f64 / 1_000.0;
    row("lateness at 500/s, ms: p50", format!("{:.1}", ms(0.5)));
    row("lateness at 500/s, ms: p99", format!("{:.1}", ms(0.99)));
    Ok(())
}
