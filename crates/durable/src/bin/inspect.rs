//! Looks at the timers of a namespace: who owns them, what is due when, which are dead.

use clap::Parser;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use tickwheel_durable::store::postgres::{Postgres, VERSION, migration};
use tickwheel_durable::store::{Bars, Bulk, Scope, Store};
use tickwheel_durable::{Durable, DurableBuilder, OpenStore, Paused, Search, StoreTime};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Looks at durable timers in a file or on PostgreSQL.
///
/// A password that is not said stands in PGPASSWORD: other users see a command line. With
/// `sslmode=require` it connects by TLS, and checks the server's certificate by the system's, or by
/// those in the file that SSL_CERT_FILE names.
#[derive(Parser)]
struct Options {
    /// An SQLite file, which no node has open meanwhile. Or how to connect: "host=localhost
    /// user=app", or a URL.
    #[arg(required_unless_present = "print_migration", value_parser = target)]
    target: Option<Target>,
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
    /// Lists those of this tag, and counts none.
    #[arg(long)]
    tag: Option<String>,
    /// Lists those whose keys begin so, and counts none.
    #[arg(long)]
    key_prefix: Option<String>,
    /// Lists of the dead timers those that died in the last so many seconds.
    #[arg(long)]
    since: Option<u64>,
    /// Lists of the others those that handlers have.
    #[arg(long)]
    running: bool,
    /// Lists of the others those that are due in the next so many seconds, or overdue.
    #[arg(long)]
    within: Option<u64>,
    /// Makes this dead timer due at once.
    #[arg(long, allow_hyphen_values = true)]
    requeue: Option<i64>,
    /// Makes all dead timers of this tag due at once.
    #[arg(long, conflicts_with = "requeue")]
    requeue_tag: Option<String>,
    /// Prints the SQL that brings PostgreSQL's tables from this version, or from 0 if there are
    /// none, to this program's, for `psql -1 -v ON_ERROR_STOP=1 -f -`.
    #[arg(long, value_name = "FROM")]
    print_migration: Option<i32>,
}

impl Options {
    /// Returns a statement on the tables in the schema that was said.
    fn sql(&self, sql: &str) -> String {
        sql.replace(
            "tickwheel.",
            &format!("\"{}\".", self.schema.replace('"', "\"\"")),
        )
    }

    /// Returns what is to be listed.
    fn search(&self) -> Search {
        let search = Search::new(self.limit);
        let search = self.tag.iter().fold(search, Search::tag);
        self.key_prefix.iter().fold(search, Search::key_prefix)
    }

    /// Returns which of the timers that are due next are to be listed.
    fn search_next(&self) -> Search {
        let search = if self.running {
            self.search().running(true)
        } else {
            self.search()
        };
        let Some(within) = self.within else {
            return search;
        };
        let end = StoreTime::from(SystemTime::now()).plus(Duration::from_secs(within));
        search.between(StoreTime::MIN.into()..end.into())
    }

    /// Returns whether it changes something.
    fn writes(&self) -> bool {
        self.requeue.is_some() || self.requeue_tag.is_some()
    }

