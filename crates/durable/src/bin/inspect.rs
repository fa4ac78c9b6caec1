//! Looks at the timers of a namespace by a node that runs none: which are due next, and dead.

use clap::Parser;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::Store;
use tickwheel_durable::store::postgres::{VERSION, migration};
use tickwheel_durable::{
    DeadTimer, Durable, DurableBuilder, Listed, OpenStore, Outcome, Paused, Search, StoreTime,
};
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
    /// An SQLite file, which you may write, and which no node has open meanwhile. Or how to
    /// connect: "host=localhost user=app", or a URL.
    #[arg(required_unless_present = "print_migration", value_parser = target)]
    target: Option<Target>,
    /// Whose timers; a file has one namespace.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Where PostgreSQL's tables lie.
    #[arg(long, default_value = "tickwheel")]
    schema: String,
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
    /// Returns a statement on what lies in the schema that was said.
    fn sql(&self, sql: &str) -> String {
        sql.replace("tickwheel.", &format!("\"{}\".", self.schema))
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

/// How many dead timers are read at a time.
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

/// Fails unless there are tables of this program's version: a node would make or change them.
async fn check_version(client: &Client, options: &Options) -> Result<(), Box<dyn Error>> {
    let schema = &options.schema;
    migration(schema, 0)?; // What is no name of a schema is said to be none.
    let sql = options.sql("SELECT tickwheel.version()");
    let found: i32 = match client.query_typed(&sql, &[]).await {
        Err(error) if is_missing(&error) => 0,
        rows => rows?.first().map_or(0, |row| row.get(0)),
    };
    migration(schema, found)?; // An unknown version is said to be one.
    if found == VERSION {
        return Ok(());
    }
    let told = match found {
        0 => format!("there are no tables in schema {schema:?}: a node makes them"),
        _ => format!("tables of version {found} are to be migrated first, by a node"),
    };
    Err(format!("{told}, or --print-migration {found}").into())
}

/// Returns whether there is no such function, or no such schema.
fn is_missing(error: &tokio_postgres::Error) -> bool {
    let missing = [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME];
    error.code().is_some_and(|code| missing.contains(code))
}

/// Leaps from each namespace that has timers to the next one, by the primary key.
const NAMESPACES: &str = "WITH RECURSIVE found(space) AS (
        (SELECT space FROM tickwheel.timer ORDER BY space, name LIMIT 1)
        UNION ALL
        SELECT (SELECT t.space FROM tickwheel.timer t WHERE t.space > found.space
            ORDER BY t.space, t.name LIMIT 1)
        FROM found WHERE found.space IS NOT NULL
    )
    SELECT space FROM found WHERE space IS NOT NULL
    UNION SELECT space FROM tickwheel.pause ORDER BY space";

/// Fails if a namespace has neither timers nor pauses, and says which have.
async fn check_namespace(client: &Client, options: &Options) -> Result<(), Box<dyn Error>> {
    let rows = client.query_typed(&options.sql(NAMESPACES), &[]).await?;
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    let namespace = &*options.namespace;
    match names.contains(&namespace) {
        true => Ok(()),
        false => Err(format!("namespace {namespace:?} has no timers, but {names:?} have").into()),
    }
}

/// Looks at a namespace on a server.
async fn look_at_server(server: &Config, options: &Options) -> Result<(), Box<dyn Error>> {
    let tls = tls(server)?;
    let client = connect(server, tls.clone()).await?;
    check_version(&client, options).await?;
    check_namespace(&client, options).await?;
    let node = Durable::postgres(server.clone())
        .namespace(&options.namespace)
        .schema(&options.schema);
    let node = tls.into_iter().fold(node, DurableBuilder::tls);
    tell(&start(node).await?, options).await
}

/// Looks at a file.
async fn look_at_file(path: &Path, options: &Options) -> Result<(), Box<dyn Error>> {
    let node = start(Durable::sqlite(path)).await.map_err(|error| {
        let told = error.to_string();
        let says = |words: &[&str]| words.iter().any(|word| told.contains(word));
        if says(&["has the file open"]) {
            return format!("{told}: that node has `node.list`, `node.dead` and `node.requeue`");
        }
        if says(&["denied", "Read-only"]) {
            return format!("{told}: copy the file and its -wal to a folder that may be written");
        }
        told
    })?;
    tell(&node, options).await
}

/// Starts a node that runs no timer.
async fn start<O: OpenStore>(node: DurableBuilder<O>) -> Result<Durable<O::Store>, Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let node = node.max_in_flight(0);
    Ok(node.start(&timer, |_| async { Outcome::Done }).await?)
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
        None => Ok(()),
        Some(Target::File(path)) => look_at_file(path, options).await,
        Some(Target::Server(server)) => look_at_server(server, options).await,
    }
}

async fn tell(node: &Durable<impl Store>, options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(id) = options.requeue {
        return requeue(node, id).await;
    }
    if let Some(tag) = &options.requeue_tag {
        return requeue_tag(node, tag).await;
    }
    list(node, options).await
}

/// Lists pauses, what is due next, and what is dead.
async fn list(node: &Durable<impl Store>, options: &Options) -> Result<(), Box<dyn Error>> {
    let pauses = node.pauses().await?;
    let next = node.list(options.search_next()).await?;
    let dead = node.dead(options.search_dead()).await?;
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
        let key = timer.key.unwrap_or_default();
        let tag = timer.tag.unwrap_or_default();
        let when = (timer.at.as_micros() - now.as_micros()) as f64 / 1e6;
        let state = if timer.running {
            "a handler has it"
        } else {
            ""
        };
        let Listed { id, attempts, .. } = timer;
        println!("{id:>20}  {key:20}  {tag:12}  in {when:.1} s, {attempts} attempts  {state}");
    }
    println!(
        "\ndead timers, the oldest first: {}",
        if dead.is_empty() { "none" } else { "" }
    );
    for timer in dead {
        let key = timer.key.unwrap_or_default();
        let tag = timer.tag.unwrap_or_default();
        let since = now.since(timer.died).as_secs();
        let DeadTimer {
            id,
            attempts,
            reason,
            ..
        } = timer;
        println!("{id:>20}  {key:20}  {tag:12}  {since} s ago, {attempts} attempts: {reason}");
    }
    Ok(())
}

async fn requeue(node: &Durable<impl Store>, id: i64) -> Result<(), Box<dyn Error>> {
    if node.requeue(id).await? {
        println!("requeued");
        return Ok(());
    }
    let mut page = node.dead(Search::new(PAGE)).await?;
    while let Some(last) = page.last() {
        if page.iter().any(|timer| timer.id == id) {
            return Err("it stays dead: its key has a timer again".into());
        }
        page = node.dead(Search::new(PAGE).after(last)).await?;
    }
    Err("there is no such dead timer".into())
}

async fn requeue_tag(node: &Durable<impl Store>, tag: &str) -> Result<(), Box<dyn Error>> {
    match node.requeue_all(Some(tag)).await? {
        0 => Err("none of that tag was requeued: none is dead, or their keys have timers".into()),
        all => {
            println!("requeued {all}");
            Ok(())
        }
    }
}
