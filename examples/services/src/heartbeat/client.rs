//! The client: keeps a connection open, and opens it again whenever it has ended.

use super::{Connection, End, Event, Exchange, MESSAGE};
use std::net::SocketAddr;
use std::sync::Arc;
use tickwheel::future::SleepError;
use tokio::net::TcpStream;

/// Keeps connection number `connection` to a server open until the timer is shut down. On a busy
/// one there are always messages, so that neither end ever needs to send a heartbeat.
pub async fn keep_connected(
    exchange: Arc<Exchange>,
    server: SocketAddr,
    connection: u32,
    is_busy: bool,
    report: impl Fn(Event),
) -> Result<(), SleepError> {
    let Exchange { timer, terms, .. } = &*exchange;
    loop {
        let connecting = timer.timeout(terms.idle_timeout, TcpStream::connect(server));
        if let Ok(Ok(stream)) = connecting.await {
            let stream = Connection::open(&exchange, stream);
            stream.introduce(connection);
            report(Event::Opened { connection });
            let end = converse(&exchange, &stream, is_busy).await;
            drop(stream);
            report(Event::Closed { connection, end });
        }
        timer.sleep(terms.heartbeat).await?;
    }
}

async fn converse(exchange: &Exchange, stream: &Arc<Connection>, is_busy: bool) -> End {
    let mut messages = exchange.timer.interval(exchange.terms.heartbeat / 3);
    let mut buffer = [0; 1024];
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => if let Err(end) = read { return end },
            Ok(_) = messages.tick(), if is_busy => stream.send(MESSAGE),
        }
    }
}