    /// Returns which of the dead timers are to be listed.
    fn search_dead(&self) -> Search {
        let Some(since) = self.since else {
            return self.search();
        };
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
    let config: Result<Config, _> = text.parse();
    let mut config = config.map_err(|error| format!("no such file, nor a server: {error}"))?;
    if let (None, Ok(password)) = (config.get_password(), std::env::var("PGPASSWORD")) {
        config.password(password);
    }
    Ok(Target::Server(Box::new(config)))
}

/// How many bars there are, and how many characters the longest has.
const BARS: u32 = 20;
const WIDTH: u64 = 50;
/// How many dead timers are read, or requeued, at a time.
const PAGE: u32 = 1_000;

/// Returns what connects by TLS, where it is demanded.
fn tls(server: &Config) -> Result<Option<MakeRustlsConnect>, Box<dyn Error>> {
    if server.get_ssl_mode() != SslMode::Require {
        return Ok(None);
    }
    let (tls, _) = MakeRustlsConnect::with_native_certs()
        .map_err(|errors| format!("the system has no certificates: {errors:?}"))?;
    Ok(Some(tls))
}

async fn connect(
    server: &Config,
    tls: Option<MakeRustlsConnect>,
) -> Result<Client, Box<dyn Error>> {
    if let Some(tls) = tls {
        let (client, connection) = server.connect(tls).await?;
        tokio::spawn(connection);
        return Ok(client);
    }
    let (client, connection) = server.connect(NoTls).await.map_err(|error| {
        let told = error
            .source()
            .map_or_else(String::new, <dyn Error>::to_string);
        match told.contains("no encryption") {
            true => format!("{told}: add sslmode=require").into(),
            false => Box::<dyn Error>::from(error),
        }
    })?;
    tokio::spawn(connection);
    Ok(client)
}

/// Opens a primary, unless that would make the namespace or change the tables.
async fn open(server: &Config, options: &Options) -> Result<(Client, Postgres), Box<dyn Error>> {
    let Options {
        namespace, schema, ..
    } = options;
    let tls = tls(server)?;
    let client = connect(server, tls.clone()).await?;
    let sql = options.sql("SELECT version FROM tickwheel.version");
    let found: i32 = match client.query_typed(&sql, &[]).await {
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => 0,
        rows => rows?.first().map_or(0, |row| row.get(0)),
    };
    if found == 0 {
        let how = "a node makes them, or --print-migration 0";
        return Err(format!("there are no tables in schema {schema:?}: {how}").into());
    }
    if found < VERSION {
        migration(schema, found)?; // An unknown version is said to be one.
        let how = format!("by a node, or by --print-migration {found}");
        return Err(format!("tables of version {found} are to be migrated first, {how}").into());
    }
    let sql = options.sql("SELECT name FROM tickwheel.namespace ORDER BY name");
    let rows = client.query_typed(&sql, &[]).await?;
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    if !names.contains(&&**namespace) {
        let hosts = server.get_hosts();
        let told = format!("there is no namespace {namespace:?} on {hosts:?}, but {names:?}");
        return Err(told.into());
    }
    let builder = Durable::postgres(server.clone())
        .namespace(namespace)
        .schema(schema);
    let builder = tls.into_iter().fold(builder, DurableBuilder::tls);
    Ok((client, builder.store().open().await?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = look(&Options::parse()).await else {
        return ExitCode::SUCCESS;
    };
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    eprintln!("{error}{causes}");
    ExitCode::FAILURE
}

async fn look(options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(from) = options.print_migration {
        print!("{}", migration(&options.schema, from)?);
        return Ok(());
    }
    match &options.target {
        None => {}
        Some(Target::File(path)) => {
            let file = Durable::sqlite(path).store();
            let file = if options.writes() {
                file
            } else {
                file.read_only()
            };
            let file = file.open().await.map_err(|error| match error.to_string() {
                told if told.contains("has the file open") => {
                    format!("{told}: that node has `node.list`, `node.dead` and `node.requeue`")
                }
                told => told,
            })?;
            tell(&file, options).await?;
        }
        Some(Target::Server(server)) => {
            let (client, store) = open(server, options).await?;
            if !options.writes() {
                owners(&client, &store, options).await?;
            }
            tell(&store, options).await?;
        }
    }
    Ok(())
}

async fn tell(store: &impl Store, options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(id) = options.requeue {
        return requeue(store, id).await;
    }
    if let Some(tag) = &options.requeue_tag {
        return requeue_tag(store, tag).await;
    }
    // It would count all of them.
    if options.tag.is_none() && options.key_prefix.is_none() {
        histogram(store, options.ahead).await?;
    }
    list(store, options).await
}

/// Lists pauses, what is due next, and what is dead.
async fn list(store: &impl Store, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut pauses = store.pauses().await?;
    pauses.sort();
    let next = store.list(options.search_next()).await?;
    let dead = store.dead(options.search_dead()).await?;
    let now = StoreTime::from(SystemTime::now());
    for Paused { tag, until, .. } in pauses {
        let which = tag.map_or("all".to_owned(), |tag| format!("tag {tag}"));
        println!("paused: {which}, for {} s", until.since(now).as_secs());
    }
    println!(
        "\nwhat is due next: {}",
        if next.is_empty() { "nothing" } else { "" }
    );
    for timer in next {
        let (key, tag) = (timer.key.unwrap_or_default(), timer.tag.unwrap_or_default());
        let when = (timer.at.as_micros() - now.as_micros()) as f64 / 1e6;
        let state = if timer.running {
            "a handler has it"
        } else {
            ""
        };
        let (id, attempts) = (timer.id, timer.attempts);
        println!("{id:>20}  {key:20}  {tag:12}  in {when:.1} s, {attempts} attempts  {state}");
    }
    println!(
        "\ndead timers, the oldest first: {}",
        if dead.is_empty() { "none" } else { "" }
    );
    for timer in dead {
        let (key, tag) = (timer.key.unwrap_or_default(), timer.tag.unwrap_or_default());
        let since = now.since(timer.died).as_secs();
        let (id, attempts, reason) = (timer.id, timer.attempts, timer.reason);
        println!("{id:>20}  {key:20}  {tag:12}  {since} s ago, {attempts} attempts: {reason}");
    }
    Ok(())
}

async fn requeue(store: &impl Store, id: i64) -> Result<(), Box<dyn Error>> {
    if store.requeue(id).await? {
        println!("requeued");
        return Ok(());
    }
    let mut page = store.dead(Search::new(PAGE)).await?;
    while let Some(last) = page.last() {
        if page.iter().any(|timer| timer.id == id) {
            return Err("it stays dead: its key has a timer again".into());
        }
        page = store.dead(Search::new(PAGE).after(last)).await?;
    }
    Err("there is no such dead timer".into())
}

async fn requeue_tag(store: &impl Store, tag: &str) -> Result<(), Box<dyn Error>> {
    let mut all = 0;
    // What dies again meanwhile has died later.
    let before = store.after_the_dead().await?;
    let scope = Scope {
        tag: Some(tag.to_owned()),
        id: None,
    };
    loop {
        let step = store
            .bulk(scope.clone(), Bulk::Requeue(before), PAGE)
            .await?;
        all += step.count;
        match step.more {
            None => break,
            Some(_) if step.count > 0 => {}
            Some(_) => return Err(format!("requeued {all}; a transaction has more").into()),
        }
    }
    if all == 0 {
        return Err(
            "none of that tag was requeued: none is dead, or their keys have timers".into(),
        );
    }
    println!("requeued {all}");
    Ok(())
}

/// Tells who owns the slots.
async fn owners(
    client: &Client,
    store: &Postgres,
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    let (first, end) = (store.slot(0), store.slot(0) + store.slots());
    let sql = format!(
        "SELECT s.owner, count(*), max(s.epoch),
            (SELECT lease_until - tickwheel.clock() FROM tickwheel.member WHERE node = s.owner)
        FROM tickwheel.slot s WHERE slot >= {first} AND slot < {end}
        GROUP BY s.owner ORDER BY s.owner"
    );
    println!("{:>20}  slots  latest epoch  lease, s", "owner");
    for row in client.query_typed(&options.sql(&sql), &[]).await? {
        let owner = row
            .get::<_, Option<i64>>(0)
            .map_or("nobody".to_owned(), |id| id.to_string());
        let lease = row.get::<_, Option<i64>>(3);
        let lease = lease.map_or("none".to_owned(), |left| {
            format!("{:.1}", left as f64 / 1e6)
        });
        let (slots, epoch) = (row.get::<_, i64>(1), row.get::<_, i64>(2));
        println!("{owner:>20}  {slots:5}  {epoch:12}  {lease:>8}");
    }
    Ok(())
}

async fn histogram(store: &impl Store, ahead: u64) -> Result<(), Box<dyn Error>> {
    let now = StoreTime::from(SystemTime::now());
    let width = Duration::from_secs(ahead.max(1)) / BARS;
    let past = Bars {
        from: StoreTime::MIN,
        width: now.since(StoreTime::MIN),
        count: 1,
    };
    let overdue: u64 = store.histogram(past).await?.iter().sum();
    let bars = store
        .histogram(Bars {
            from: now,
            width,
            count: BARS,
        })
        .await?;
    println!("\noverdue, or in a handler's hands: {overdue}");
    let most = bars.iter().copied().max().unwrap_or(0).max(1);
    for (bar, count) in bars.iter().enumerate() {
        let from = width.as_secs_f64() * bar as f64;
        let line = "#".repeat((count * WIDTH).div_ceil(most) as usize);
        println!("in {from:8.0} s {count:9} {line}");
    }
    Ok(())
}
