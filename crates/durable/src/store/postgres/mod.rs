//! A store on PostgreSQL, for any number of nodes.

mod claims;
mod columns;
mod link;
mod members;
mod moving;
mod schedule;
mod schema;
mod tags;
mod timers;
mod transaction;
mod window;

use crate::answer::{Cancelled, DeadTimer, Pending, Scheduled, Touched};
use crate::builder::{DurableBuilder, OpenStore};
use crate::durable::Durable;
use crate::entry::check_name;
use crate::error::Error;
use crate::store::postgres::link::{Connector, Link};
use crate::store::postgres::schema::SLOTS;
use crate::store::{
    Ack, Bars, CancelledTag, Claim, Claims, Hints, KeyName, NewRow, NodeId, Owned, Page, Place,
    Store, Survey,
};
use crate::time::StoreTime;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

/// A namespace of timers in a PostgreSQL database, version 13 or later.
///
/// A node has six connections: one for its lease alone, one to load, one to claim, one to
/// acknowledge, two for what users write. A statement whose answer is given up is cancelled in the
/// server, so there are no more. No statement has a name, and no state is left in a session, so
/// all of it works through PgBouncer in transaction mode.
#[derive(Debug)]
pub struct Postgres {
    first: u32,
    connector: Connector,
    lease: Link,
    load: Link,
    claim: Link,
    acknowledge: Link,
    write: [Link; 2],
    /// Which of the two is next.
    turn: AtomicUsize,
    /// What the clock showed when hints were last taken, in microseconds.
    seen: AtomicI64,
}

/// A database that [`Durable::postgres`] connects to.
#[derive(Debug)]
pub struct PostgresServer {
    config: Config,
    connector: Connector,
    namespace: String,
}

impl Durable<Postgres> {
    /// Sets up a node whose timers lie in a PostgreSQL database, without TLS unless
    /// [`tls`](DurableBuilder::tls) is said. Its tables lie in a schema of their own, `tickwheel`,
    /// and are made if there are none.
    pub fn postgres(config: Config) -> DurableBuilder<PostgresServer> {
        let connector = Connector::new(config.clone(), NoTls);
        let namespace = "default".to_owned();
        DurableBuilder::new(PostgresServer { config, connector, namespace })
    }
}

impl DurableBuilder<PostgresServer> {
    /// Sets the namespace, `default` by default: nodes of one namespace share its timers. At most
    /// 512 bytes, without a zero byte.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.store.namespace = namespace.into();
        self
    }

    /// Sets how connections are encrypted, by a connector of tokio-postgres' family.
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

    async fn open(self) -> Result<Postgres, Error> {
        self.open_as(true).await
    }
}

impl PostgresServer {
    /// Opens it; if the namespace is new here, `serves` says whether its slots are.
    pub(crate) async fn open_as(self, serves: bool) -> Result<Postgres, Error> {
        check_name(&self.namespace)?;
        let first = schema::prepare(&self.connector, &self.namespace, serves).await?;
        let link = || Link::new(self.connector.clone());
        Ok(Postgres {
            first,
            lease: link(),
            load: link(),
            claim: link(),
            acknowledge: link(),
            write: [link(), link()],
            turn: AtomicUsize::new(0),
            seen: AtomicI64::new(0),
            connector: self.connector,
        })
    }
}

impl Postgres {
    fn write(&self) -> &Link {
        // Relaxed: any turn will do.
        &self.write[self.turn.fetch_add(1, Ordering::Relaxed) % self.write.len()]
    }
}

impl Store for Postgres {
    fn slots(&self) -> u32 {
        SLOTS
    }

    fn slot(&self, hash: u64) -> u32 {
        self.first + (hash % u64::from(SLOTS)) as u32
    }

    async fn join(&self, node: NodeId, lease: Duration) -> Result<(), Error> {
        // A node that joins again was cut off, or slept, and its other connections may be dead: a
        // call on them would wait for its answer as long as any call may.
        [&self.load, &self.claim, &self.acknowledge].iter().for_each(|link| link.reconnect());
        members::join(&self.lease, self.first, node, lease).await
    }

    async fn renew(&self, node: NodeId, lease: Duration) -> Result<bool, Error> {
        members::renew(&self.lease, node, lease).await
    }

    async fn survey(&self, node: NodeId) -> Result<Survey, Error> {
        members::survey(&self.load, self.first, node).await
    }

    async fn take(&self, node: NodeId, at_most: u32) -> Result<Vec<Owned>, Error> {
        members::take(&self.load, self.first, node, at_most).await
    }

    async fn release(&self, node: NodeId, slots: Vec<Owned>) -> Result<(), Error> {
        members::release(&self.load, node, slots).await
    }

    async fn leave(&self, node: NodeId) -> Result<(), Error> {
        members::leave(&self.lease, node).await
    }

    async fn publish(&self, node: NodeId, horizon: StoreTime) -> Result<(), Error> {
        window::publish(&self.load, node, horizon).await
    }

    async fn hints(&self, node: NodeId) -> Result<Hints, Error> {
        // Relaxed: one task asks at a time, and an older floor only reads more.
        let seen = StoreTime::from_micros(self.seen.load(Ordering::Relaxed));
        let hints = window::hints(&self.load, node, seen).await?;
        self.seen.store(hints.now.as_micros(), Ordering::Relaxed);
        Ok(hints)
    }

    async fn load(&self, page: Page) -> Result<Vec<Place>, Error> {
        window::load(&self.load, page).await
    }

    async fn schedule(
        &self,
        node: NodeId,
        rows: Vec<NewRow>,
    ) -> Result<Vec<Option<Scheduled>>, Error> {
        schedule::schedule(self.write(), node, rows).await
    }

    async fn cancel(&self, keys: Vec<KeyName>) -> Result<Vec<Option<Cancelled>>, Error> {
        timers::cancel(self.write(), keys).await
    }

    async fn touch(&self, keys: Vec<(KeyName, StoreTime)>) -> Result<Vec<Option<Touched>>, Error> {
        timers::touch(self.write(), keys).await
    }

    async fn cancel_tag(&self, tag: String, limit: u32) -> Result<CancelledTag, Error> {
        tags::cancel_tag(self.write(), self.first, tag, limit).await
    }

    async fn claim(&self, node: NodeId, claims: Vec<Claim>, crashes: u32) -> Result<Claims, Error> {
        claims::claim(&self.claim, node, claims, crashes).await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Vec<Claim>, Error> {
        claims::acknowledge(&self.acknowledge, acks).await
    }

    async fn get(&self, key: KeyName) -> Result<Option<Pending>, Error> {
        timers::get(self.write(), key).await
    }

    async fn histogram(&self, bars: Bars) -> Result<Vec<u64>, Error> {
        timers::histogram(self.write(), self.first, bars).await
    }

    async fn dead(&self, limit: u32) -> Result<Vec<DeadTimer>, Error> {
        timers::dead(self.write(), self.first, limit).await
    }

    async fn requeue(&self, id: i64) -> Result<bool, Error> {
        timers::requeue(self.write(), self.first, id).await
    }
}
