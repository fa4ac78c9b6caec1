//! The timer's figures by HTTP: for Prometheus under `/metrics`, for tickwheel-top under `/wheels`.

use crate::store::Store;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;
use tickwheel_prometheus::Metrics;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers on a thread of its own, one after the other.
pub(crate) fn start(listener: TcpListener, store: &Store) {
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
        ("404 Not Found", "text/plain", "Ask for /metrics or /wheels.\n".to_owned())
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
