//! Looks at the timers of a namespace: who owns them, what is due when, which are dead.

use clap::Parser;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use tickwheel_durable::store::postgres::{Postgres, VERSION, migration};
use tickwheel_durable::store::{Bars, Store};
use tickwheel_durable::{DeadTimer, Durable, Listed, OpenStore, Search, StoreTime};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, NoTls};

/// Looks at durable timers in a file or on PostgreSQL.
#[derive(Parser)]
struct Options {
    /// An SQLite file, which no node has open meanwhile. Or how to connect: "host=localhost
    /// user=app", or a URL; all primaries of the namespace, if there are several.
    #[arg(required_unless_present = "print_migration", value_parser = target)]
    targets: Vec<Target>,
    /// Whose timers; a file has one namespace.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Where PostgreSQL's tables lie.
    #[arg(long, default_value = "tickwheel")]
    schema: String,
    /// How far to look ahead, in seconds.
    #[arg(long, default_value_t = 3_600)]
    ahead: u64,
    /// How many timers to list, of those that are due next, and of those that are dead.
    #[arg(long, default_value_t = 20)]
    limit: u32,
    /// Lists those of this tag.
    #[arg(long)]
    tag: Option<String>,
    /// Lists those whose keys begin so.
    #[arg(long)]
    key_prefix: Option<String>,
    /// Lists of the dead timers those that died in the last so many seconds.
    #[arg(long)]
    since: Option<u64>,
    /// Makes this dead timer due at once.
    #[arg(long)]
    requeue: Option<i64>,
    /// Prints the SQL that brings PostgreSQL's tables from this version, or from 0 if there are
    /// none, to this program's, for `psql -1 -v ON_ERROR_STOP=1 -f -`.
    #[arg(long, value_name = "FROM")]
    print_migration: Option<i32>,
}

impl Options {
    /// Returns a statement on the tables in the schema that was said.
    fn sql(&self, sql: &str) -> String {
        sql.replace("tickwheel.", &format!("\"{}\".", self.schema.replace('"', "\"\"")))
    }

    /// Returns what is to be listed.
    fn search(&self) -> Search {
        let search = Search::new(self.limit);
        let search = self.tag.iter().fold(search, Search::tag);
        self.key_prefix.iter().fold(search, Search::key_prefix)
    }

    /// Returns which of the dead timers are to be listed.
    fn search_dead(&self) -> Search {
        let Some(since) = self.since else { return self.search() };
        let start = StoreTime::from(SystemTime::now()).minus(Duration::from_secs(since));
        self.search().between(start.into()..StoreTime::MAX.into())
    }
}

#[derive(Clone)]
enum Target {
    File(PathBuf),
    Server(Box<Config>),
}

fn target(text: &str) -> Result<Target, String> {
    if Path::new(text).is_file() {
        return Ok(Target::File(text.into()));
    }
    let config = text.parse().map(|config| Target::Server(Box::new(config)));
    config.map_err(|error| format!("no such file, nor a server: {error}"))
}

/// How many bars there are, and how many characters the longest has.
const BARS: u32 = 20;
const WIDTH: u64 = 50;

/// Opens a primary, unless that would make the namespace or change the tables.
async fn open(server: &Config, options: &Options) -> Result<(Client, Postgres), Box<dyn Error>> {
    let Options { namespace, schema, .. } = options;
    let (client, connection) = server.connect(NoTls).await?;
    tokio::spawn(connection);
    let sql = options.sql("SELECT version FROM tickwheel.version");
    let found: i32 = client.query_typed(&sql, &[]).await?.first().map_or(0, |row| row.get(0));
    if found < VERSION {
        let how = format!("by a node, or by --print-migration {found}");
        return Err(format!("tables of version {found} are to be migrated first, {how}").into());
    }
    let sql = options.sql("SELECT FROM tickwheel.namespace WHERE name = $1");
    if client.query_typed(&sql, &[(&namespace, Type::TEXT)]).await?.is_empty() {
        return Err(format!("there is no namespace {namespace:?} on {server:?}").into());
    }
    let builder = Durable::postgres(server.clone()).namespace(namespace).schema(schema);
    Ok((client, builder.store().open().await?))
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = look(&Options::parse()).await else { return ExitCode::SUCCESS };
    eprint!("{error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprint!(": {error}");
        cause = error.source();
    }
    eprintln!();
    ExitCode::FAILURE
}

async fn look(options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(from) = options.print_migration {
        print!("{}", migration(&options.schema, from)?);
        return Ok(());
    }
    if let [Target::File(path)] = &options.targets[..] {
        let file = Durable::sqlite(path).store();
        let file = if options.requeue.is_some() { file } else { file.read_only() };
        return tell(&[file.open().await?], options).await;
    }
    let mut primaries = Vec::new();
    for (number, target) in options.targets.iter().enumerate() {
        let Target::Server(server) = target else { return Err("a file is looked at alone".into()) };
        let (client, store) = open(server, options).await?;
        if options.requeue.is_none() {
            owners(number, &client, &store, options).await?;
        }
        primaries.push(store);
    }
    tell(&primaries, options).await
}

