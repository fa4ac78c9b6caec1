//! A network that takes a question and gives no answer, while the connection stays open.

#[path = "../src/bin/support/server.rs"]
mod server;

use server::Server;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tickwheel_durable::store::{NodeId, Store};
use tickwheel_durable::{Durable, Error, OpenStore, StoreTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::Config;

/// Passes everything on, until somebody asks with this word: there is no answer to it.
async fn proxy(server: &Server, word: &'static str) -> Config {
    let port = server.config().get_ports()[0];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = server::config(listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (asks, told) = near.into_split();
            let (answers, ask) = far.into_split();
            let silent = Arc::new(AtomicBool::new(false));
            let still = Arc::clone(&silent);
            tokio::spawn(pump(answers, told, move |_| !still.load(SeqCst)));
            tokio::spawn(pump(asks, ask, move |question| {
                if String::from_utf8_lossy(question).contains(word) {
                    silent.store(true, SeqCst);
                }
                true
            }));
        }
    });
    config
}

/// Passes on what may pass.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, may_pass: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if may_pass(&buffer[..length]) {
            to.write_all(&buffer[..length]).await.unwrap();
        }
    }
}

/// With a bound that only a bug breaks.
async fn fails<A: std::fmt::Debug>(call: impl Future<Output = Result<A, Error>>) {
    let answer = tokio::time::timeout(Duration::from_secs(60), call).await.expect("it ends");
    let error = answer.expect_err("nothing is answered");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

/// Seen to fail: a start, and a node that rests, waited for ever.
#[tokio::test]
async fn what_asks_by_itself_gives_up() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let open = |config| Durable::postgres(config).namespace("swallowed").store().open();
    open(server.config()).await.unwrap();
    for word in ["tickwheel.version", "tickwheel.namespace"] {
        fails(open(proxy(&server, word).await)).await;
    }
    let store = open(proxy(&server, "LISTEN").await).await.unwrap();
    fails(store.rest(NodeId(1), StoreTime::MAX)).await;
}
