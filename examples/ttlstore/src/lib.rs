//! A server for Redis' clients whose keys vanish on time: they lie in a keyed timer. One thread
//! serves all connections, while the timer's own lets keys expire.

// In reading order: the keys, what clients may do with them, and how they reach us.
mod store;
mod command;
mod connections;
mod resp;

use connections::{Peers, serve};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use resp::Reply;
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::thread;
use std::time::Duration;
use store::{Expired, Store};
use tickwheel::Timer;
use tickwheel_prometheus::Metrics;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

/// The version of Redis whose replies clients may expect.
pub(crate) const REDIS_VERSION: &str = "7.0.15";
/// The one channel on which the server itself publishes.
const EXPIRED: &[u8] = b"__keyevent@0__:expired";

/// What the server takes at most.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Limits {
    /// Connections; more are refused
    #[arg(long, default_value_t = 10_000)]
    pub max_clients: usize,
    /// Bytes of a request; a connection with a larger one is closed
    #[arg(long, default_value_t = 8 << 20)]
    pub max_request: usize,
    /// Bytes that all connections hold: requests, transactions, subscriptions, and what clients
    /// have not read; when it is more, the connection that holds most is closed. A reply may have
    /// an eighth of it
    #[arg(long, default_value_t = 512 << 20)]
    pub max_client_memory: usize,
    /// Bytes of keys and values; commands that need more are refused
    #[arg(long, default_value_t = 1 << 30)]
    pub max_memory: usize,
}

/// Where the server listens, and what it takes.
#[derive(Debug)]
pub struct Config {
    /// For Redis' clients.
    pub listener: TcpListener,
    /// For Prometheus and tickwheel-top.
    pub stats: Option<TcpListener>,
    /// What it takes.
    pub limits: Limits,
}

/// What all connections share.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) peers: Peers,
    pub(crate) limits: Limits,
    pub(crate) commands: Cell<u64>,
    expired: Cell<u64>,
}

/// Serves until `end` completes. Keys expire by `timer`. Returns what INFO tells then.
///
/// # Errors
/// There is no runtime to be had for it.
pub fn run(config: Config, timer: &Timer, end: impl Future<Output = ()>) -> io::Result<String> {
    let (sender, expired) = mpsc::unbounded_channel();
    let server = Rc::new(Server {
        store: Store::new(timer, sender),
        peers: Peers::new(config.limits),
        limits: config.limits,
        commands: Cell::new(0),
        expired: Cell::new(0),
    });
    if let Some(listener) = config.stats {
        tell_figures(listener, &server.store);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        config.listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(config.listener)?;
        tokio::select! {
            () = accept(listener, &server) => {}
            () = herald(expired, &server) => {}
            () = end => {}
        }
        io::Result::Ok(())
    })?;
    Ok(server.info())
}

async fn accept(listener: tokio::net::TcpListener, server: &Rc<Server>) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => match server.peers.join() {
                Some(peer) => {
                    // A reply is written as a whole: there is nothing to wait for.
                    let _ = stream.set_nodelay(true);
                    spawn_local(serve(Rc::clone(server), peer, stream));
                }
                None => {
                    // It fits into what the system holds for the connection, or is not read.
                    let _ = stream
                        .write_all(b"-ERR max number of clients reached\r\n")
                        .await;
                }
            },
            Err(error) => {
                // Too many files are open. There will be fewer.
                eprintln!("can't take a connection: {error}");
                let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(100))).await;
            }
        }
    }
}

/// Tells those who listen which keys have expired. The keyed timer's closure does not: so the
/// timer's thread does the same for a thousand listeners as for none.
///
/// The closure runs after its key has gone, and a client may have set the key anew by then. Nobody
/// is told of the end of a key that is there.
async fn herald(mut expired: UnboundedReceiver<Expired>, server: &Server) {
    while let Some(gone) = expired.recv().await {
        server.expired.set(server.expired.get() + 1);
        if let Some(key) = gone
            .key
            .as_ref()
            .filter(|key| !server.store.keys.contains(*key))
        {
            server.peers.publish(EXPIRED, key);
        }
        server.store.told(gone);
    }
}

impl Server {
    /// Returns a reply that goes on after `bytes`.
    pub(crate) fn reply(&self, bytes: Vec<u8>, resp3: bool) -> Reply {
        Reply::new(bytes, resp3, self.limits.max_client_memory / 8)
    }

    /// Returns what INFO tells.
    pub(crate) fn info(&self) -> String {
        let lateness = self.store.timer.stats().lateness;
        let late = |share| lateness.quantile(share).unwrap_or_default().as_micros();
        format!(
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nserver_name:ttlstore\r\n\
             redis_mode:standalone\r\n\
             # Clients\r\nconnected_clients:{}\r\nevicted_clients:{}\r\n\
             # Memory\r\nused_memory:{}\r\nused_memory_clients:{}\r\n\
             # Stats\r\ntotal_commands_processed:{}\r\nexpired_keys:{}\r\n\
             # Latencystats\r\nexpire_lag_percentiles_usec:p50={},p99={},p99.9={}\r\n\
             # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
             # Keyspace\r\ndb0:keys={}\r\n",
            self.peers.len(),
            self.peers.cut.get(),
            self.store.bytes(),
            self.peers.held.get(),
            self.commands.get(),
            self.expired.get(),
            late(0.5),
            late(0.99),
            late(0.999),
            self.store.keys.len(),
        )
    }
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Tells the timer's figures by HTTP, on a thread of its own, one after the other: to Prometheus
/// under `/metrics`, to tickwheel-top under `/wheels`.
fn tell_figures(listener: TcpListener, store: &Store) {
    let metrics = Metrics::default();
    metrics.timer(&store.timer);
    metrics.keyed_timer("keys", &store.keys);
    thread::spawn(move || {
        for stream in listener.incoming() {
            // Whoever asks may ask again.
            let _ = stream.and_then(|stream| answer(stream, &metrics));
        }
    });
}

fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut head = [0; 1024];
    let length = stream.read(&mut head)?;
    let (status, kind, body) = if head[..length].starts_with(b"GET /metrics ") {
        ("200 OK", OPENMETRICS, text(metrics))
    } else if head[..length].starts_with(b"GET /wheels ") {
        ("200 OK", "application/json", metrics.json())
    } else {
        (
            "404 Not Found",
            "text/plain",
            "Ask for /metrics or /wheels.\n".to_owned(),
        )
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

fn text(metrics: &Metrics) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}
