//! hyper's own server, in virtual time over a pipe in memory, polled by hand; and on TCP, with a
//! reaper. Times have lower bounds only there; the upper ones guard against hanging.

use crate::{Fixture, MS, NS};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::{Pin, pin};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tickwheel::{Task, Timer, TimerEntry};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const LIMIT: std::time::Duration = MS.saturating_mul(10);

pub(crate) async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>>>>;

/// Returns a connection whose headers may take `LIMIT`, and the client's end of it.
fn connection(timer: &Timer) -> (Connection, DuplexStream) {
    let (client, server) = duplex(4096);
    let connection = http1::Builder::new()
        .timer(timer.clone())
        .header_read_timeout(LIMIT)
        .serve_connection(TokioIo::new(server), service_fn(hello));
    (Box::pin(connection), client)
}

/// Sends `text`, for which there is room.
fn send(client: &mut DuplexStream, text: &str) {
    let context = &mut Context::from_waker(Waker::noop());
    let sent = pin!(client).poll_write(context, text.as_bytes());
    assert!(matches!(sent, Poll::Ready(Ok(count)) if count == text.len()), "{sent:?}");
}

/// Returns what has come from the server; `None` if it has closed the connection.
fn received(client: &mut DuplexStream) -> Option<String> {
    let (mut bytes, context) = ([0; 4096], &mut Context::from_waker(Waker::noop()));
    let mut bytes = ReadBuf::new(&mut bytes);
    let ended = pin!(client).poll_read(context, &mut bytes).is_ready();
    let text = String::from_utf8_lossy(bytes.filled()).into_owned();
    (!ended || !text.is_empty()).then_some(text)
}

fn timed_out(result: Poll<hyper::Result<()>>) -> bool {
    matches!(result, Poll::Ready(Err(error)) if error.is_timeout())
}

const HALF: &str = "GET / HTTP/1.1\r\nHost: a\r\n";

#[test]
fn half_a_header_is_given_up_at_the_time_limit_and_not_a_nanosecond_before() {
    let fixture = Fixture::new();
    let (mut connection, mut client) = connection(&fixture.timer);
    send(&mut client, HALF);
    assert!(fixture.poll(&mut connection).is_pending());
    assert_eq!(fixture.timer.len(), 1, "the header's time limit");
    fixture.advance(LIMIT / 2);
    send(&mut client, "Slow: ");
    assert!(fixture.wakes() > 0 && fixture.poll(&mut connection).is_pending());
    assert_eq!(fixture.advance(LIMIT - LIMIT / 2 - NS), 0);
    assert!(fixture.poll(&mut connection).is_pending());
    assert_eq!(received(&mut client).as_deref(), Some(""), "it is open");
    assert_eq!(fixture.advance(NS), 1);
    assert!(timed_out(fixture.poll(&mut connection)));
    drop(connection);
    assert_eq!(received(&mut client), None, "it is closed");
    assert!(fixture.timer.is_empty(), "nothing is left");
}

#[test]
fn a_client_that_is_in_time_is_served_again_and_again() {
    let fixture = Fixture::new();
    let (mut connection, mut client) = connection(&fixture.timer);
    assert!(fixture.poll(&mut connection).is_pending());
    for request in 1..=5 {
        send(&mut client, HALF);
        assert!(fixture.poll(&mut connection).is_pending());
        fixture.advance(LIMIT - NS);
        send(&mut client, "\r\n");
        assert!(fixture.poll(&mut connection).is_pending());
        let answer = received(&mut client).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        assert_eq!(fixture.timer.len(), 1, "request {request}: the next header's limit has begun");
        fixture.wakes();
    }
    assert_eq!(fixture.advance(LIMIT + MS), 1, "less than a tick late");
    assert!(timed_out(fixture.poll(&mut connection)), "nothing came any more");
}

#[test]
fn a_connection_that_ends_takes_its_time_limit_along() {
    let fixture = Fixture::new();
    let (mut connection, mut client) = connection(&fixture.timer);
    send(&mut client, HALF);
    assert!(fixture.poll(&mut connection).is_pending());
    assert_eq!(fixture.timer.len(), 1);
    drop(connection);
    assert_eq!((fixture.timer.len(), fixture.advance(LIMIT)), (0, 0));
}

#[test]
fn a_shutdown_of_the_timer_closes_no_connection() {
    let fixture = Fixture::new();
    let (mut connection, mut client) = connection(&fixture.timer);
    send(&mut client, HALF);
    assert!(fixture.poll(&mut connection).is_pending());
    fixture.timer.shutdown().into_iter().map(TimerEntry::into_task).for_each(Task::run);
    assert!(fixture.wakes() > 0 && fixture.poll(&mut connection).is_pending());
    send(&mut client, "\r\n");
    assert!(fixture.poll(&mut connection).is_pending());
    assert!(received(&mut client).unwrap().starts_with("HTTP/1.1 200"), "it is served");
    // The next header is not waited for by anybody; its limit holds all the same when it comes.
    fixture.advance(LIMIT);
    assert!(timed_out(fixture.poll(&mut connection)));
}

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
