//! A process of the crew: the server, or a client. It reports on stdout, a line of JSON for each
//! event, and ends when its stdin does.

use crate::options::Options;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_services::heartbeat::{self, Event, Exchange};
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};

/// What a process of the crew reports.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Listening(SocketAddr),
    Saw(Event),
    Left(Left),
}

/// A process's last words.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Left {
    /// How many it has sent.
    pub(crate) heartbeats: u64,
    /// How many are pending still.
    pub(crate) timers: usize,
}

/// How long the last connections may take to go, once all the others have.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn serve(options: &Options) -> Result<(), Box<dyn Error>> {
    let (runtime, exchange) = prepare(options)?;
    runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let listener = socket.listen(options.connections)?;
        report(Report::Listening(listener.local_addr()?));
        let saw = |event| report(Report::Saw(event));
        tokio::spawn(heartbeat::serve(Arc::clone(&exchange), listener, saw));
        Ok::<(), io::Error>(())
    })?;
    wait_for_end_of_stdin();
    let give_up = exchange.timer.now() + PATIENCE;
    while !exchange.timer.is_empty() && exchange.timer.now() < give_up {
        thread::sleep(Duration::from_millis(10));
    }
    leave(&exchange);
    Ok(())
}

pub(crate) fn connect(
    options: &Options,
    number: u32,
    server: SocketAddr,
) -> Result<(), Box<dyn Error>> {
    let connections = options.connections_of(number);
    let (runtime, exchange) = prepare(options)?;
    for connection in connections {
        let saw = |event| report(Report::Saw(event));
        let is_busy = connection % 2 == 1;
        let exchange = Arc::clone(&exchange);
        runtime.spawn(heartbeat::keep_connected(exchange, server, connection, is_busy, saw));
    }
    wait_for_end_of_stdin();
    drop(runtime); // Closes the connections.
    leave(&exchange);
    Ok(())
}

/// Prepares one timer for everything; tokio has the sockets, and no timers.
fn prepare(options: &Options) -> Result<(Runtime, Arc<Exchange>), Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let exchange = Arc::new(Exchange::new(timer, options.terms()));
    Ok((Builder::new_multi_thread().enable_io().build()?, exchange))
}

fn report(report: Report) {
    let line = serde_json::to_string(&report).expect("a report is plain data");
    // If nobody listens any more, stdin is at its end, too.
    let _ = writeln!(io::stdout(), "{line}");
}

fn wait_for_end_of_stdin() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

fn leave(exchange: &Exchange) {
    let heartbeats = exchange.heartbeats.load(Ordering::Relaxed);
    report(Report::Left(Left { heartbeats, timers: exchange.timer.len() }));
}
