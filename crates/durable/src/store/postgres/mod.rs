//! A store on PostgreSQL, for any number of nodes.

mod bulk;
mod claims;
mod hosts;
mod link;
mod lists;
mod look;
mod schema;
#[cfg(test)]
#[path = "../../../tests/inside/postgres/mod.rs"]
mod tests;
mod timers;
mod within;

use crate::contained::event;
use crate::durable::{Durable, DurableBuilder, OpenStore};
use crate::entry::{
    Cancelled, DeadTimer, Error, Listed, Paused, Scheduled, Search, Touched, check_name,
};
use crate::store::postgres::link::{
    Ask, Connection, Connector, Dial, Link, dial, field, may_be_of_a_trigger, one, within,
};
use crate::store::postgres::look::Floor;
use crate::store::postgres::schema::{DEFAULT, On, Schema};
use crate::store::{
    Ack, Answer, Bulk, Changed, Claims, Look, Name, NewTimer, Operations, Place, Renewal, Step,
    Want,
};
use crate::sync;
use crate::when::{Moment, StoreTime};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

/// A namespace of timers in a PostgreSQL database in UTF-8, version 13 or later.
///
/// A node has up to eight connections: one each to claim, to acknowledge, to renew, for looks and
/// for notices, two for users' writes, and one from the first list or change of many timers on. A
/// node behind PgBouncer in transaction mode works, unless sessions there have another isolation or
/// `synchronous_commit`: see [operations](crate::guide::operations). It hears no notices there, and
/// finds within a second what transactions, SQL and other nodes have scheduled.
pub struct Postgres {
    connector: Arc<Connector>,
    claim: Link,
    acknowledge: Link,
    /// A trigger that takes long with one outcome costs no other timer its claim.
    renew: Link,
    look: Link,
    write: [Link; 2],
    /// For lists and changes of many timers, which may take long: no other call waits behind them.
    list: Link,
    /// How many writes there were: they take turns on the write links.
    turn: AtomicUsize,
    floor: sync::Mutex<Floor>,
    /// Receives notices.
    listener: Mutex<Option<Connection>>,
}

/// A database that [`Durable::postgres`] connects to.
pub struct PostgresServer {
    config: Config,
    dial: Dial,
    namespace: String,
    schema: String,
    makes_tables: bool,
}

