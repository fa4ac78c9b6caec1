//! Accepting: connections that come in, one after the other.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tickwheel::Timer;
use tokio::net::{TcpListener, TcpStream};

/// For how long nothing is accepted when there was no room for a connection: so this does not run
/// in circles.
const PAUSE: Duration = Duration::from_millis(10);

/// Accepts the next connection. Connections that are lost before they are taken do not count.
pub async fn accept(listener: &TcpListener, timer: &Timer) -> (TcpStream, SocketAddr) {
    loop {
        let error: io::Error = match listener.accept().await {
            Ok(connection) => return connection,
            Err(error) => error,
        };
        tracing::warn!("accept: {error}");
        let _ = timer.sleep(PAUSE).await;
    }
}
