//! Lists the timers of a namespace that are due next, and dead timers, by a node that runs no
//! timer.

use clap::Parser;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use tickwheel::Timer;
use tickwheel_durable::store::Store;
use tickwheel_durable::store::postgres::tables;
use tickwheel_durable::{
    DeadTimer, Durable, DurableBuilder, Listed, OpenStore, Outcome, Paused, Search, StoreTime,
};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Lists durable timers in a file or on PostgreSQL.
///
/// Put a password into PGPASSWORD, as other users can see a command line. With `sslmode=require`
/// the program connects by TLS, and checks the server's certificate by those of the system, or by
/// those in the file that SSL_CERT_FILE names.
#[derive(Parser)]
struct Options {
    /// An SQLite file that you may write and that no node has open. Or how to connect to
    /// PostgreSQL: "host=localhost user=app", or a URL.
    #[arg(required_unless_present = "print_tables", value_parser = target)]
    target: Option<Target>,
    /// The namespace on PostgreSQL; a file has only one.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// The schema of PostgreSQL's tables.
    #[arg(long, default_value = "tickwheel")]
    schema: String,
    /// How many timers to list at most, and how many dead timers.
    #[arg(long, default_value_t = 20)]
    limit: u32,
    /// Lists only timers with this tag.
    #[arg(long)]
    tag: Option<String>,
    /// Lists only timers whose keys begin so.
    #[arg(long)]
    key_prefix: Option<String>,
    /// Makes this dead timer due at once.
    #[arg(long, allow_hyphen_values = true)]
    requeue: Option<i64>,
    /// Makes all dead timers of this tag due at once.
    #[arg(long, conflicts_with = "requeue")]
    requeue_tag: Option<String>,
    /// Prints the SQL that makes PostgreSQL's tables, for `psql -1 -v ON_ERROR_STOP=1 -f -`.
    #[arg(long)]
    print_tables: bool,
}

impl Options {
    /// Returns what is to be listed.
    fn search(&self) -> Search {
        let search = Search::new(self.limit);
        let search = self.tag.iter().fold(search, Search::tag);
        self.key_prefix.iter().fold(search, Search::key_prefix)
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
    if config.get_password().is_none() {
        if let Ok(password) = std::env::var("PGPASSWORD") {
            config.password(password);
        }
    }
    Ok(Target::Server(Box::new(config)))
}

/// Looks at a namespace on a server.
async fn look_at_server(server: &Config, options: &Options) -> Result<(), Box<dyn Error>> {
    let node = Durable::postgres(server.clone())
        .namespace(&options.namespace)
        .schema(&options.schema)
        .existing_tables();
    let node = match server.get_ssl_mode() {
        SslMode::Require => {
            let (tls, _) = MakeRustlsConnect::with_native_certs()
                .map_err(|errors| format!("the system has no certificates: {errors:?}"))?;
            node.tls(tls)
        }
        _ => node,
    };
    tell(&start(node).await?, options).await
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
    eprintln!("{error}");
    ExitCode::FAILURE
}

async fn look(options: &Options) -> Result<(), Box<dyn Error>> {
    if options.print_tables {
        print!("{}", tables(&options.schema)?);
        return Ok(());
    }
    match &options.target {
        None => Ok(()),
        Some(Target::File(path)) => {
            let node = Durable::sqlite(path).existing_tables();
            tell(&start(node).await?, options).await
        }
        Some(Target::Server(server)) => look_at_server(server, options).await,
    }
}

async fn tell(node: &Durable<impl Store>, options: &Options) -> Result<(), Box<dyn Error>> {
    let requeued = match (options.requeue, &options.requeue_tag) {
        (Some(id), _) => u64::from(node.requeue(id).await?),
        (None, Some(tag)) => node.requeue_all(Some(tag)).await?,
        (None, None) => return list(node, options).await,
    };
    if requeued == 0 {
        return Err("none was requeued: none such is dead, or its key has a timer again".into());
    }
    println!("requeued {requeued}");
    Ok(())
}

/// Lists pauses, what is due next, and what is dead.
async fn list(node: &Durable<impl Store>, options: &Options) -> Result<(), Box<dyn Error>> {
    let pauses = node.pauses().await?;
    let next = node.list(options.search()).await?;
    let dead = node.dead(options.search()).await?;
    let now = StoreTime::from(SystemTime::now());
    // Not `println!`, which panics if a pager has closed the pipe.
    let mut out = io::stdout().lock();
    for Paused { tag, until, .. } in pauses {
        let which = tag.map_or("all".to_owned(), |tag| format!("tag {}", shown(&tag)));
        writeln!(out, "paused: {which}, for {} s", until.since(now).as_secs())?;
    }
    let most = options.limit;
    let count = next.len();
    writeln!(out, "\ndue next: {count} of at most {most}")?;
    for timer in next {
        let key = shown(&timer.key.unwrap_or_default());
        let tag = shown(&timer.tag.unwrap_or_default());
        let seconds = (timer.at.as_micros() - now.as_micros()) as f64 / 1e6;
        let when = match seconds < 0.0 {
            true => format!("{:.1} s overdue", -seconds),
            false => format!("in {seconds:.1} s"),
        };
        let state = match timer.running {
            true => "a handler has it",
            false => "",
        };
        let Listed { id, attempts, .. } = timer;
        let what = format!("{when}, {attempts} attempts  {state}");
        writeln!(out, "{id:>20}  {key:20}  {tag:12}  {what}")?;
    }
    let count = dead.len();
    writeln!(out, "\ndead, the oldest first: {count} of at most {most}")?;
    for timer in dead {
        let key = shown(&timer.key.unwrap_or_default());
        let tag = shown(&timer.tag.unwrap_or_default());
        let since = now.since(timer.died).as_secs();
        let DeadTimer { id, attempts, .. } = timer;
        let what = format!(
            "{since} s ago, {attempts} attempts: {}",
            shown(&timer.reason)
        );
        writeln!(out, "{id:>20}  {key:20}  {tag:12}  {what}")?;
    }
    Ok(())
}

/// Returns a user's text without control characters, which could forge lines.
fn shown(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
