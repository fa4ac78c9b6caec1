//! A connection that is made again after it is lost, the parameters of statements, and the meaning
//! of the server's errors.

use crate::entry::Error;
use crate::store::Place;
use crate::store::postgres::hosts::hosts;
use crate::store::postgres::schema::{On, Schema};
use crate::when::StoreTime;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Row, Socket};

/// A parameter with its type on the server. Because the types are stated, a statement is not
/// prepared by name, which would take a second round trip, and which fails behind PgBouncer: it
/// lends another connection to each transaction.
pub(super) trait Param: Sync {
    fn typed(&self) -> (&(dyn ToSql + Sync), Type);
}

macro_rules! typed {
    ($($kind:ident: $($type:ty),+;)+) => {
        $($(impl Param for $type {
            fn typed(&self) -> (&(dyn ToSql + Sync), Type) {
                (self, Type::$kind)
            }
        })+)+
    };
}
typed! {
    BOOL: bool;
    INT4: i32;
    INT8: i64, Option<i64>;
    TEXT: &str, String, Option<&str>, Option<String>;
    INT4_ARRAY: Vec<i32>;
    INT8_ARRAY: Vec<i64>, Vec<Option<i64>>;
    TEXT_ARRAY: Vec<&str>, Vec<Option<&str>>;
    BYTEA_ARRAY: Vec<&[u8]>, Vec<Option<&[u8]>>;
}

type Connected = Pin<Box<dyn Future<Output = Result<Connection, tokio_postgres::Error>> + Send>>;

/// A client, and the task that reads and writes its socket.
pub(super) struct Connection {
    pub(super) client: Client,
    /// The texts of notices. Ends with the connection.
    pub(super) notices: UnboundedReceiver<String>,
    task: AbortHandle,
    /// Set once a statement has shown that later ones need another connection. Relaxed: a call that
    /// still reads false gets the same error.
    is_over: AtomicBool,
}

impl Connection {
    fn is_of_use(&self) -> bool {
        !self.is_over.load(Relaxed) && !self.client.is_closed()
    }
}

impl Drop for Connection {
    /// Closes the socket. The task alone would wait for ever for answers that a network has lost.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects with the user's TLS.
pub(super) type Dial = Arc<dyn Fn(Config) -> Connected + Send + Sync>;

pub(super) fn dial<T>(tls: T) -> Dial
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Arc::new(move |config| {
        let tls = tls.clone();
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let (sender, notices) = unbounded_channel();
            // An error ends the task. The client's calls return the same error.
            let task = tokio::spawn(async move {
                while let Some(Ok(message)) =
                    poll_fn(|context| connection.poll_message(context)).await
                {
                    if let AsyncMessage::Notification(notice) = message {
                        let _ = sender.send(notice.payload().to_owned());
                    }
                }
            });
            let task = task.abort_handle();
            Ok(Connection {
                client,
                notices,
                task,
                is_over: AtomicBool::new(false),
            })
        })
    })
}

/// Returns the settings of a node's session, which override those of the database and the role:
///
/// - `synchronous_commit`: a commit that was answered is on disk.
/// - `jit`: the server would compile each plan that it takes for a costly one.
/// - `tcp_*`: a client that stops reading must not keep its claimed rows locked for longer than a
///   lease.
/// - `statement_timeout`: a statement that waits for a lock ends before its caller gives it up.
/// - `lock_timeout`: a shorter one would fail whole batches.
fn settings(lease: Duration) -> String {
    let bound = lease.clamp(Duration::from_secs(1), PATIENCE);
    let idle = (bound.as_secs() / 2).max(1);
    let probes = (bound.as_secs() - idle).max(1);
    format!(
        "-c default_transaction_isolation=read\\ committed -c synchronous_commit=on -c jit=off \
        -c statement_timeout={} -c lock_timeout=0 -c tcp_user_timeout={} \
        -c tcp_keepalives_idle={idle} -c tcp_keepalives_interval=1 \
        -c tcp_keepalives_count={probes}",
        STATEMENT.as_millis(),
        bound.as_millis()
    )
}

/// Connects to the user's server.
#[derive(Clone)]
pub(super) struct Connector {
    dial: Dial,
    /// One configuration for each host that the user has named. A host that accepts connections and
    /// does not answer must not be waited for at each try.
    hosts: Vec<Config>,
    /// Which host is tried first: the last one that has answered.
    first: Arc<AtomicUsize>,
    settings: String,
    /// Where the tables lie.
    pub(super) schema: Schema,
}

