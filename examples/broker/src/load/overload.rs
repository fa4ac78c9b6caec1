//! Overload: up to ten times more produces than the server can take, and what becomes of others.

use super::client::Client;
use super::flood::{Flood, LOADED, SIZE};
use super::measure::ms;
use super::probes::{Figures, PARTITIONS, Probes};
use super::process::Process;
use crate::Failure;
use crate::options::Overload;
use charts::{Chart, Line, Scale};
use std::path::Path;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::runtime::{Builder, Handle};

/// What is offered, as multiples of what it can take. The first shows how it is alone.
const LOADS: [f64; 7] = [0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0];
/// Over how many connections a load comes; and how many of them measure what can be done, each
/// with one produce after the other.
const CONNECTIONS: u32 = 200;
const STEADY: u32 = 16;
/// The server's budget, and what its logs may have together, in mebibytes.
const BUDGET_MIB: u64 = 32;
const LOGS_MIB: u64 = 4 * (PARTITIONS + LOADED) as u64;
/// What it may take beside, mostly what the allocator keeps.
const BESIDE_MIB: u64 = 128;
/// By then it must be as fast as alone.
const RECOVERY: Duration = Duration::from_secs(10);

/// What became of a load.
struct Row {
    load: f64,
    offered: f64,
    answered: f64,
    probes: Figures,
    /// At most, while it lasted.
    memory_mib: u64,
    /// From its end until a small produce was as fast as alone.
    recovery: Duration,
}

/// Measures, prints, and fails if what must hold in any case does not.
pub(crate) fn run(options: &Overload) -> Result<(), Failure> {
    let server = Process::start(&[
        format!("--partitions={}", PARTITIONS + LOADED),
        format!("--max-memory={}", BUDGET_MIB << 20),
        "--max-partition=4194304".to_owned(),
    ])?;
    // The probes must not wait for the load that is made here.
    let [runtime, crowd] = [0, 1].map(|_| Builder::new_multi_thread().enable_io().build());
    let (runtime, crowd) = (runtime?, crowd?);
    let length = Duration::from_secs(options.seconds);
    println!("{CONNECTIONS} connections, {} KiB each produce, {length:?} each\n", SIZE >> 10);
    let rows = runtime.block_on(measure(&server, length, crowd.handle()))?;
    runtime.shutdown_background();
    crowd.shutdown_background();
    println!("{}", table(&rows));
    if let Some(path) = &options.svg {
        draw(path, &rows)?;
    }
    for Row { load, probes: Figures { early, lost, .. }, memory_mib, .. } in &rows {
        if (*early, *lost) != (0, 0) {
            return Err(format!("{load}: {early} fetches too early, {lost} sessions lost").into());
        }
        if *memory_mib > BUDGET_MIB + LOGS_MIB + BESIDE_MIB {
            return Err(format!("{load}: {memory_mib} MiB").into());
        }
    }
    println!("{}", summary(&rows));
    Ok(())
}

async fn measure(server: &Process, length: Duration, crowd: &Handle) -> Result<Vec<Row>, Failure> {
    let timer = Timer::builder().start()?;
    Client::connect(server.address).await?.create_topic().await?;
    let capacity = {
        let flood = Flood::start(server, STEADY, &timer, None, crowd).await?;
        timer.sleep(length).await?;
        flood.answered() as f64 / length.as_secs_f64()
    };
    let mut probes = Probes::start(server.address, &timer).await?;
    let mut rows: Vec<Row> = Vec::new();
    for load in LOADS {
        // What is left of the load before does not count.
        timer.sleep(Duration::from_secs(1)).await?;
        let offered = load * capacity;
        let beat = (load > 0.0).then(|| f64::from(CONNECTIONS) / offered);
        let connections = beat.map_or(0, |_| CONNECTIONS);
        let every = beat.map(Duration::from_secs_f64);
        let flood = Flood::start(server, connections, &timer, every, crowd).await?;
        probes.take()?;
        let (begun, mut memory_mib) = (Instant::now(), 0);
        while begun.elapsed() < length {
            timer.sleep(Duration::from_millis(50)).await?;
            memory_mib = memory_mib.max(server.resident_mib()?);
        }
        let answered = flood.answered() as f64 / length.as_secs_f64();
        let seen = probes.take()?;
        drop(flood);
        let alone = &rows.first().map_or(&seen, |row| &row.probes).delivery;
        let recovery = recover(&probes, alone.value_at_quantile(0.99), &timer).await?;
        rows.push(Row { load, offered, answered, probes: seen, memory_mib, recovery });
    }
    Ok(rows)
}

