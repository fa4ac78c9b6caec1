//! The server: its two sockets, and all connections until the end.

use crate::accept::accept;
use crate::broker::Broker;
use crate::terms::Terms;
use crate::{connection, http};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tickwheel::Timer;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub struct Server {
    broker: Arc<Broker>,
    kafka: TcpListener,
    http: http::Listener,
}

/// For how long, at the end, clients may read what they are answered.
const DRAIN: Duration = Duration::from_secs(3);

impl Server {
    pub async fn bind(
        kafka: SocketAddr,
        http: SocketAddr,
        timer: Timer,
        terms: &Terms,
    ) -> io::Result<Self> {
        let kafka = TcpListener::bind(kafka).await?;
        let http = http::Listener::bind(http)?;
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
        self.http.address()
    }

    /// Serves until `end`, then answers what was pending and closes all connections.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Server { broker, kafka, http } = self;
        let http = http.serve(Arc::clone(&broker));
        let http = http.inspect_err(|error| tracing::error!("no metrics: {error}"));
        let mut clients = JoinSet::new();
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                (stream, peer) = accept(&kafka, &broker.timer) => {
                    if clients.len() < broker.limits.max_connections {
                        clients.spawn(connection::serve(Arc::clone(&broker), stream, peer));
                    } else {
                        broker.counters.refused.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(%peer, "refused: too many connections");
                    }
                }
                Some(ended) = clients.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!("a connection's task has panicked: {error}");
                    }
                }
            }
            broker.counters.connections.store(clients.len(), Ordering::Relaxed);
        }
        broker.drain();
        let all_have_gone = async { while clients.join_next().await.is_some() {} };
        let _ = broker.timer.timeout(DRAIN, all_have_gone).await;
        tracing::info!(connections = clients.len(), "connections closed");
        clients.shutdown().await;
        drop(http);
        broker.shutdown();
    }
}