impl Connector {
    pub(super) fn new(plain: &Config, dial: Dial, schema: Schema, lease: Duration) -> Self {
        Connector {
            dial,
            hosts: hosts(plain),
            first: Arc::default(),
            settings: settings(lease),
            schema,
        }
    }

    /// Connects to the first host that answers as the server, each within [`PATIENCE`].
    pub(super) async fn connection(&self) -> Result<Connection, Error> {
        let first = self.first.load(Relaxed);
        let mut last = Error::unavailable("no host is named");
        for at in (first..).take(self.hosts.len()) {
            let host = &self.hosts[at % self.hosts.len()];
            match within(self.connect(host)).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
            // Relaxed, and not exchanged: another task may have found the same or another host, and
            // any order of tries will do.
            self.first.store(at + 1, Relaxed);
        }
        Err(last)
    }

    async fn connect(&self, plain: &Config) -> Result<Connection, Error> {
        let options = plain.get_options().unwrap_or_default();
        let mut config = plain.clone();
        config.options(format!("{options} {}", self.settings));
        let connected = match (self.dial)(config).await {
            // A pooler may refuse all settings. Those of the role will do.
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                (self.dial)(plain.clone()).await
            }
            connected => connected,
        };
        let connection = connected.map_err(Error::unavailable)?;
        self.check(&connection).await?;
        Ok(connection)
    }

    /// Fails if the session lacks the settings without which timers would be lost or run twice: a
    /// pooler may also leave settings out.
    async fn check(&self, connection: &Connection) -> Result<(), Error> {
        let sql = "SELECT current_setting('default_transaction_isolation') = 'read committed'
            AND current_setting('synchronous_commit') = 'on'";
        let answer = self.schema.on(&connection.client).query(sql, &[]).await;
        let rows = answer.map_err(Error::unavailable)?;
        match one(&rows)?.get(0) {
            true => Ok(()),
            false => Err(Error::unavailable(UNFIT)),
        }
    }
}

const UNFIT: &str = "sessions are not READ COMMITTED with synchronous_commit = on, and a pooler \
    keeps the node from setting that: ALTER ROLE ... SET default_transaction_isolation = \
    'read committed', ALTER ROLE ... SET synchronous_commit = 'on', and let the pooler reconnect";

/// How long to wait for an answer: if a network loses packets, there may never be one.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for an answer on a connection that is not a link's, at most [`PATIENCE`].
pub(super) async fn within<A>(answer: impl Future<Output = Result<A, Error>>) -> Result<A, Error> {
    tokio::time::timeout(PATIENCE, answer)
        .await
        .map_err(Error::unavailable)?
}

/// How long a statement may take on the server. The server's error arrives before [`PATIENCE`] is
/// over: then it is certain that nothing was done.
const STATEMENT: Duration = Duration::from_millis(4_500);

/// How often a statement is repeated after a deadlock or a serialization failure.
const CROSSED: u32 = 10;