/// Waits until a small produce takes no longer than `usual` nanoseconds, and returns how long
/// that was.
async fn recover(probes: &Probes, usual: u64, timer: &Timer) -> Result<Duration, Failure> {
    let stopped = Instant::now();
    while probes.best_delivery().is_none_or(|best| best > usual) {
        timer.sleep(Duration::from_millis(1)).await?;
        if stopped.elapsed() > RECOVERY {
            return Err(format!("not as fast as alone after {RECOVERY:?}").into());
        }
    }
    Ok(stopped.elapsed())
}

fn table(rows: &[Row]) -> String {
    let mut text = "| load | offered /s | answered /s \
        | small produce to its consumer p50, p99, max ms | empty fetch late p99 ms \
        | heartbeat p99, max ms | too early, lost | memory MiB | recovered after ms |\n\
        |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for Row { load, offered, answered, probes, memory_mib, recovery } in rows {
        let Figures { delivery, empty, early, heartbeat, lost } = probes;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|quantile| ms(delivery, quantile));
        let (late, beat, worst) = (ms(empty, 0.99), ms(heartbeat, 0.99), ms(heartbeat, 1.0));
        text += &format!(
            "| {load} | {offered:.0} | {answered:.0} | {p50:.1}, {p99:.1}, {max:.1} | {late:.1} \
             | {beat:.1}, {worst:.1} | {early}, {lost} | {memory_mib} | {:.0} |\n",
            recovery.as_secs_f64() * 1e3
        );
    }
    text
}

fn summary(rows: &[Row]) -> String {
    let most = |value: fn(&Row) -> f64| rows.iter().map(value).fold(0.0, f64::max);
    format!(
        "up to {} times what it can take: no fetch too early, no session lost; at most {} MiB, \
         {:.1} ms from a small produce to its consumer and empty fetches {:.1} ms late at p99, \
         {:.0} ms until it had recovered",
        most(|row| row.load),
        most(|row| row.memory_mib as f64),
        most(|row| ms(&row.probes.delivery, 0.99)),
        most(|row| ms(&row.probes.empty, 0.99)),
        most(|row| row.recovery.as_secs_f64() * 1e3),
    )
}

/// Draws times and memory against the load into the file `path`.
fn draw(path: &Path, rows: &[Row]) -> Result<(), Failure> {
    // No logarithm has a place for what nobody offers.
    let loaded = || rows.iter().filter(|row| row.load > 0.0);
    let line = |name: Option<&str>, value: fn(&Row) -> f64| Line {
        name: name.map(str::to_owned),
        points: loaded().map(|row| (row.load, value(row))).collect(),
    };
    let charts = [
        Chart {
            title: "p99 of times, ms",
            scale: Scale::Log { least: 0.1 },
            lines: vec![
                line(Some("small produce to its consumer"), |row| ms(&row.probes.delivery, 0.99)),
                line(Some("empty fetch, late"), |row| ms(&row.probes.empty, 0.99)),
                line(Some("heartbeat"), |row| ms(&row.probes.heartbeat, 0.99)),
            ],
        },
        Chart {
            title: "memory at most, MiB",
            scale: Scale::Linear,
            lines: vec![line(None, |row| row.memory_mib as f64)],
        },
    ];
    Ok(charts::draw(path, &charts)?)
}
