//! A proxy between a node and the server, which can delay and swallow.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What a proxy does with what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Pass = 0,
    /// Passes each piece on 100 ms later.
    Delay = 1,
    /// Takes everything and passes nothing on; connections stay open. What was swallowed is gone.
    Swallow = 2,
}

pub(crate) struct Proxy {
    mood: Arc<AtomicU8>,
    port: u16,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mood = Arc::new(AtomicU8::new(Mood::Pass as u8));
        let shared = Arc::clone(&mood);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let to = SocketAddr::from(([127, 0, 0, 1], to));
                // While the server is down, the connection is dropped: as if refused.
                if let Ok(far) = TcpStream::connect(to).await {
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (near, far) = (near.into_split(), far.into_split());
                    tokio::spawn(pump(near.0, far.1, Arc::clone(&shared)));
                    tokio::spawn(pump(far.0, near.1, Arc::clone(&shared)));
                }
            }
        });
        Ok(Proxy { mood, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, mood: Mood) {
        // Relaxed: a piece more or less makes no difference.
        self.mood.store(mood as u8, Ordering::Relaxed);
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mood: Arc<AtomicU8>) {
    let mut buffer = vec![0; 64 * 1024];
    let mut swallowed = false;
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        match mood.load(Ordering::Relaxed) {
            mood if mood == Mood::Swallow as u8 => swallowed = true,
            mood if mood == Mood::Delay as u8 => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            _ => {}
        }
        // A stream with a hole in it is no stream: nothing more goes through.
        if !swallowed && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
