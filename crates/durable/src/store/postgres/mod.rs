//! A store on PostgreSQL, for any number of nodes.

mod bulk;
mod claims;
mod link;
mod schedule;
mod schema;
mod store;
mod timers;
mod within;

use crate::durable::{Durable, DurableBuilder, OpenStore};
use crate::entry::{Error, check_name};
use crate::store::postgres::link::{Ask, Connection, Connector, Link, explain, slot, within};
use crate::store::postgres::schema::{DEFAULT, On, Schema};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

/// A namespace of timers in a PostgreSQL database, version 13 or later.
///
/// A node has seven connections from its start: one for its lease alone, one each to load, claim
/// and acknowledge, two for users' writes, and one for notices while it rests. Without all seven it
/// does not start. Lists and counts of timers use an eighth. A node behind PgBouncer in transaction
/// mode works; there a resting node looks once a second.
#[derive(Debug)]
pub struct Postgres {
    first: u32,
    connector: Connector,
    lease: Link,
    load: Link,
    claim: Link,
    acknowledge: Link,
    write: [Link; 2],
    /// For lists and counts, one at a time: no other call waits behind them.
    look: Mutex<Link>,
    /// Which write link is next.
    turn: AtomicUsize,
    /// The store's clock at the last hints, in microseconds.
    seen: AtomicI64,
    /// Whether a node has joined.
    joined: AtomicBool,
    /// Receives notices of timers while the node rests.
    listener: Mutex<Option<Listener>>,
    /// The transaction by which the node rests, or 0.
    rests_since: AtomicI64,
}

#[derive(Debug)]
struct Listener {
    connection: Connection,
    /// Whether notices arrive, if known: a pooler passes none.
    hears: Option<bool>,
}

/// A database that [`Durable::postgres`] connects to.
#[derive(Debug)]
pub struct PostgresServer {
    config: Config,
    connector: Connector,
    namespace: String,
    schema: String,
}

impl Durable<Postgres> {
    /// Sets up a node on a PostgreSQL database, without TLS unless [`tls`](DurableBuilder::tls) is
    /// called. The tables lie in a schema of their own, and are made if missing.
    pub fn postgres(config: Config) -> DurableBuilder<PostgresServer> {
        let connector = Connector::new(config.clone(), NoTls);
        let (namespace, schema) = ("default".to_owned(), DEFAULT.to_owned());
        DurableBuilder::new(PostgresServer {
            config,
            connector,
            namespace,
            schema,
        })
    }
}

impl DurableBuilder<PostgresServer> {
    /// Sets the namespace, `default` by default: its nodes share its timers. At most 512 bytes,
    /// without a zero byte.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.store.namespace = namespace.into();
        self
    }

    /// Sets the schema of the tables and functions, `tickwheel` by default: at most 63 letters,
    /// digits and underscores. Nodes of different schemas are independent.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.store.schema = schema.into();
        self
    }

    /// Sets the TLS connector, such as `tokio_postgres_rustls::MakeRustlsConnect`.
    pub fn tls<T>(mut self, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.store.connector = Connector::new(self.store.config.clone(), tls);
        self
    }
}

impl OpenStore for PostgresServer {
    type Store = Postgres;

    async fn open(mut self) -> Result<Postgres, Error> {
        check_name("namespace", &self.namespace)?;
        self.connector.schema = Schema::new(&self.schema)?;
        let (first, connection) = prepare(&self.connector, &self.namespace).await?;
        let link = || Link::new(self.connector.clone(), None);
        Ok(Postgres {
            first,
            lease: Link::new(self.connector.clone(), Some(connection)),
            load: link(),
            claim: link(),
            acknowledge: link(),
            write: [link(), link()],
            look: Mutex::new(link()),
            turn: AtomicUsize::new(0),
            seen: AtomicI64::new(0),
            joined: AtomicBool::new(false),
            listener: Mutex::new(None),
            rests_since: AtomicI64::new(0),
            connector: self.connector,
        })
    }
}

/// Wakes resting nodes.
const NOTICE: &str = "SELECT pg_notify($1, '')";

/// Ends a transaction whose client stands still.
const IDLE_BOUND: &str = "SET LOCAL idle_in_transaction_session_timeout = '5s'";

/// How long the first notice may take.
const HEARS: Duration = Duration::from_secs(1);

impl Postgres {
    /// Listens for timers; returns whether notices arrive.
    async fn listen(&self) -> Result<bool, Error> {
        let mut listener = self.listener.lock().await;
        // One that has ended tells at once, again and again.
        let known = listener
            .take()
            .filter(|known| !known.connection.client.is_closed());
        let Listener {
            mut connection,
            hears,
        } = match known {
            Some(known) => known,
            None => self.listener().await?,
        };
        let hears = match hears {
            Some(hears) => hears,
            None => {
                let channel = self.channel();
                let listen = format!("LISTEN {channel}");
                within(
                    self.connector
                        .schema
                        .on(&connection.client)
                        .execute(&listen),
                )
                .await?;
                // From another connection: a pooler passes on what comes while one is in use.
                self.load.ask(NOTICE, &[&channel]).await?;
                tokio::time::timeout(HEARS, connection.noticed.changed())
                    .await
                    .is_ok()
            }
        };
        *listener = Some(Listener {
            connection,
            hears: Some(hears),
        });
        Ok(hears)
    }

