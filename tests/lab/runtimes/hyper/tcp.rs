//! hyper's server on TCP, and a timer with a reaper. Times have lower bounds only; the upper ones
//! guard against hanging.

use crate::server::hello;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const HANG: Duration = Duration::from_secs(20);

/// How a connection ended, and how long it was served.
type End = (hyper::Result<()>, Duration);

/// Starts a server whose headers may take `limit`. Returns its address, and its connections' ends.
fn serve(runtime: &Runtime, timer: &Timer, limit: Duration) -> (SocketAddr, Receiver<End>) {
    let (timer, (sender, ends)) = (timer.clone(), channel());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut builder = http1::Builder::new();
            builder.timer(timer.clone()).header_read_timeout(limit);
            let sender = sender.clone();
            tokio::spawn(async move {
                let start = Instant::now();
                let service = service_fn(hello);
                let result = builder.serve_connection(TokioIo::new(stream), service).await;
                let _ = sender.send((result, start.elapsed()));
            });
        }
    });
    (address, ends)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // tokio's own timer is not enabled.
    builder.worker_threads(2).enable_io().build().unwrap()
}

#[test]
fn clients_that_send_half_a_header_are_disconnected_no_earlier_than_the_time_limit() {
    let (runtime, timer) = (runtime(), Timer::builder().start().unwrap());
    let limit = Duration::from_millis(50);
    let (address, ends) = serve(&runtime, &timer, limit);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    for client in &mut clients {
        client.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    }
    for mut client in clients {
        // Closed with or without a word; a client that is not times out here.
        let mut answer = Vec::new();
        let read = client.read_to_end(&mut answer);
        assert!(!matches!(read, Err(ref error) if error.kind() == std::io::ErrorKind::WouldBlock));
        let (result, took) = ends.recv_timeout(HANG).unwrap();
        assert!(result.is_err_and(|error| error.is_timeout()));
        assert!(took >= limit, "{took:?}");
    }
    assert!(timer.is_empty(), "nothing is left");
}