async fn tell<S: Store>(stores: &[S], options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(id) = options.requeue {
        let mut there = false;
        for store in stores {
            there |= store.requeue(id).await?;
        }
        println!("{}", if there { "requeued" } else { "there is no such dead timer" });
        return Ok(());
    }
    histogram(stores, options.ahead).await?;
    let (mut next, mut dead) = (Vec::new(), Vec::new());
    for store in stores {
        next.extend(store.list(options.search()).await?);
        dead.extend(store.dead(options.search_dead()).await?);
    }
    next.sort_by_key(|timer| timer.at);
    next.truncate(options.limit as usize);
    tell_next(next);
    dead.sort_by_key(|timer| timer.died);
    dead.truncate(options.limit as usize);
    tell_dead(dead);
    Ok(())
}

/// Tells which slots a primary serves, and who owns them.
async fn owners(
    number: usize,
    client: &Client,
    store: &Postgres,
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    let first = store.slot(0) as i32;
    let range = [(first, Type::INT4), (first + store.slots() as i32 - 1, Type::INT4)];
    let range = range.each_ref().map(|(slot, kind)| (slot as _, kind.clone()));
    let sql = "SELECT count(*) FILTER (WHERE served = 0), count(*) FILTER (WHERE served = 1)
        FROM tickwheel.slot WHERE slot BETWEEN $1 AND $2";
    for row in client.query_typed(&options.sql(sql), &range).await? {
        let (served, closed) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        println!("primary {number}: serves {served} slots, {closed} more are being moved away");
    }
    let sql = "SELECT s.owner, count(*), max(s.epoch),
            (SELECT lease_until - tickwheel.clock() FROM tickwheel.member WHERE node = s.owner)
        FROM tickwheel.slot s WHERE slot BETWEEN $1 AND $2 AND served = 0
        GROUP BY s.owner ORDER BY s.owner";
    println!("{:>20}  slots  latest epoch  lease, s", "owner");
    for row in client.query_typed(&options.sql(sql), &range).await? {
        let owner = row.get::<_, Option<i64>>(0).map_or("nobody".to_owned(), |id| id.to_string());
        let lease = row.get::<_, Option<i64>>(3);
        let lease = lease.map_or("none".to_owned(), |left| format!("{:.1}", left as f64 / 1e6));
        let (slots, epoch) = (row.get::<_, i64>(1), row.get::<_, i64>(2));
        println!("{owner:>20}  {slots:5}  {epoch:12}  {lease:>8}");
    }
    Ok(())
}

async fn histogram<S: Store>(stores: &[S], ahead: u64) -> Result<(), Box<dyn Error>> {
    let now = StoreTime::from(SystemTime::now());
    let width = Duration::from_secs(ahead.max(1)) / BARS;
    let (mut overdue, mut bars) = (0, vec![0; BARS as usize]);
    for store in stores {
        let (from, width) = (StoreTime::MIN, now.since(StoreTime::MIN));
        let past = store.histogram(Bars { from, width, count: 1 }).await?;
        overdue += past.iter().sum::<u64>();
        let some = store.histogram(Bars { from: now, width, count: BARS }).await?;
        bars.iter_mut().zip(some).for_each(|(bar, more)| *bar += more);
    }
    println!("\noverdue, or in a handler's hands: {overdue}");
    let most = bars.iter().copied().max().unwrap_or(0).max(1);
    for (bar, count) in bars.iter().enumerate() {
        let from = width.as_secs_f64() * bar as f64;
        let line = "#".repeat((count * WIDTH).div_ceil(most) as usize);
        println!("in {from:8.0} s {count:9} {line}");
    }
    Ok(())
}

fn tell_next(next: Vec<Listed>) {
    println!("\nwhat is due next: {}", if next.is_empty() { "nothing" } else { "" });
    let now = StoreTime::from(SystemTime::now());
    for Listed { id, key, tag, at, attempts, running, .. } in next {
        let (key, tag) = (key.unwrap_or_default(), tag.unwrap_or_default());
        let when = (at.as_micros() - now.as_micros()) as f64 / 1e6;
        let state = if running { "a handler has it" } else { "" };
        println!("{id:>20}  {key:20}  {tag:12}  in {when:.1} s, {attempts} attempts  {state}");
    }
}

fn tell_dead(dead: Vec<DeadTimer>) {
    let none = if dead.is_empty() { "none" } else { "" };
    println!("\ndead timers, the oldest first: {none}");
    let now = StoreTime::from(SystemTime::now());
    for timer in dead {
        let DeadTimer { id, key, tag, attempts, reason, died, .. } = timer;
        let (key, tag) = (key.unwrap_or_default(), tag.unwrap_or_default());
        let since = now.since(died).as_secs();
        println!("{id:>20}  {key:20}  {tag:12}  {since} s ago, {attempts} attempts: {reason}");
    }
}
