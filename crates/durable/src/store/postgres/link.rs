//! A connection that is made again after it is lost, the parameters of statements, and the meaning
//! of the server's errors.
//!
//! A connection has one statement at a time. PgBouncer hands a server on after an answer, even if
//! the next statement is on its way by then: so statements of several clients would mix.

use crate::entry::Error;
use crate::store::Place;
use crate::store::postgres::hosts::hosts;
use crate::store::postgres::schema::{On, Schema};
use crate::when::StoreTime;
use bytes::BytesMut;
use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
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

/// A parameter as it is sent: a task runs the statement, and cannot borrow its caller's values.
/// `None`: null.
#[derive(Debug)]
struct Encoded(Option<BytesMut>);

impl Encoded {
    fn new(value: &(dyn ToSql + Sync), kind: &Type) -> Result<Self, Error> {
        let mut bytes = BytesMut::new();
        let is_null = value.to_sql_checked(kind, &mut bytes);
        Ok(match is_null.map_err(Error::refused)? {
            IsNull::Yes => Encoded(None),
            IsNull::No => Encoded(Some(bytes)),
        })
    }
}

impl ToSql for Encoded {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let Some(bytes) = &self.0 else {
            return Ok(IsNull::Yes);
        };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

type Connected = Pin<Box<dyn Future<Output = Result<Connection, tokio_postgres::Error>> + Send>>;

/// A client, and the task that reads and writes its socket.
pub(super) struct Connection {
    pub(super) client: Client,
    /// The texts of notices. Ends with the connection.
    pub(super) notices: UnboundedReceiver<String>,
    task: AbortHandle,
    /// Whether the server has taken the node's settings. A pooler leaves them out.
    pub(super) is_direct: bool,
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
                is_direct: false, // Not known yet.
            })
        })
    })
}

/// Returns the settings of a node's session, which override those of the database and the role:
///
/// - `search_path`: by another one, a function or an operator that somebody else has made could run
///   in place of the server's own, with the node's rights.
/// - `synchronous_commit`: a commit that was answered is on disk.
/// - `jit`: the server would compile each plan that it takes for a costly one.
/// - `tcp_*`: a client that stops reading must not keep its claimed rows locked for longer than a
///   lease.
/// - `statement_timeout`: a statement that waits for a lock ends before its caller gives it up.
/// - `lock_timeout`: a shorter one would fail whole batches.
/// - `tickwheel_notices.direct`: shows that the session has them.
fn settings(lease: Duration) -> String {
    let bound = lease.clamp(Duration::from_secs(1), PATIENCE);
    let idle = (bound.as_secs() / 2).max(1);
    let probes = (bound.as_secs() - idle).max(1);
    format!(
        "-c search_path=pg_catalog,pg_temp -c default_transaction_isolation=read\\ committed \
        -c synchronous_commit=on -c jit=off -c statement_timeout={} -c lock_timeout=0 \
        -c tcp_user_timeout={} -c tcp_keepalives_idle={idle} -c tcp_keepalives_interval=1 \
        -c tcp_keepalives_count={probes} -c tickwheel_notices.direct=on",
        STATEMENT.as_millis(),
        bound.as_millis()
    )
}

/// Connects to the user's server.
pub(super) struct Connector {
    dial: Dial,
    /// One configuration for each host that the user has named. A host that accepts connections and
    /// does not answer must not be waited for at each try.
    hosts: Vec<Config>,
    /// Which host is tried first: the last one that has answered.
    first: AtomicUsize,
    settings: String,
    /// Where the tables lie.
    pub(super) schema: Schema,
    /// The node's runtime, on which connections and statements run: a caller's runtime may stand
    /// still.
    runtime: Handle,
}