/// Something that runs a statement: a link, or the connection of a user's transaction.
pub(super) trait Ask: Sync {
    fn ask(
        &self,
        sql: &str,
        params: &[&dyn Param],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

impl Ask for Link {
    async fn ask(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, Error> {
        let mut crossed = 0;
        loop {
            let connection = self.connect().await?;
            let on = self.connector.schema.on(&connection.client);
            let error = match tokio::time::timeout(PATIENCE, on.query(sql, params)).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => error,
                Err(elapsed) => {
                    self.discard(&connection);
                    return Err(Error::uncertain(elapsed));
                }
            };
            if error.code().is_some_and(is_of_no_use) {
                self.discard(&connection);
            }
            // After other errors only the caller knows whether a repetition is safe.
            if !is_crossed(&error) || crossed == CROSSED {
                return Err(explain(error));
            }
            crossed += 1;
        }
    }
}

impl Ask for On<'_> {
    async fn ask(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, Error> {
        self.query(sql, params).await.map_err(explain)
    }
}

/// The connection for one purpose: no purpose waits for another one's statements.
pub(super) struct Link {
    connector: Connector,
    /// Locked while a connection is made: simultaneous calls make one.
    connection: Arc<tokio::sync::Mutex<Option<Arc<Connection>>>>,
}

impl Link {
    pub(super) fn new(connector: Connector) -> Self {
        Link {
            connector,
            connection: Arc::default(),
        }
    }

    /// Returns the connection, which it makes if there is none of use.
    pub(super) async fn connect(&self) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.get() {
            return Ok(connection);
        }
        let connection = Arc::clone(&self.connection);
        let connector = self.connector.clone();
        // A task of its own: a user may leave the future of a call without polls for a while. All
        // other calls would wait for a lock that such a future has, or stands in line for.
        let made = tokio::spawn(async move {
            // A call does not wait for the tries of all calls before it: they would add up.
            let locked = tokio::time::timeout(PATIENCE, connection.lock()).await;
            let mut known = locked.map_err(Error::unavailable)?;
            known.take_if(|known| !known.is_of_use());
            if let Some(connection) = &*known {
                return Ok(Arc::clone(connection));
            }
            let connection = Arc::new(connector.connection().await?);
            *known = Some(Arc::clone(&connection));
            Ok(connection)
        });
        made.await.map_err(Error::unavailable)?
    }

    /// Returns the connection if it is of use.
    fn get(&self) -> Option<Arc<Connection>> {
        let known = self.connection.try_lock().ok()?;
        known.clone().filter(|known| known.is_of_use())
    }

    /// Keeps later calls from a connection, which is closed once its statements have ended.
    fn discard(&self, used: &Connection) {
        used.is_over.store(true, Relaxed);
        // A call that has the lock replaces the connection, or is about to get the same error.
        if let Ok(mut known) = self.connection.try_lock() {
            known.take_if(|known| !known.is_of_use());
        }
    }
}

/// Returns whether a statement did nothing because it has waited too long for a lock.
pub(super) fn is_locked(error: &Error) -> bool {
    code(error) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Returns whether a statement did nothing because it took longer than [`STATEMENT`].
pub(super) fn is_too_long(error: &Error) -> bool {
    code(error) == Some(&SqlState::QUERY_CANCELED)
}

/// Returns the server's code of an error after which nothing was done.
fn code(error: &Error) -> Option<&SqlState> {
    let Error::Unavailable(cause) = error else {
        return None;
    };
    let cause = cause.downcast_ref::<tokio_postgres::Error>();
    cause.and_then(tokio_postgres::Error::code)
}

/// Returns whether the server aborted a statement in favour of another statement: it may be
/// repeated.
fn is_crossed(error: &tokio_postgres::Error) -> bool {
    let crossed = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    error.code().is_some_and(|code| crossed.contains(code))
}

/// Returns whether a connection is of no use after an error of this code: its server has become a
/// standby or is going down, a pooler has lent another server, or the session has plans of tables
/// that have changed.
fn is_of_no_use(code: &SqlState) -> bool {
    let codes = [
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::INVALID_SQL_STATEMENT_NAME,
    ];
    codes.contains(code) || code.code().starts_with(CONNECTION)
}

/// The class of the connection's errors.
const CONNECTION: &str = "08";

/// Translates an error. With a code, the server says that nothing was done. Without a code, the
/// connection was lost and the statement may have been done.
pub(super) fn explain(error: tokio_postgres::Error) -> Error {
    let Some(code) = error.code() else {
        return Error::uncertain(error);
    };
    match is_passing(code) {
        true => Error::unavailable(error),
        false => Error::refused(error),
    }
}

/// Returns whether an error is about the connection, the server or the tables, and not about the
/// statement's parameters: the statement succeeds once the fault is mended. All other errors refuse
/// the parameters, as a check, an index or a trigger of the user's does: then a batch is halved
/// until the timer at fault is found.
fn is_passing(code: &SqlState) -> bool {
    let classes = [
        CONNECTION, "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "F0",
        "XX",
    ];
    classes.iter().any(|class| code.code().starts_with(class))
}

/// Returns the only row of an answer.
pub(super) fn one(rows: &[Row]) -> Result<&Row, Error> {
    rows.first().ok_or_else(|| Error::uncertain("no row"))
}

/// Reads a number that is not negative.
pub(super) fn count(row: &Row, index: usize) -> u32 {
    row.get::<_, i32>(index).max(0).unsigned_abs()
}

/// Reads a moment.
pub(super) fn time(row: &Row, index: usize) -> StoreTime {
    StoreTime::from_micros(row.get(index))
}

/// Reads a place from two columns, due and id, unless they are null.
pub(super) fn place(row: &Row, first: usize) -> Option<Place> {
    let due = StoreTime::from_micros(row.get::<_, Option<i64>>(first)?);
    let id = row.get(first + 1);
    Some(Place { due, id })
}

/// Collects a parameter of a batch: one value of each row.
pub(super) fn column<'a, R, A>(rows: &'a [R], read: impl Fn(&'a R) -> A) -> Vec<A> {
    rows.iter().map(read).collect()
}
