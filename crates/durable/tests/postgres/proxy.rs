//! A way to a server, which may come to lead elsewhere, and swallow what the server says.

use crate::server::{self, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_postgres::Config;

#[derive(Default)]
pub(crate) struct Proxy {
    port: AtomicU16,
    /// Where new connections lead.
    to: AtomicU16,
    /// How many connections there were.
    pub(crate) connections: AtomicUsize,
    /// Whether all answers are swallowed.
    pub(crate) swallows: AtomicBool,
    /// The answer to a question with this word is swallowed.
    word: Option<&'static str>,
    /// Told of such a question.
    pub(crate) asked: Notify,
}

impl Proxy {
    pub(crate) async fn start(server: &Server, word: Option<&'static str>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Arc::new(Proxy {
            word,
            ..Proxy::default()
        });
        proxy
            .port
            .store(listener.local_addr().unwrap().port(), SeqCst);
        proxy.lead_to(server);
        let accepting = Arc::clone(&proxy);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                accepting.connections.fetch_add(1, SeqCst);
                // Otherwise the caller's connection ends.
                if let Ok(far) = TcpStream::connect(("127.0.0.1", accepting.to.load(SeqCst))).await
                {
                    accepting.pass_on(near, far);
                }
            }
        });
        proxy
    }

    pub(crate) fn lead_to(&self, server: &Server) {
        self.to.store(server.config().get_ports()[0], SeqCst);
    }

    pub(crate) fn config(&self) -> Config {
        server::config(self.port.load(SeqCst))
    }

    /// Passes on what goes over a connection. Once something was swallowed nothing follows, as on a
    /// network.
    fn pass_on(self: &Arc<Self>, near: TcpStream, far: TcpStream) {
        let (asks, told) = near.into_split();
        let (answers, ask) = far.into_split();
        let lost = Arc::new(AtomicBool::new(false));
        let proxy = Arc::clone(self);
        let is_lost = Arc::clone(&lost);
        tokio::spawn(pump(answers, told, move |_| {
            is_lost.fetch_or(proxy.swallows.load(SeqCst), SeqCst);
            !is_lost.load(SeqCst)
        }));
        let proxy = Arc::clone(self);
        tokio::spawn(pump(asks, ask, move |question| {
            let has = |word| String::from_utf8_lossy(question).contains(word);
            if proxy.word.is_some_and(has) {
                lost.store(true, SeqCst);
                proxy.asked.notify_one();
            }
            true
        }));
    }
}

/// Passes on what may pass, until one of the two ends.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, may_pass: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if may_pass(&buffer[..length]) && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
