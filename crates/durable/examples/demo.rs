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
use std::path::PathBuf;
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
    /// Draw which node fired when into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const TIMERS: u64 = 1_000;
const RATE: Duration = Duration::from_millis(10);
/// When, counted from the schedules, the first timer is due, one node dies, and the next one begins
/// where there is no other.
const FIRST: Duration = Duration::from_secs(2);
const DEATH: Duration = Duration::from_millis(4_500);
const NEXT: Duration = Duration::from_secs(6);
const LEASE: Duration = Duration::from_secs(2);
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
    let (begun, fired) = if options.postgres {
        let server = tokio::task::block_in_place(|| server::Server::start(&[]))?;
        run(|| Durable::postgres(server.config()), 3).await?
    } else {
        let folder = tempfile::tempdir()?;
        run(|| Durable::sqlite(folder.path().join("timers")), 1).await?
    };
    let again = fired.len() as u64 - TIMERS;
    let latest = fired.iter().map(|fired| fired.late_by).max().unwrap_or_default();
    println!("{TIMERS} timers fired, {again} of them again; the latest was {latest:.1?} late");
    if let Some(path) = options.svg {
        std::fs::write(path, draw(&bars(begun, &fired, BAR)))?;
    }
    Ok(())
}

/// Runs nodes until all timers have fired; returns when these were scheduled, and what fired.
async fn run<O: OpenStore>(
    store: impl Fn() -> DurableBuilder<O>,
    count: usize,
) -> Result<(Instant, Vec<Fired>), Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let (sender, mut queue) = unbounded_channel();
    let mut nodes = Vec::new();
    for number in 0..count {
        nodes.push(start(store().lease(LEASE), number, &timer, &sender).await?);
    }
    while nodes.iter().any(|node| node.stats().slots == 0) {
        tokio::time::sleep(Duration::from_millis(10)).await; // They share what there is.
    }
    let begun = Instant::now();
    let when = |n| FIRST + RATE * n as u32;
    let entries = (0..TIMERS).map(|n| Entry::keyed(format!("order {n}"), when(n), "not paid"));
    nodes[0].schedule_many(entries.collect()).await?;
    tokio::time::sleep_until((begun + DEATH).into()).await;
    drop(nodes.pop()); // Without `drain` it stops at once, and says nobody so.
    println!("after {DEATH:?} node {count} dies; its lease lasts for {LEASE:?}");
    if nodes.is_empty() {
        tokio::time::sleep_until((begun + NEXT).into()).await;
        nodes.push(start(store().lease(LEASE), count, &timer, &sender).await?);
        println!("after {NEXT:?} another one opens the file");
    }
    let (mut fired, mut seen) = (Vec::new(), HashSet::new());
    while (seen.len() as u64) < TIMERS {
        let next = tokio::time::timeout(LOST, queue.recv()).await;
        let next: Fired = next.map_err(|_| "timers were lost")?.ok_or("the nodes have gone")?;
        seen.insert(next.key.clone());
        fired.push(next);
    }
    for node in nodes {
        node.drain().await;
    }
    for (second, counts) in bars(begun, &fired, Duration::from_secs(1)).iter().enumerate() {
        println!("second {:2}: {}", second + 1, tell(counts));
    }
    Ok((begun, fired))
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
        let _ = sender.send(Fired { node, key, at: Instant::now(), late_by: due.late_by });
        async { Outcome::Done }
    };
    builder.start(timer, handler).await
}

/// Counts what each node fired in each interval.
fn bars(begun: Instant, fired: &[Fired], width: Duration) -> Vec<Vec<u32>> {
    let bar = |fired: &Fired| (fired.at - begun).div_duration_f64(width) as usize;
    let last = fired.iter().map(bar).max().unwrap_or(0);
    let nodes = fired.iter().map(|fired| fired.node + 1).max().unwrap_or(0);
    let mut bars = vec![vec![0; nodes]; last + 1];
    fired.iter().for_each(|fired| bars[bar(fired)][fired.node] += 1);
    bars
}

fn tell(counts: &[u32]) -> String {
    let mut line = String::new();
    for (node, count) in counts.iter().enumerate() {
        let _ = write!(line, "node {} {count:4}   ", node + 1);
    }
    line
}

/// How long what a bar counts took, and the picture's measures in pixels.
const BAR: Duration = Duration::from_millis(250);
const LANE: f64 = 70.0;
const LEFT: f64 = 60.0;
const WIDTH: f64 = 690.0;
const TOP: f64 = 40.0;

/// Colours that can be read on a white page and on a dark one; the background is the page's.
const COLORS: [&str; 3] = ["#2f81f7", "#d9620f", "#2e9e4f"];
const TEXT: &str = "#6e7781";

/// Draws a lane for each node. Each bar: timers that the node fired in 250 ms.
fn draw(bars: &[Vec<u32>]) -> String {
    let nodes = bars.first().map_or(0, Vec::len);
    let seconds = BAR.as_secs_f64() * bars.len() as f64;
    let x = |time: Duration| LEFT + WIDTH * time.as_secs_f64() / seconds;
    let most = f64::from(bars.iter().flatten().copied().max().unwrap_or(1));
    let bottom = |node: usize| TOP + LANE * (node + 1) as f64;
    let floor = TOP + LANE * nodes as f64;
    let height = floor + 30.0;
    let mut svg = format!(
        "<svg width=\"760\" height=\"{height}\" viewBox=\"0 0 760 {height}\" \
        xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"11\" \
        fill=\"{TEXT}\">\n"
    );
    let mut add = |line: String| svg.push_str(&(line + "\n"));
    let (death, end) = (x(DEATH), x(DEATH + LEASE));
    add(format!(
        "<rect x=\"{death:.1}\" y=\"24\" width=\"{:.1}\" height=\"{:.1}\" opacity=\"0.15\"/>",
        end - death,
        floor - 24.0
    ));
    let word = |x: f64, y: f64, end: &str, text: String| {
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{end}\">{text}</text>")
    };
    add(word(
        death + 4.0,
        20.0,
        "start",
        format!("node {nodes} dies; its lease lasts up to {LEASE:?}"),
    ));
    for node in 0..nodes {
        let (base, color) = (bottom(node), COLORS[node % COLORS.len()]);
        add(word(LEFT - 8.0, base, "end", format!("node {}", node + 1)));
        for (bar, counts) in bars.iter().enumerate().filter(|(_, counts)| counts[node] > 0) {
            let tall = (LANE - 10.0) * f64::from(counts[node]) / most;
            add(format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" \
                fill=\"{color}\"/>",
                x(BAR * bar as u32),
                base - tall,
                WIDTH / bars.len() as f64 - 1.0,
            ));
        }
    }
    for second in (0..seconds as u64).step_by(2) {
        let at = x(Duration::from_secs(second));
        add(word(at, floor + 18.0, "middle", format!("{second} s")));
    }
    svg + "</svg>\n"
}
