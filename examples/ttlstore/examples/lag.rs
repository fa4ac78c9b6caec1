//! How long do keys outlive their deadlines? A thousand with one deadline, in redis-server with its
//! defaults and in ttlstore, beside none to a million others that are not due.

#[path = "../tests/common/mod.rs"]
mod common;

use clap::Parser;
use common::Server;
use redis::Connection;
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, thread};
use tickwheel_services::RedisServer;

/// Keys that expire at the same time.
const KEYS: usize = 1000;

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
        self.heard.get((share * KEYS as f64) as usize - 1).copied()
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
    let (redis, ours) = (RedisServer::start()?, Server::real());
    println!("| other keys | server | p50 | p99 | heard of |\n|---:|---|---:|---:|---:|");
    let mut rows = Vec::new();
    for others in sizes.iter().copied() {
        for (server, url) in [("redis-server", redis.url()), ("ttlstore", ours.url.clone())] {
            let heard = lags(&url, others, patience)?;
            let row = Row { server, others, heard, patience };
            let (p50, p99, heard) = (row.text(0.5), row.text(0.99), row.heard.len());
            println!("| {others} | {server} | {p50} | {p99} | {heard} |");
            if server == "ttlstore" && heard < KEYS {
                return Err("ttlstore did not tell of all keys".into());
            }
            rows.push(row);
        }
    }
    if let Some(path) = options.svg {
        fs::write(path, svg(&rows))?;
    }
    Ok(())
}

/// Fills the server with `others`, which live for an hour, and returns how late it tells of the
/// keys that expire: of those that it tells of within `patience`.
fn lags(url: &str, others: usize, patience: Duration) -> Result<Vec<Duration>, Box<dyn Error>> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_connection()?;
    redis::cmd("FLUSHDB").exec(&mut connection)?;
    let mut config = redis::cmd("CONFIG");
    config.arg("SET").arg("notify-keyspace-events").arg("Ex").exec(&mut connection)?;
    set(&mut connection, "other", others, "PX", 3_600_000)?;
    let mut listener = client.get_connection()?;
    listener.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut events = listener.as_pubsub();
    events.subscribe("__keyevent@0__:expired")?;
    thread::sleep(Duration::from_secs(1)); // Both come to rest.

    let deadline = Duration::from_millis((wall().as_millis() + 1000) as u64);
    set(&mut connection, "probe", KEYS, "PXAT", deadline.as_millis() as u64)?;
    let mut heard = Vec::new();
    while heard.len() < KEYS && wall() < deadline + patience {
        match events.get_message() {
            Ok(_) => {
                let late = wall().checked_sub(deadline);
                heard.push(late.ok_or("a key expired early, or this machine is too slow")?);
            }
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(heard)
}

fn set(
    connection: &mut Connection,
    name: &str,
    count: usize,
    unit: &str,
    ttl: u64,
) -> redis::RedisResult<()> {
    for start in (0..count).step_by(1000) {
        let mut pipe = redis::pipe();
        for number in start..count.min(start + 1000) {
            let set = pipe.cmd("SET").arg(format!("{name}:{number}")).arg("value");
            set.arg(unit).arg(ttl).ignore();
        }
        pipe.exec(connection)?;
    }
    Ok(())
}

/// Returns the time of day, which both servers read as well.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

const TITLE: &str = "Keys that are not due delay those that are: in redis-server, not in ttlstore";
const WHAT: &str = "from a key's deadline to its expired event, median of 1,000 keys";
/// In colours that hold on dark and on light pages.
const SERVERS: [(&str, &str, &str); 2] =
    [("redis-server", "#d9620f", "stroke-dasharray=\"7 4\""), ("ttlstore", "#2f81f7", "")];
/// The lines of the vertical axis: each a tenth of the one above.
const DECADES: [&str; 6] = ["100 s", "10 s", "1 s", "100 ms", "10 ms", "1 ms"];
/// Where the axes begin, and how far apart their steps are.
const LEFT: usize = 70;
const TOP: usize = 70;
const ACROSS: usize = 145;
const DOWN: usize = 42;

/// Draws how long half of the keys outlived their deadline, for each number of other keys. Where
/// that was longer than was waited for, the line ends at the end of the wait.
fn svg(rows: &[Row]) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 360\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#6e7781\" stroke-width=\"2.5\">\n\
         <title>{TITLE}</title>\n<text x=\"12\" y=\"24\" font-size=\"16\">{TITLE}</text>\n\
         <text x=\"12\" y=\"46\">{WHAT}</text>\n\
         <text x=\"250\" y=\"348\">other keys, which are not due</text>\n"
    );
    for (place, name) in DECADES.iter().enumerate() {
        let y = TOP + DOWN * place;
        let style = "stroke=\"#6e7781\" stroke-opacity=\"0.3\" stroke-width=\"1\"";
        text += &format!("<path d=\"M{LEFT} {y}h590\" {style}/>\n");
        label(&mut text, LEFT - 8, y + 4, "end", name);
    }
    for (server, colour, style) in SERVERS {
        let mut path = String::new();
        let mut last = (0, 0);
        for (place, row) in rows.iter().filter(|row| row.server == server).enumerate() {
            let (x, y) = (LEFT + 50 + ACROSS * place, height(row));
            let _ = write!(path, "{}{x} {y}", if place == 0 { 'M' } else { 'L' });
            let _ = writeln!(text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>");
            // The first stands beside the line, the others above it.
            let (right, anchor) = if place == 0 { (8, "end") } else { (0, "middle") };
            label(&mut text, x + right, y - 10, anchor, &row.text(0.5));
            if server == SERVERS[0].0 {
                label(&mut text, x, 324, "middle", &grouped(row.others));
            }
            last = (x + 12, y + 4);
        }
        let _ = writeln!(text, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" {style}/>");
        let bold = format!("<tspan fill=\"{colour}\" font-weight=\"bold\">{server}</tspan>");
        label(&mut text, last.0, last.1, "start", &bold);
    }
    text + "</svg>\n"
}

fn label(text: &mut String, x: usize, y: usize, anchor: &str, words: &str) {
    // A string takes everything.
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// Returns where a row's median lies, between 0.3 ms and 100 s.
fn height(row: &Row) -> usize {
    let seconds = row.quantile(0.5).unwrap_or(row.patience).as_secs_f64();
    let decades = (100.0 / seconds).log10().clamp(0.0, DECADES.len() as f64 - 0.5);
    TOP + (DOWN as f64 * decades) as usize
}

/// Returns a number with a comma after each third digit.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