    async fn listener(&self) -> Result<Listener, Error> {
        Ok(Listener {
            connection: self.connector.connection().await?,
            hears: None,
        })
    }

    /// Makes all connections, or says how many are missing.
    async fn connect_all(&self) -> Result<(), Error> {
        let links = self.own().into_iter().chain(&self.write);
        let all = links.clone().count() + 1;
        let missing = |made, error| {
            let told = format!("a node needs {all} connections, and was given {made}: {error}");
            Error::unavailable(told)
        };
        for (made, link) in links.enumerate() {
            link.connect().await.map_err(|error| missing(made, error))?;
        }
        let listener = self
            .listener()
            .await
            .map_err(|error| missing(all - 1, error))?;
        *self.listener.lock().await = Some(listener);
        Ok(())
    }

    async fn connect_own(&self) -> Result<(), Error> {
        for link in self.own() {
            link.connect().await?;
        }
        Ok(())
    }

    /// Returns the links that a node needs to fire timers.
    fn own(&self) -> [&Link; 4] {
        [&self.lease, &self.load, &self.claim, &self.acknowledge]
    }

    /// Makes deleted slots anew, with a warning.
    async fn mend(&self) -> Result<(), Error> {
        let slots = make_slots(&self.load, self.range()).await?;
        tracing::warn!(slots, "slots were missing, and are made anew");
        Ok(())
    }

    /// Makes missing slots anew, and fails then.
    async fn check_slots(&self, found: u32) -> Result<(), Error> {
        if found >= SLOTS {
            return Ok(());
        }
        self.mend().await?;
        Err(missing())
    }

    /// Returns the number of the namespace.
    fn namespace(&self) -> i32 {
        slot(self.first / SLOTS)
    }

    /// Returns the channel of the resting nodes.
    fn channel(&self) -> String {
        format!("tickwheel_{}", self.namespace())
    }

    /// Returns the first and the last slot of the namespace.
    fn range(&self) -> Range {
        [slot(self.first), slot(self.first + SLOTS - 1)]
    }

    fn write(&self) -> &Link {
        // Relaxed: any turn will do.
        &self.write[self.turn.fetch_add(1, Ordering::Relaxed) % self.write.len()]
    }
}

/// Notifies resting nodes of `$rows`, which have slots and dues. The statement must read `told`.
macro_rules! told {
    ($rows:literal) => {
        concat!(
            "told AS MATERIALIZED (
                SELECT pg_notify('tickwheel_' || m.namespace, '') FROM tickwheel.member m
                WHERE m.rests AND EXISTS (SELECT FROM ",
            $rows,
            " w WHERE w.slot / 1024 = m.namespace AND w.due < m.horizon))"
        )
    };
}
use told;

/// Hints at rows to the owners of their slots, restricted by `$but`, and notifies resting nodes.
macro_rules! hinted {
    ($rows:literal, $but:literal) => {
        concat!(
            "hinted AS (INSERT INTO tickwheel.inbox (node, written, slot, due, id)
                SELECT m.node, tickwheel.clock(), w.slot, w.due, w.id FROM ",
            $rows,
            " w JOIN tickwheel.slot s USING (slot) JOIN tickwheel.member m ON m.node = s.owner
                WHERE w.due < m.horizon ",
            $but,
            "), ",
            told!($rows)
        )
    };
}
use hinted;

/// Joins to a row `i` the timer with the same columns. The limit of one makes the server use an
/// index for each row, also for a table that was vacuumed while empty. `at` locates the timer for
/// lock and write; the second comparison makes the server expect one row.
macro_rules! timer {
    ($($column:literal),+) => {
        concat!(
            "JOIN LATERAL (SELECT ctid AS at, * FROM tickwheel.timer WHERE true",
            $(" AND ", $column, " = i.", $column,)+
            " LIMIT 1) t ON true",
            $(" AND t.", $column, " = i.", $column,)+
            " "
        )
    };
}
use timer;

/// The first and the last slot of a namespace.
type Range = [i32; 2];

/// Slots are missing, for example because all tables were emptied.
#[derive(Debug)]
struct Missing;

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slots of the namespace were deleted: they are made anew, so try again")
    }
}

impl std::error::Error for Missing {}

fn missing() -> Error {
    Error::unavailable(Missing)
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Unavailable(cause) if cause.is::<Missing>())
}

/// How many slots a namespace has. Never changes: a key's slot follows from its hash.
const SLOTS: u32 = 1_024;

/// The steps to the oldest version that is migrated, and from each version to the next. Never
/// changed once released.
const MIGRATIONS: [&str; 2] = [include_str!("tables.sql"), include_str!("version_8.sql")];

/// The oldest version of the tables that is migrated.
const OLDEST: i32 = 7;

