//! A network that takes a question and gives no answer, while the connection stays open.

#[path = "common/server.rs"]
mod server;

use server::Server;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tickwheel_durable::store::{NodeId, Store};
use tickwheel_durable::{Durable, Error, OpenStore, StoreTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_postgres::Config;

/// Passes everything on, until somebody asks with this word: there is no answer to it. Tells then.
async fn proxy(server: &Server, word: &'static str, asked: &Arc<Notify>) -> Config {
    let port = server.config().get_ports()[0];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = server::config(listener.local_addr().unwrap().port());
    let asked = Arc::clone(asked);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (asks, told) = near.into_split();
            let (answers, ask) = far.into_split();
            let silent = Arc::new(AtomicBool::new(false));
            let (still, asked) = (Arc::clone(&silent), Arc::clone(&asked));
            tokio::spawn(pump(answers, told, move |_| !still.load(SeqCst)));
            tokio::spawn(pump(asks, ask, move |question| {
                if String::from_utf8_lossy(question).contains(word) {
                    silent.store(true, SeqCst);
                    asked.notify_one();
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
async fn ends<A>(call: impl Future<Output = A>) -> A {
    tokio::time::timeout(Duration::from_secs(60), call)
        .await
        .expect("it ends")
}

async fn fails<A: Debug>(call: impl Future<Output = Result<A, Error>>) {
    let error = ends(call).await.expect_err("nothing is answered");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

/// Begins a call, and leaves it where its answer was swallowed.
async fn standing<C: Future<Output: Debug>>(call: C, asked: &Notify) -> Pin<Box<C>> {
    let mut call = Box::pin(call);
    tokio::select! {
        answer = &mut call => panic!("{answer:?}"),
        () = asked.notified() => call,
    }
}

/// Seen to fail: a start, and a node that rests, waited for ever.
#[tokio::test]
async fn what_asks_by_itself_gives_up() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let open = |config| {
        Durable::postgres(config)
            .namespace("swallowed")
            .store()
            .open()
    };
    open(server.config()).await.unwrap();
    for word in ["tickwheel.version", "tickwheel.namespace"] {
        fails(open(proxy(&server, word, &Arc::default()).await)).await;
    }
    let store = open(proxy(&server, "LISTEN", &Arc::default()).await)
        .await
        .unwrap();
    fails(store.rest(NodeId(1), StoreTime::MAX)).await;
}

/// Seen to fail: others that started waited for ever for the one that makes the tables.
#[tokio::test]
async fn one_that_makes_the_tables_stops_nobody() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let open = |config| Durable::postgres(config).store().open();
    let asked = Arc::default();
    let making = standing(open(proxy(&server, "CREATE SCHEMA", &asked).await), &asked).await;
    ends(open(server.config())).await.unwrap();
    ends(making).await.expect_err("its transaction was ended");
}
