//! The server: takes connections, as many as there may be.

use crate::session;
use crate::shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracing::{debug, warn};

/// Connections that the system accepts before we do. Of those beyond, the system drops the first
/// packet, and the client tries again after a second: a storm of them must not cost others that.
const WAITING: u32 = 4096;

/// Listens at an address.
///
/// # Errors
/// If somebody else does, or it is none of ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?; // Also while connections of a former server still end.
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// Takes connections for ever, and hands on events to them.
pub async fn run(listener: TcpListener, shared: Arc<Shared>) {
    let events = Arc::clone(&shared.events);
    tokio::spawn(async move { events.run().await });
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(stream, &shared),
            Err(error) => {
                // No file descriptors, most likely: it passes when a connection ends.
                warn!(%error, "can't take a connection");
                if shared.waits.sleep(Duration::from_millis(100)).await.is_err() {
                    return; // The timer has ended: so do we.
                }
            }
        }
    }
}

fn admit(mut stream: TcpStream, shared: &Arc<Shared>) {
    let addresses = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?))).ok();
    let Some(place) = shared.seats.admit(addresses, shared.timer.now()) else {
        warn!(max = shared.bounds.max_clients, "a connection was refused: there are too many");
        tokio::spawn(async move {
            // Whether it comes to hear of that is the client's matter.
            let _ = stream.write_all(b"-ERR max number of clients reached\r\n").await;
        });
        return;
    };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if let Err(error) = session::serve(stream, &shared, &place).await {
            debug!(client = place.seat.id, %error, "a connection broke");
        }
    });
}
