//! The server: attends to every connection, and closes those that fell silent.

use super::{Connection, End, Event, Exchange, MESSAGE};
use std::sync::Arc;
use tickwheel::future::SleepError;
use tokio::net::{TcpListener, TcpStream};

/// Accepts connections until the timer is shut down.
pub async fn serve(
    exchange: Arc<Exchange>,
    listener: TcpListener,
    report: impl Fn(Event) + Clone + Send + 'static,
) -> Result<(), SleepError> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (exchange, report) = (Arc::clone(&exchange), report.clone());
                tokio::spawn(async move { attend(&exchange, stream, report).await });
            }
            // Out of files, most likely: some will be closed.
            Err(_) => exchange.timer.sleep(exchange.terms.heartbeat).await?,
        }
    }
}

/// Attends to a connection from its beginning to its end.
async fn attend(
    exchange: &Arc<Exchange>,
    stream: TcpStream,
    report: impl Fn(Event),
) -> Result<(), End> {
    let stream = Connection::open(exchange, stream);
    let (mut name, mut length) = ([0; 4], 0);
    while length < name.len() {
        length += stream.read(&mut name[length..]).await?;
    }
    let connection = u32::from_be_bytes(name);
    report(Event::Opened { connection });
    let end = echo(&stream).await;
    drop(stream); // Closes it, and cancels its timeouts.
    report(Event::Closed { connection, end });
    Ok(())
}

/// Answers messages, until the connection ends.
async fn echo(stream: &Arc<Connection>) -> End {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer).await {
            Ok(length) => {
                let messages = buffer[..length].iter().filter(|byte| **byte == MESSAGE);
                messages.for_each(|message| stream.send(*message));
            }
            Err(end) => return end,
        }
    }
}
