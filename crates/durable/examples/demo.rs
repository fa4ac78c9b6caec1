//! The first minute: a node dies, and no timer is lost.
//!
//! ```text
//! cargo run -p tickwheel-durable --example demo                 # One node, on a file
//! cargo run -p tickwheel-durable --example demo -- --postgres   # Three, on a private PostgreSQL
//! ```

#[path = "../tests/common/server.rs"]
#[allow(dead_code, reason = "it crashes no server, and asks none itself")]
mod server;

use clap::Parser;
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, OpenStore, Outcome};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// A thousand timers, and nodes of which one dies, as by a crash.
#[derive(Parser)]
struct Options {
    /// On a PostgreSQL that is started for this alone, with three nodes; otherwise on a file
    #[arg(long)]
    postgres: bool,
}

const TIMERS: u64 = 1_000;
const RATE: Duration = Duration::from_millis(10);
/// When, counted from the schedules, the first timer is due, one node dies, and the next one begins
/// where there is no other.
const FIRST: Duration = Duration::from_secs(2);
const DEATH: Duration = Duration::from_millis(4_500);
const NEXT: Duration = Duration::from_secs(6);
const LEASE: Duration = Duration::from_secs(2);
/// The intervals in which it is counted what fired.
const BAR: Duration = Duration::from_millis(500);
/// After how long without any it is said that timers were lost.
const LOST: Duration = Duration::from_secs(60);

/// What a handler got.
struct Fired {
    node: usize,
    key: String,
    at: Instant,
    late_by: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let fired = if options.postgres {
        let server = tokio::task::block_in_place(|| server::Server::start(&[]))?;
        run(|| Durable::postgres(server.config()), 3).await?
    } else {
        let folder = tempfile::tempdir()?;
        run(|| Durable::sqlite(folder.path().join("timers")), 1).await?
    };
    let again = fired.len() as u64 - TIMERS;
    let latest = fired
        .iter()
        .map(|fired| fired.late_by)
        .max()
        .unwrap_or_default();
    println!("{TIMERS} timers fired, {again} of them again; the latest was {latest:.1?} late");
    Ok(())
}

/// Runs nodes until all timers have fired; returns what fired.
async fn run<O: OpenStore>(
    store: impl Fn() -> DurableBuilder<O>,
    count: usize,
) -> Result<Vec<Fired>, Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let (sender, mut queue) = unbounded_channel();
    let mut nodes = Vec::new();
    for number in 0..count {
        nodes.push(start(store().lease(LEASE), number, &timer, &sender).await?);
    }
    let begun = Instant::now();
    let when = |n| FIRST + RATE * n as u32;
    let entries = (0..TIMERS).map(|n| Entry::keyed(format!("order {n}"), when(n), "not paid"));
    nodes[0].schedule_many(entries.collect()).await?;
    tokio::time::sleep_until((begun + DEATH).into()).await;
    drop(nodes.pop()); // Without `drain` it stops at once, and says nobody so.
    println!("after {DEATH:?} node {count} dies; its claims last for {LEASE:?}");
    if nodes.is_empty() {
        tokio::time::sleep_until((begun + NEXT).into()).await;
        nodes.push(start(store().lease(LEASE), count, &timer, &sender).await?);
        println!("after {NEXT:?} another one opens the file");
    }
    let mut fired = Vec::new();
    let mut seen = HashSet::new();
    while (seen.len() as u64) < TIMERS {
        let next = tokio::time::timeout(LOST, queue.recv()).await;
        let next: Fired = next
            .map_err(|_| "timers were lost")?
            .ok_or("the nodes have gone")?;
        seen.insert(next.key.clone());
        fired.push(next);
    }
    for node in nodes {
        node.drain().await;
    }
    for (place, counts) in bars(begun, &fired).iter().enumerate() {
        println!(
            "from {:4.1} s: {}",
            BAR.as_secs_f64() * place as f64,
            tell(counts)
        );
    }
    Ok(fired)
}

async fn start<O: OpenStore>(
    builder: DurableBuilder<O>,
    node: usize,
    timer: &Timer,
    sender: &UnboundedSender<Fired>,
) -> Result<Durable<O::Store>, tickwheel_durable::Error> {
    let sender = sender.clone();
    let handler = move |due: Due| {
        let key = due.key.unwrap_or_default();
        let _ = sender.send(Fired {
            node,
            key,
            at: Instant::now(),
            late_by: due.late_by,
        });
        async { Outcome::Done }
    };
    builder.start(timer, handler).await
}

/// Counts what each node fired in each interval.
fn bars(begun: Instant, fired: &[Fired]) -> Vec<Vec<u32>> {
    let bar = |fired: &Fired| (fired.at - begun).div_duration_f64(BAR) as usize;
    let last = fired.iter().map(bar).max().unwrap_or(0);
    let nodes = fired.iter().map(|fired| fired.node + 1).max().unwrap_or(0);
    let mut bars = vec![vec![0; nodes]; last + 1];
    fired
        .iter()
        .for_each(|fired| bars[bar(fired)][fired.node] += 1);
    bars
}

fn tell(counts: &[u32]) -> String {
    let mut line = String::new();
    for (node, count) in counts.iter().enumerate() {
        let _ = write!(line, "node {} {count:4}   ", node + 1);
    }
    line
}