impl Durable<Postgres> {
    /// Sets up a node on a PostgreSQL database, without TLS unless [`tls`](DurableBuilder::tls) is
    /// called. The tables lie in a schema of their own, and are made if missing.
    pub fn postgres(config: Config) -> DurableBuilder<PostgresServer> {
        DurableBuilder::new(PostgresServer {
            config,
            dial: dial(NoTls),
            namespace: "default".to_owned(),
            schema: DEFAULT.to_owned(),
            makes_tables: true,
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

    /// Refuses to start if there are no tables, instead of making them.
    pub fn existing_tables(mut self) -> Self {
        self.store.makes_tables = false;
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
        self.store.dial = dial(tls);
        self
    }
}

impl OpenStore for PostgresServer {
    type Store = Postgres;

    async fn open(self, lease: Duration) -> Result<Postgres, Error> {
        check_name("namespace", &self.namespace)?;
        let schema = Schema::new(&self.schema, &self.namespace)?;
        let connector = Connector::new(&self.config, self.dial, schema, lease);
        let connector = Arc::new(connector);
        prepare(&connector, self.makes_tables).await?;
        let link = || Link::new(&connector);
        let store = Postgres {
            claim: link(),
            acknowledge: link(),
            renew: link(),
            look: link(),
            write: [link(), link()],
            list: link(),
            turn: AtomicUsize::new(0),
            floor: sync::Mutex::default(),
            listener: Mutex::new(None),
            connector,
        };
        let [one, other] = &store.write;
        let Postgres {
            claim,
            acknowledge,
            renew,
            look,
            ..
        } = &store;
        for link in [claim, acknowledge, renew, look, one, other] {
            link.connect().await?;
        }
        Ok(store)
    }
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresServer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("namespace", &self.connector.schema.space)
            .finish_non_exhaustive()
    }
}

impl Postgres {
    fn write(&self) -> &Link {
        // Relaxed: the turn orders nothing.
        &self.write[self.turn.fetch_add(1, Ordering::Relaxed) % self.write.len()]
    }

    /// Connects, and listens for notices.
    async fn listen(&self) -> Result<Connection, Error> {
        let connection = self.connector.connection().await?;
        // Behind a pooler the notices would reach any client.
        if connection.is_direct {
            let listen = format!("LISTEN {CHANNEL}");
            let on = self.connector.schema.on(&connection.client);
            within(on.execute(&listen)).await?;
        }
        Ok(connection)
    }
}

/// Makes a call that changes timers. A user's trigger may fail with an error that usually means
/// that the database is not ready. If the server answers an empty renewal on the same connection,
/// the call is made again: an outage may have ended in between. If the call fails again, that is a
/// refusal.
async fn twice<A, F: Answer<A>>(link: &Link, call: impl Fn() -> F) -> Result<A, Error> {
    match call().await {
        Err(error) if may_be_of_a_trigger(&error) => {
            if claims::renew(link, &[]).await.is_err() {
                return Err(error);
            }
        }
        answer => return answer,
    }
    let error = match call().await {
        Err(error) if may_be_of_a_trigger(&error) => error,
        answer => return answer,
    };
    Err(match error {
        Error::Unavailable(cause) => Error::Refused(cause),
        error => error,
    })
}

/// The channel of notices about timers that are due soon, of all namespaces and schemas.
const CHANNEL: &str = "tickwheel";

/// Reads a notice: the due time, the id, and the namespace with its schema, which may have spaces.
fn told(notice: &str, space: &str) -> Option<Place> {
    let mut parts = notice.splitn(3, ' ');
    let due = parts.next()?.parse().ok()?;
    let id = parts.next()?.parse().ok()?;
    (parts.next()? == space).then_some(Place {
        due: StoreTime::from_micros(due),
        id,
    })
}

impl Operations for Postgres {
    async fn schedule(
        &self,
        timers: Vec<NewTimer>,
        tell: bool,
    ) -> Result<Changed<Scheduled>, Error> {
        let link = self.write();
        twice(link, || timers::schedule(link, &timers, tell)).await
    }

    async fn cancel(&self, names: Vec<Name>) -> Result<Changed<Cancelled>, Error> {
        let link = self.write();
        twice(link, || timers::cancel(link, &names, false)).await
    }

    async fn touch(
        &self,
        moves: Vec<(Name, Moment)>,
        tell: bool,
    ) -> Result<Changed<Touched>, Error> {
        let link = self.write();
        twice(link, || timers::touch(link, &moves, tell, false)).await
    }

    async fn claim(&self, want: Want) -> Result<Claims, Error> {
        // A claim that only puts rows off takes long: other claims must not wait for it.
        let link = if want.limit == 0 {
            &self.look
        } else {
            &self.claim
        };
        claims::claim(link, &want).await
    }

    async fn take_over(&self, most: u32, limit: u32, lease: Duration) -> Result<Claims, Error> {
        let floor = sync::lock(&self.floor).claims;
        claims::take_over(&self.claim, floor, most, limit, lease).await
    }

    async fn look(&self) -> Result<Look, Error> {
        look::look(&self.look, &self.floor).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Result<Changed<bool>, Error> {
        let link = &self.renew;
        twice(link, || claims::renew(link, &renewals)).await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Changed<bool>, Error> {
        let link = &self.acknowledge;
        twice(link, || claims::acknowledge(link, &acks, false)).await
    }

    async fn told(&self) -> Option<Place> {
        let mut listener = self.listener.lock().await;
        if listener.is_none() {
            let listening = self.listen().await;
            let told = |error: &Error| event!(debug, %error, "no notices are heard");
            *listener = listening.inspect_err(told).ok();
        }
        let schema = &self.connector.schema;
        let space = schema.of("tickwheel.") + &schema.space;
        let notices = &mut listener.as_mut()?.notices;
        while let Some(notice) = notices.recv().await {
            let place = told(&notice, &space);
            if place.is_some() {
                return place;
            }
        }
        // The connection is lost. Looks find the timers of missed notices.
        *listener = None;
        None
    }

    async fn get(&self, name: Name) -> Result<Option<Listed>, Error> {
        lists::get(self.write(), &name).await
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        lists::list(&self.list, search).await
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        lists::dead(&self.list, search).await
    }

    async fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> Result<Step, Error> {
        bulk::step(&self.list, &bulk, after, limit).await
    }

    async fn pause(&self, tag: Option<String>, until: Option<Moment>) -> Result<(), Error> {
        bulk::pause(self.write(), tag.as_deref(), until).await
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        bulk::pauses(self.write()).await
    }
}

/// The version of the tables that this crate uses, which a function in their schema returns.
pub const VERSION: i32 = 1;

/// Makes the tables if there are none. If there are tables, the node needs no right to make them.
async fn prepare(connector: &Connector, makes_tables: bool) -> Result<(), Error> {
    let connection = connector.connection().await?;
    let on = connector.schema.on(&connection.client);
    let mut found = within(version(on)).await?;
    if found == 0 && makes_tables {
        let sql = tables(connector.schema.name())?;
        // One message is one transaction, which ends without the node. It fails if another node has
        // made the tables meanwhile.
        let made = within(on.execute(&sql)).await;
        found = within(version(on)).await?;
        if found == 0 {
            made?;
        }
    }
    if found != VERSION {
        let known = VERSION;
        return Err(Error::UnknownSchema { found, known });
    }
    within(check_tables(on)).await
}

/// Fails if the role lacks a right on the tables: without that of deletion, for example, each
/// handler would run again and again. Fails also if a table has parts, whose rows share places, or
/// hides rows, or would be empty after a crash.
async fn check_tables(on: On<'_>) -> Result<(), Error> {
    let sql = "WITH t AS (
            SELECT c.*, c.oid::regclass AS name FROM pg_class c
            WHERE c.oid IN ('tickwheel.timer'::regclass, 'tickwheel.pause'::regclass))
        SELECT string_agg(why, ', ') FROM (
            SELECT 'the role lacks ' || r || ' on ' || name AS why
            FROM t, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) r
            WHERE NOT has_table_privilege(oid, r)
            UNION ALL SELECT name || ' is not a plain table' FROM t
            WHERE relkind <> 'r' OR relpersistence <> 'p' OR row_security_active(oid)
                OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = oid)) w";
    let rows = on.ask(sql, &[]).await?;
    let missing: Option<&str> = field(one(&rows)?, 0)?;
    missing.map_or(Ok(()), |missing| Err(Error::unavailable(missing)))
}

/// Returns the version of the tables: 0 if there are none. Fails if the database is not in UTF-8:
/// what some other encodings take cannot be read, and one such timer would stop all claims.
async fn version(on: On<'_>) -> Result<i32, Error> {
    let sql = "SELECT current_setting('server_encoding'), EXISTS (
            SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = $2 AND p.proname = 'version' AND p.pronargs = 0)";
    let rows = on.ask(sql, &[&on.schema.name()]).await?;
    let found = one(&rows)?;
    let encoding: &str = field(found, 0)?;
    if encoding != "UTF8" {
        let why = format!("the database's encoding is {encoding}, and timers need UTF8");
        return Err(Error::refused(why));
    }
    if !field::<bool>(found, 1)? {
        return Ok(0);
    }
    let rows = on.ask("SELECT tickwheel.version()", &[]).await?;
    // A function of that name may belong to another program, and return something else.
    one(&rows)?.try_get(0).map_err(Error::unavailable)
}

/// Returns the SQL that makes the tables in a schema. For an administrator whose nodes have no
/// right to make them. Run it as one transaction, which fails if there are tables.
///
/// # Errors
/// [`Error::BadName`].
pub fn tables(schema: &str) -> Result<String, Error> {
    let schema = Schema::new(schema, "")?;
    let name = schema.name();
    let tables = include_str!("tables.sql");
    let batches = include_str!("batches.sql");
    // The lock's number is "tickwhee".
    let sql = format!(
        "SELECT pg_advisory_xact_lock(8388345094170240357);
CREATE SCHEMA IF NOT EXISTS \"{name}\";
{tables}
{batches}
CREATE FUNCTION tickwheel.version() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT {VERSION} $$;
"
    );
    Ok(schema.of(&sql))
}
