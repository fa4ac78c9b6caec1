//! How long do keys outlive their deadlines? A thousand with one deadline, in redis-server with its
//! defaults and in ttlstore, beside none to a million others that are not due.

#[path = "../tests/common/mod.rs"]
mod common;

use clap::Parser;
use common::Server;
use redis::Connection;
use std::error::Error;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel_services::RedisServer;

/// Keys that expire at the same time.
const KEYS: usize = 1000;

#[derive(Parser)]
#[command(name = "lag", about = "How long keys outlive their deadlines")]
struct Options {
    /// Fewer other keys, and no long wait
    #[arg(long)]
    quick: bool,
}

/// How long after their deadline a server told of the keys, the shortest first.
struct Row {
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
    let (sizes, patience): (&[usize], u64) = if options.quick {
        (&[0, 1000], 5)
    } else {
        (&[0, 10_000, 100_000, 1_000_000], 60)
    };
    let patience = Duration::from_secs(patience);
    let redis = RedisServer::start()?;
    let ours = Server::real();
    println!("| other keys | server | p50 | p99 | heard of |\n|---:|---|---:|---:|---:|");
    for others in sizes.iter().copied() {
        for (server, url) in [
            ("redis-server", redis.url()),
            ("ttlstore", ours.url.clone()),
        ] {
            let heard = lags(&url, others, patience)?;
            let row = Row { heard, patience };
            let p50 = row.text(0.5);
            let p99 = row.text(0.99);
            let heard = row.heard.len();
            println!("| {others} | {server} | {p50} | {p99} | {heard} |");
            if server == "ttlstore" && heard < KEYS {
                return Err("ttlstore did not tell of all keys".into());
            }
        }
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
    config
        .arg("SET")
        .arg("notify-keyspace-events")
        .arg("Ex")
        .exec(&mut connection)?;
    set(&mut connection, "other", others, "PX", 3_600_000)?;
    let mut listener = client.get_connection()?;
    listener.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut events = listener.as_pubsub();
    events.subscribe("__keyevent@0__:expired")?;
    thread::sleep(Duration::from_secs(1)); // Both come to rest.

    let deadline = Duration::from_millis((wall().as_millis() + 1000) as u64);
    set(
        &mut connection,
        "probe",
        KEYS,
        "PXAT",
        deadline.as_millis() as u64,
    )?;
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
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