impl Connector {
    pub(super) fn new(plain: &Config, dial: Dial, schema: Schema, lease: Duration) -> Self {
        Connector {
            dial,
            hosts: hosts(plain),
            first: AtomicUsize::default(),
            settings: settings(lease),
            schema,
            runtime: Handle::current(),
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
        let mut connection = connected.map_err(Error::unavailable)?;
        self.check(&mut connection).await?;
        Ok(connection)
    }

    /// Fails if the session lacks the settings without which timers would be lost or run twice: a
    /// pooler may also leave settings out.
    async fn check(&self, connection: &mut Connection) -> Result<(), Error> {
        let sql = "SELECT current_setting('default_transaction_isolation') = 'read committed'
            AND current_setting('synchronous_commit') = 'on',
            current_setting('tickwheel_notices.direct', true) IS NOT DISTINCT FROM 'on'";
        let answer = self.schema.on(&connection.client).query(sql, &[]).await;
        let rows = answer.map_err(Error::unavailable)?;
        let row = one(&rows)?;
        connection.is_direct = field(row, 1)?;
        match field(row, 0)? {
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

/// Something that runs a statement: a link, or the connection of a user's transaction. The first
/// parameter is the namespace, which is not among `params`.
pub(super) trait Ask: Sync {
    fn ask(
        &self,
        sql: &str,
        params: &[&dyn Param],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

/// Returns parameters with the namespace before them.
fn with_space<'a>(schema: &'a Schema, params: &[&'a dyn Param]) -> Vec<&'a dyn Param> {
    iter::once(&schema.space as _)
        .chain(params.iter().copied())
        .collect()
}

impl Ask for Link {
    async fn ask(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, Error> {
        let mut encoded = Vec::with_capacity(params.len() + 1);
        for param in with_space(&self.connector.schema, params) {
            let (value, kind) = param.typed();
            encoded.push((Encoded::new(value, &kind)?, kind));
        }
        let connector = Arc::clone(&self.connector);
        let sql = connector.schema.of(sql);
        let connection = Arc::clone(&self.connection);
        // A task of the node's own: a user may leave the future of a call without polls for a
        // while, or drop it. All other calls would wait for a lock that such a future has, or
        // would be sent before the answer to its statement.
        let asked = self.connector.runtime.spawn(async move {
            let locked = tokio::time::timeout(PATIENCE, connection.lock()).await;
            let mut known = locked.map_err(|_| Error::unavailable("earlier calls take long"))?;
            connector.ask(&mut known, &sql, &encoded).await
        });
        asked.await.map_err(Error::uncertain)?
    }
}

impl Ask for On<'_> {
    async fn ask(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, Error> {
        let params = with_space(self.schema, params);
        self.query(sql, &params).await.map_err(explain)
    }
}

impl Connector {
    /// Runs a statement on a connection, which it makes if there is none of use.
    async fn ask(
        &self,
        known: &mut Option<Connection>,
        sql: &str,
        params: &[(Encoded, Type)],
    ) -> Result<Vec<Row>, Error> {
        let params = params
            .iter()
            .map(|(value, kind)| (value as &(dyn ToSql + Sync), kind.clone()));
        let params: Vec<_> = params.collect();
        let mut crossed = 0;
        loop {
            known.take_if(|known| known.client.is_closed());
            let connection = match known {
                Some(connection) => connection,
                None => known.insert(self.connection().await?),
            };
            let answer = connection.client.query_typed(sql, &params);
            let error = match tokio::time::timeout(PATIENCE, answer).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => error,
                Err(elapsed) => {
                    *known = None;
                    return Err(Error::uncertain(elapsed));
                }
            };
            if is_fatal(&error) || error.code().is_some_and(is_of_no_use) {
                *known = None;
            }
            // After other errors only the caller knows whether a repetition is safe.
            if !is_crossed(&error) || crossed == CROSSED {
                return Err(explain(error));
            }
            crossed += 1;
        }
    }
}

/// The connection for one purpose: no purpose waits for another one's statements.
pub(super) struct Link {
    connector: Arc<Connector>,
    /// Locked for a statement, or while the connection is made.
    connection: Arc<tokio::sync::Mutex<Option<Connection>>>,
}

impl Link {
    pub(super) fn new(connector: &Arc<Connector>) -> Self {
        Link {
            connector: Arc::clone(connector),
            connection: Arc::default(),
        }
    }

    /// Connects. Only at the start, where nobody else waits for the lock: see [`Ask::ask`].
    pub(super) async fn connect(&self) -> Result<(), Error> {
        *self.connection.lock().await = Some(self.connector.connection().await?);
        Ok(())
    }
}

/// Returns whether a statement did nothing because it has waited too long for a lock.
pub(super) fn is_locked(error: &Error) -> bool {
    code(error) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Returns whether a trigger may have failed so, although the code is about the connection, the
/// server or the tables. A full disk is none of a single timer.
pub(super) fn may_be_of_a_trigger(error: &Error) -> bool {
    code(error).is_some_and(|code| !code.code().starts_with(RESOURCES))
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

/// The class of the connection's errors, and that of a full disk and too little memory.
const CONNECTION: &str = "08";
const RESOURCES: &str = "53";

/// Translates an error. With a code, the server says that nothing was done. Without a code, and
/// after an error that ends the session, the statement may have been done.
pub(super) fn explain(error: tokio_postgres::Error) -> Error {
    match error.code() {
        None => Error::uncertain(error),
        // A pooler may have lost the server.
        Some(_) if is_fatal(&error) => Error::uncertain(error),
        Some(code) if is_passing(code) => Error::unavailable(error),
        Some(_) => Error::refused(error),
    }
}

fn is_fatal(error: &tokio_postgres::Error) -> bool {
    let Some(error) = error.as_db_error() else {
        return false;
    };
    match error.parsed_severity() {
        Some(severity) => severity == Severity::Fatal,
        // Poolers do not send it. Servers translate the other one.
        None => error.severity() == "FATAL",
    }
}

/// Returns whether an error is about the connection, the server or the tables, and not about the
/// statement's parameters: the statement succeeds once the fault is mended. All other errors refuse
/// the parameters, as a check, an index or a trigger of the user's does: then a batch is halved
/// until the timer at fault is found.
fn is_passing(code: &SqlState) -> bool {
    let classes = [
        CONNECTION, "0A", "25", "26", "28", "3D", "3F", "40", "42", RESOURCES, "55", "57", "58",
        "F0", "XX",
    ];
    classes.iter().any(|class| code.code().starts_with(class))
}

/// Returns the only row of an answer.
pub(super) fn one(rows: &[Row]) -> Result<&Row, Error> {
    rows.first().ok_or_else(|| Error::uncertain("no row"))
}

/// Reads a column. Fails if it has another type, or is null: an administrator may change functions
/// and rows.
pub(super) fn field<'a, A: FromSql<'a>>(row: &'a Row, index: usize) -> Result<A, Error> {
    row.try_get(index).map_err(Error::uncertain)
}

/// Reads a number that is not negative.
pub(super) fn count(row: &Row, index: usize) -> Result<u32, Error> {
    Ok(field::<i32>(row, index)?.max(0).unsigned_abs())
}

/// Reads a moment.
pub(super) fn time(row: &Row, index: usize) -> Result<StoreTime, Error> {
    field(row, index).map(StoreTime::from_micros)
}

/// Reads a place from two columns, due and id, unless they are null.
pub(super) fn place(row: &Row, first: usize) -> Result<Option<Place>, Error> {
    let Some(due) = field::<Option<i64>>(row, first)? else {
        return Ok(None);
    };
    Ok(Some(Place {
        due: StoreTime::from_micros(due),
        id: field(row, first + 1)?,
    }))
}

/// Collects a parameter of a batch: one value of each row.
pub(super) fn column<'a, R, A>(rows: &'a [R], read: impl Fn(&'a R) -> A) -> Vec<A> {
    rows.iter().map(read).collect()
}
