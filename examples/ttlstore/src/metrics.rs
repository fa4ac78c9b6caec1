//! The timer and the store in figures, for Prometheus.

use crate::shared::Shared;
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

/// A scrape takes no longer, and asks no longer.
const MAX_TIME: Duration = Duration::from_secs(5);
const MAX_REQUEST: usize = 8 * 1024;

/// Answers scrapes for ever, one after the other.
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

async fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text(shared)),
        false => ("404 Not Found", "The figures are at /metrics.\n".to_owned()),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// All figures.
pub fn text(shared: &Shared) -> String {
    let stats = shared.timer.stats();
    let (store, counts) = (&shared.store, &shared.counts);
    let number = |number: usize| number as u64;
    let figures = [
        ("ttlstore_keys", "gauge", number(store.len())),
        ("ttlstore_keys_with_ttl", "gauge", number(store.deadlines())),
        ("ttlstore_clients", "gauge", number(counts.clients.load(Ordering::Relaxed))),
        ("ttlstore_subscribers", "gauge", number(shared.events.subscribers())),
        ("ttlstore_expired_keys_total", "counter", store.expired()),
        ("ttlstore_commands_total", "counter", counts.commands.load(Ordering::Relaxed)),
        ("ttlstore_connections_total", "counter", counts.connections.load(Ordering::Relaxed)),
        ("ttlstore_refused_total", "counter", counts.refused.load(Ordering::Relaxed)),
        ("timer_pending", "gauge", number(stats.pending)),
        ("timer_added_total", "counter", stats.added),
        ("timer_cancelled_total", "counter", stats.cancelled),
        ("timer_rescheduled_total", "counter", stats.rescheduled),
        ("timer_expired_total", "counter", stats.expired),
        ("timer_cascaded_total", "counter", stats.cascaded),
        ("timer_wakeups_total", "counter", stats.wakeups),
        ("timer_panicked_total", "counter", stats.panicked),
    ];
    let mut text = String::new();
    // Writing to a string can't fail.
    for (name, kind, value) in figures {
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {value}");
    }
    let _ = writeln!(text, "# TYPE timer_lateness_seconds histogram");
    let mut count = 0;
    for (up_to, more) in stats.lateness.bars() {
        count += more;
        let up_to = up_to.as_secs_f64();
        let _ = writeln!(text, "timer_lateness_seconds_bucket{{le=\"{up_to}\"}} {count}");
    }
    let _ = writeln!(text, "timer_lateness_seconds_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "timer_lateness_seconds_sum {}", stats.lateness.sum().as_secs_f64());
    let _ = writeln!(text, "timer_lateness_seconds_count {count}");
    text
}
