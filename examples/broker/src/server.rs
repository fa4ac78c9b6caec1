//! The server: its two sockets, and all connections until the end.

use crate::broker::{Broker, Terms};
use crate::{connection, http};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tickwheel::Timer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub struct Server {
    broker: Arc<Broker>,
    kafka: TcpListener,
    http: TcpListener,
}

/// How many may look at the metrics at once.
const MAX_HTTP: usize = 16;

impl Server {
    pub async fn bind(
        kafka: SocketAddr,
        http: SocketAddr,
        timer: Timer,
        terms: &Terms,
    ) -> io::Result<Self> {
        let kafka = TcpListener::bind(kafka).await?;
        let http = TcpListener::bind(http).await?;
        let broker = Broker::new(kafka.local_addr()?, timer, terms);
        Ok(Server { broker, kafka, http })
    }

    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    pub fn kafka_address(&self) -> SocketAddr {
        self.broker.address
    }

    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// Serves until `end`, then says what was pending and closes all connections.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Server { broker, kafka, http } = self;
        let (mut clients, mut watchers) = (JoinSet::new(), JoinSet::new());
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                accepted = kafka.accept() => {
                    if let Some((stream, peer)) = usable(accepted, &broker).await {
                        if clients.len() < broker.limits.max_connections {
                            clients.spawn(connection::serve(Arc::clone(&broker), stream, peer));
                        } else {
                            broker.counters.refused.fetch_add(1, Ordering::Relaxed);
                            tracing::warn!(%peer, "refused: too many connections");
                        }
                    }
                }
                accepted = http.accept() => {
                    if let Some((stream, _)) = usable(accepted, &broker).await {
                        if watchers.len() < MAX_HTTP {
                            watchers.spawn(http::serve(Arc::clone(&broker), stream));
                        }
                    }
                }
                Some(ended) = clients.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!("a connection's task has panicked: {error}");
                    }
                }
                Some(_) = watchers.join_next() => {}
            }
            broker.counters.connections.store(clients.len(), Ordering::Relaxed);
        }
        broker.shutdown();
        tracing::info!(connections = clients.len(), "connections closed");
        clients.shutdown().await;
        watchers.shutdown().await;
    }
}

/// Returns a connection; `None` if it was lost before it was taken, or there is no room for it. In
/// the latter case this waits for a moment, so that it does not spin.
async fn usable(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    broker: &Broker,
) -> Option<(TcpStream, SocketAddr)> {
    match accepted {
        Ok(connection) => Some(connection),
        Err(error) => {
            tracing::warn!("accept: {error}");
            let _ = broker.timer.sleep(std::time::Duration::from_millis(10)).await;
            None
        }
    }
}