/// The version of the tables that this crate uses.
pub const VERSION: i32 = OLDEST + MIGRATIONS.len() as i32 - 1;

/// Takes the lock for changes of tables. Its number is "tickwhee".
const LOCK: &str = "SELECT pg_advisory_xact_lock(8388345094170240357);";

/// Migrates the tables if needed, and returns the first slot of the namespace, which is made if
/// missing. Up-to-date tables need no rights to change them.
async fn prepare(connector: &Connector, namespace: &str) -> Result<(u32, Connection), Error> {
    let mut connection = connector.connection().await?;
    let client = &mut connection.client;
    if within(version(connector.schema.on(client))).await? != Some(VERSION) {
        // As long as it takes: an index is built, or another node migrates.
        let change = client.transaction().await.map_err(explain)?;
        migrate(connector.schema.on(change.client())).await?;
        change.commit().await.map_err(explain)?;
    }
    let first = within(first_slot(connector.schema.on(client), namespace)).await?;
    Ok((first, connection))
}

/// Returns the version of the tables, if there are any.
async fn version(client: On<'_>) -> Result<Option<i32>, Error> {
    // A table that is read: a name alone is looked up among those that were known before the lock.
    let sql = "SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'version'";
    if client.ask(sql, &[&client.schema.name()]).await?.is_empty() {
        return Ok(None);
    }
    let rows = client
        .ask("SELECT version FROM tickwheel.version", &[])
        .await?;
    let found = rows.first().map(|row| row.get(0));
    check(found)?;
    Ok(found)
}

/// Returns how many steps were done.
fn check(found: Option<i32>) -> Result<usize, Error> {
    match found.unwrap_or(0) {
        0 => Ok(0),
        found @ OLDEST..=VERSION => Ok((found - OLDEST + 1) as usize),
        found => Err(Error::UnknownSchema {
            found,
            known: VERSION,
        }),
    }
}

/// Migrates the tables. One node migrates; the others wait.
async fn migrate(change: On<'_>) -> Result<(), Error> {
    change.execute(IDLE_BOUND).await?;
    change.execute(LOCK).await?;
    match version(change).await? {
        Some(VERSION) => Ok(()),
        found => {
            change
                .execute(&migration(change.schema.name(), found.unwrap_or(0))?)
                .await
        }
    }
}

/// Returns the SQL that migrates the tables of a schema from a version to [`VERSION`]: from 0 if
/// there are none. For an administrator whose nodes have no rights to change tables. Run it as one
/// transaction, which fails if the tables are of another version.
///
/// # Errors
/// [`Error::UnknownSchema`] if `from` is a version that is not migrated; [`Error::BadName`].
pub fn migration(schema: &str, from: i32) -> Result<String, Error> {
    let (done, schema) = (check(Some(from))?, Schema::new(schema)?);
    let (steps, name) = (MIGRATIONS[done..].join("\n"), schema.name());
    let sql = format!(
        "{LOCK}
CREATE SCHEMA IF NOT EXISTS \"{name}\";
CREATE TABLE IF NOT EXISTS tickwheel.version (version int NOT NULL);
DO $$ BEGIN
    IF (SELECT coalesce(max(version), 0) FROM tickwheel.version) <> {from} THEN
        RAISE EXCEPTION 'the tables are not of version {from}';
    END IF;
END $$;
{steps}
DELETE FROM tickwheel.version;
INSERT INTO tickwheel.version VALUES ({VERSION});
"
    );
    Ok(schema.of(&sql).into_owned())
}

async fn first_slot(client: On<'_>, namespace: &str) -> Result<u32, Error> {
    let sql = "SELECT id FROM tickwheel.namespace WHERE name = $1";
    let mut rows = client.ask(sql, &[&namespace]).await?;
    if rows.is_empty() {
        // Draws a number also where another node was first: none is made at each start.
        let made = "INSERT INTO tickwheel.namespace (name) VALUES ($1) ON CONFLICT DO NOTHING";
        client.ask(made, &[&namespace]).await?;
        rows = client.ask(sql, &[&namespace]).await?;
    }
    let id: Option<i32> = rows.first().map(|row| row.get(0));
    let id = id.ok_or_else(|| Error::unavailable("the namespace was deleted meanwhile"))?;
    let last = id
        .checked_add(1)
        .and_then(|next| next.checked_mul(SLOTS as i32));
    let last = last.ok_or_else(|| Error::unavailable("there are too many namespaces"))?;
    let first = last - SLOTS as i32;
    make_slots(&client, [first, last - 1]).await?;
    Ok(first.unsigned_abs())
}

/// Makes missing slots of a namespace; returns how many. Each begins in an epoch above all former
/// epochs of its number.
async fn make_slots(at: &impl Ask, [first, last]: Range) -> Result<usize, Error> {
    let made = "INSERT INTO tickwheel.slot (slot, epoch)
        SELECT slot, tickwheel.clock() FROM generate_series($1, $2) AS s(slot)
        ON CONFLICT DO NOTHING RETURNING slot";
    Ok(at.ask(made, &[&first, &last]).await?.len())
}
