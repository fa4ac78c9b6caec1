//! Looks at the timers of a namespace: who owns them, what is due when, which are dead.

use clap::Parser;
use std::error::Error;
use std::time::{Duration, SystemTime};
use tickwheel_durable::store::Store;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Durable, OpenStore, StoreTime};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, NoTls};

/// Looks at durable timers on PostgreSQL.
#[derive(Parser)]
struct Options {
    /// How to connect: "host=localhost user=app", or a URL.
    server: Config,
    /// Whose timers.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// How far to look ahead, in seconds.
    #[arg(long, default_value_t = 3_600)]
    ahead: u64,
    /// Makes this dead timer due at once.
    #[arg(long)]
    requeue: Option<i64>,
}

/// How many bars there are, and how many characters the longest has.
const BARS: u32 = 20;
const WIDTH: u64 = 50;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let builder = Durable::postgres(options.server.clone()).namespace(&options.namespace);
    let store = builder.store().open().await?;
    if let Some(id) = options.requeue {
        let there = store.requeue(id).await?;
        println!("{}", if there { "requeued" } else { "there is no such dead timer" });
        return Ok(());
    }
    let (client, connection) = options.server.connect(NoTls).await?;
    tokio::spawn(connection);
    owners(&client, &store).await?;
    histogram(&store, options.ahead).await?;
    dead(&store).await
}

async fn owners(client: &Client, store: &Postgres) -> Result<(), Box<dyn Error>> {
    let sql = "SELECT s.owner, count(*), max(s.epoch),
            (SELECT lease_until - tickwheel.clock() FROM tickwheel.member WHERE node = s.owner)
        FROM tickwheel.slot s WHERE slot BETWEEN $1 AND $2 GROUP BY s.owner ORDER BY s.owner";
    let first = store.slot(0) as i32;
    let last = first + store.slots() as i32 - 1;
    println!("{:>20}  slots  latest epoch  lease, s", "owner");
    for row in client.query_typed(sql, &[(&first, Type::INT4), (&last, Type::INT4)]).await? {
        let owner = row.get::<_, Option<i64>>(0).map_or("nobody".to_owned(), |id| id.to_string());
        let lease = row.get::<_, Option<i64>>(3);
        let lease = lease.map_or("none".to_owned(), |left| format!("{:.1}", left as f64 / 1e6));
        let (slots, epoch) = (row.get::<_, i64>(1), row.get::<_, i64>(2));
        println!("{owner:>20}  {slots:5}  {epoch:12}  {lease:>8}");
    }
    Ok(())
}

async fn histogram(store: &Postgres, ahead: u64) -> Result<(), Box<dyn Error>> {
    let now = StoreTime::from(SystemTime::now());
    let overdue = store.histogram(StoreTime::MIN, now.since(StoreTime::MIN), 1).await?;
    println!("\noverdue, or in a handler's hands: {}", overdue.first().copied().unwrap_or(0));
    let width = Duration::from_secs(ahead.max(1)) / BARS;
    let bars = store.histogram(now, width, BARS).await?;
    let most = bars.iter().copied().max().unwrap_or(0).max(1);
    for (bar, count) in bars.iter().enumerate() {
        let from = width.as_secs_f64() * bar as f64;
        let line = "#".repeat((count * WIDTH).div_ceil(most) as usize);
        println!("in {from:8.0} s {count:9} {line}");
    }
    Ok(())
}

async fn dead(store: &Postgres) -> Result<(), Box<dyn Error>> {
    let dead = store.dead(20).await?;
    println!("\ndead timers, the oldest first: {}", if dead.is_empty() { "none" } else { "" });
    for timer in dead {
        let key = timer.key.unwrap_or_default();
        println!("{:>20}  {key:20}  {} attempts: {}", timer.id, timer.attempts, timer.reason);
    }
    Ok(())
}
