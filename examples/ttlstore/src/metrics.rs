//! The timer and the store in figures, for Prometheus.

use crate::shared::Shared;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tickwheel_prometheus::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

/// A scrape takes no longer, and asks no longer.
const MAX_TIME: Duration = Duration::from_secs(5);
const MAX_REQUEST: usize = 8 * 1024;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers scrapes forever, one after the other.
pub async fn run(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if shared.waits.timeout(MAX_TIME, answer(stream, &shared)).await.is_err() {
                    debug!("a scrape took too long");
                }
            }
            Err(error) => {
                warn!(%error, "can't take a scrape");
                if shared.waits.sleep(Duration::from_millis(100)).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn answer(mut stream: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let asks_for = |path: &str| request.starts_with(format!("GET {path} ").as_bytes());
    let (status, kind, body) = if asks_for("/metrics") {
        ("200 OK", OPENMETRICS, text(shared))
    } else if asks_for("/wheels") {
        ("200 OK", "application/json", of(shared).json())
    } else {
        ("404 Not Found", "text/plain", "The figures are at /metrics and /wheels.\n".to_owned())
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// Registers the metrics of both timers and the keys.
pub fn of(shared: &Shared) -> Metrics {
    let metrics = Metrics::default();
    metrics.timer(&shared.timer);
    metrics.timer(&shared.waits);
    shared.store.register(&metrics);
    metrics
}

/// Returns all figures.
pub fn text(shared: &Arc<Shared>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(of(shared)));
    registry.register_collector(Box::new(Own(Arc::clone(shared))));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string can't fail");
    text
}

/// The store's own figures.
#[derive(Debug)]
struct Own(Arc<Shared>);

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (store, tally, seats) = (&self.0.store, self.0.store.tally(), &self.0.seats);
        let counter = |count: u64| Box::new(ConstCounter::new(count)) as Box<dyn EncodeMetric>;
        let gauge = |value: usize| Box::new(ConstGauge::new(value)) as Box<dyn EncodeMetric>;
        let commands = self.0.commands.load(Ordering::Relaxed);
        let evicted = self.0.memory.evicted();
        for (name, help, metric) in [
            ("keys", "Keys.", gauge(store.len())),
            ("keys_with_ttl", "Keys that expire.", gauge(tally.deadlines())),
            ("memory_bytes", "Bytes that keys and values take.", gauge(tally.bytes())),
            ("memory_max_bytes", "Bytes they may; 0 for any.", gauge(self.0.bounds.max_memory)),
            ("held_bytes", "Bytes of requests and replies.", gauge(seats.held())),
            ("held_max_bytes", "Bytes they may be.", gauge(self.0.bounds.max_held)),
            ("clients", "Connections that are open.", gauge(seats.open())),
            ("subscribers", "Listeners to events.", gauge(self.0.events.subscribers())),
            ("expired_keys", "Keys that have expired.", counter(tally.expired())),
            ("evicted_keys", "Keys that had to go.", counter(evicted)),
            ("commands", "Commands that were run.", counter(commands)),
            ("connections", "Connections.", counter(seats.taken())),
            ("refused", "Connections over the limit.", counter(seats.refused())),
            ("cut", "Connections that held too much.", counter(seats.cut())),
        ] {
            let (name, kind) = (format!("ttlstore_{name}"), metric.metric_type());
            metric.encode(encoder.encode_descriptor(&name, help, None, kind)?)?;
        }
        Ok(())
    }
}
