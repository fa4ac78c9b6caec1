//! Ten times more than the server can do: what becomes slower, what grows, and what stays as it is.
//!
//! First as many SETs as it takes; then a tenth of that, and so on up to ten times as much, each
//! from a new server. Fails if a key was gone early, or there after its time, or if a reply was
//! wrong.

mod load;
mod probe;
mod server;

use charts::{Chart, Line, Scale};
use clap::Parser;
use hdrhistogram::Histogram;
use load::Load;
use probe::Probe;
use server::Server;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, Parser)]
#[command(about = "Offers ten times more than the server can do", name = "overload")]
struct Options {
    /// How long each load lasts
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Draws lateness and memory against load into this file
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// What became of a load.
struct Row {
    /// As a multiple of what the server can do.
    load: f64,
    offered: f64,
    served: f64,
    /// From when a command was due to its reply.
    reply_p99: Duration,
    /// Of another client, which asks once in a while.
    ping_p99: Duration,
    /// Of the keys, as the server counts it.
    late_p99: Duration,
    peak_bytes: u64,
    /// From the end of the load until all is answered, and another is served as before.
    recovery: Duration,
}

const LOADS: [f64; 6] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0];

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let time = Duration::from_secs(options.seconds);
    // The best of three: other programs take their share at times.
    let mut capacity = 0.0_f64;
    for _ in 0..3 {
        let server = Server::start()?;
        let load = Load::offer(server.port, f64::INFINITY, time)?;
        capacity = capacity.max(load.answered_in_time as f64 / time.as_secs_f64());
    }
    let mut rows = Vec::new();
    println!("| load | offered, 1/s | served, 1/s | reply p99, ms | PING p99, ms | late p99, ms |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for load in LOADS {
        let row = measure(load, load * capacity, time)?;
        let [reply, ping, late] = [row.reply_p99, row.ping_p99, row.late_p99].map(ms);
        let (offered, served) = (row.offered, row.served);
        println!("| {load} | {offered:.0} | {served:.0} | {reply:.1} | {ping:.1} | {late:.1} |");
        rows.push(row);
    }
    println!("\n| load | memory at most, MiB | recovered after, ms |\n|---:|---:|---:|");
    for row in &rows {
        println!("| {} | {:.0} | {:.0} |", row.load, mib(row.peak_bytes), ms(row.recovery));
    }
    if let Some(path) = &options.svg {
        draw(path, &rows)?;
    }
    let most = |value: fn(&Row) -> f64| rows.iter().map(value).fold(0.0, f64::max);
    println!(
        "up to {} times what it can do: no key early or served late, no wrong reply; at most \
         {:.0} MiB, PING of another {:.0} ms and keys {:.0} ms late at p99, {:.0} ms until it had \
         recovered",
        most(|row| row.load),
        most(|row| mib(row.peak_bytes)),
        most(|row| ms(row.ping_p99)),
        most(|row| ms(row.late_p99)),
        most(|row| ms(row.recovery)),
    );
    Ok(())
}

/// Draws times and memory against the load.
fn draw(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let line = |name: Option<&str>, value: fn(&Row) -> f64| Line {
        name: name.map(str::to_owned),
        points: rows.iter().map(|row| (row.load, value(row))).collect(),
    };
    let charts = [
        Chart {
            title: "p99 of times, ms",
            scale: Scale::Log { least: 0.1 },
            lines: vec![
                line(Some("expiry of keys"), |row| ms(row.late_p99)),
                line(Some("replies to those who offer it"), |row| ms(row.reply_p99)),
                line(Some("PING of another client"), |row| ms(row.ping_p99)),
            ],
        },
        Chart {
            title: "memory at most, MiB",
            scale: Scale::Linear,
            lines: vec![line(None, |row| mib(row.peak_bytes))],
        },
    ];
    Ok(charts::draw(path, &charts)?)
}

fn measure(load: f64, rate: f64, time: Duration) -> Result<Row, Box<dyn Error>> {
    let server = Server::start()?;
    let probe = Probe::start(server.port)?;
    let offered = Load::offer(server.port, rate, time)?;
    let answered = Instant::now();
    let quiet = probe.wait_until_quick()?;
    let probed = probe.end()?;
    let late_p99 = server.late_p99()?;
    if probed.wrong > 0 || offered.wrong > 0 {
        let (keys, replies) = (probed.wrong, offered.wrong);
        return Err(format!("{keys} keys were early or served late, {replies} bytes wrong").into());
    }
    Ok(Row {
        load,
        offered: rate,
        served: offered.answered_in_time as f64 / time.as_secs_f64(),
        reply_p99: p99(&offered.late_us),
        ping_p99: p99(&probed.ping_us),
        late_p99,
        peak_bytes: server.peak_bytes()?,
        recovery: (answered + quiet).saturating_duration_since(offered.ended),
    })
}

fn p99(us: &Histogram<u64>) -> Duration {
    Duration::from_micros(us.value_at_quantile(0.99))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
