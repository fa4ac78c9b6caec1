//! The heartbeats' core against real TCP, in virtual time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_services::heartbeat::{
    ANSWER, Connection, End, Event, Exchange, HEARTBEAT, QUESTION, keep_connected, serve,
};
use tickwheel_services::{PATIENCE, happens};
use tokio::runtime::{Builder, Runtime};

const NANO: Duration = Duration::from_nanos(1);
const S: Duration = Duration::from_secs(1);

struct Fixture {
    clock: ManualClock,
    exchange: Exchange,
    runtime: Runtime,
}

impl Fixture {
    fn new(idle_timeout: Duration) -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let exchange = Exchange {
            timer,
            heartbeat: 10 * S,
            idle_timeout,
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_io()
            .build()
            .unwrap();
        Fixture {
            clock,
            exchange,
            runtime,
        }
    }

    fn advance(&self, time: Duration) {
        self.clock.advance(time);
        self.exchange.timer.advance_clock(Duration::ZERO);
    }

    /// Returns how many timers are pending.
    fn timers(&self) -> usize {
        self.exchange.timer.len()
    }

    fn serve(&self) -> (SocketAddr, Receiver<Event>) {
        let (sender, events) = channel();
        let listener = listen();
        let address = listener.local_addr().unwrap();
        let exchange = self.exchange.clone();
        self.runtime.spawn(async move {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            serve(exchange, listener, move |event| _ = sender.send(event)).await
        });
        (address, events)
    }
}

fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Returns the next connection to a listener. Its reads are limited, too.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let mut stream = None;
    assert!(happens(|| {
        stream = stream.take().or_else(|| listener.accept().ok());
        stream.is_some()
    }));
    let (stream, _) = stream.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The other end, by hand.
struct Peer(TcpStream);

impl Peer {
    /// Connects, and waits until the server has read the name.
    fn connect(server: SocketAddr, connection: u32, events: &Receiver<Event>) -> Self {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&connection.to_be_bytes()).unwrap();
        assert_eq!(
            events.recv_timeout(PATIENCE),
            Ok(Event::Opened { connection })
        );
        Peer(stream)
    }

    /// Asks. When the answer is there, the server has read and written.
    fn talk(&mut self) {
        self.0.write_all(&[QUESTION]).unwrap();
        self.expect(&[ANSWER]);
    }

    fn expect(&mut self, bytes: &[u8]) {
        let mut read = vec![0; bytes.len()];
        self.0.read_exact(&mut read).unwrap();
        assert_eq!(read, bytes);
    }

    fn expect_end(mut self) {
        assert_eq!(self.0.read(&mut [0]).unwrap(), 0);
    }
}

fn closed(connection: u32, end: End) -> Result<Event, RecvTimeoutError> {
    Ok(Event::Closed { connection, end })
}

#[test]
fn exactly_the_silent_connection_is_closed_and_not_before_its_time() {
    let fixture = Fixture::new(30 * S);
    let (server, events) = fixture.serve();
    let mut silent = Peer::connect(server, 1, &events);
    let mut living = Peer::connect(server, 2, &events);
    fixture.advance(9 * S);
    living.talk();
    fixture.advance(21 * S - NANO);
    assert_eq!(fixture.timers(), 4, "two of each connection");
    fixture.advance(NANO);
    assert_eq!(
        events.recv_timeout(PATIENCE),
        closed(1, End::Silent(30 * S))
    );
    assert_eq!(fixture.timers(), 2);
    silent.expect(&[HEARTBEAT]);
    silent.expect_end();

    living.expect(&[HEARTBEAT]);
    living.talk();
    fixture.advance(30 * S);
    assert_eq!(
        events.recv_timeout(PATIENCE),
        closed(2, End::Silent(30 * S))
    );
    assert_eq!(fixture.timers(), 0);
}

#[test]
fn a_heartbeat_is_sent_when_nothing_was_written_for_so_long_and_only_then() {
    let fixture = Fixture::new(3600 * S);
    let (server, events) = fixture.serve();
    let mut quiet = Peer::connect(server, 1, &events);
    let mut busy = Peer::connect(server, 2, &events);
    for _ in 0..20 {
        busy.talk();
        fixture.advance(5 * S);
    }
    quiet.expect(&[HEARTBEAT; 10]);
    busy.talk(); // And nothing else came.
}

#[test]
fn a_connection_that_the_peer_closes_leaves_nothing_in_the_timer() {
    let fixture = Fixture::new(30 * S);
    let (server, events) = fixture.serve();
    let peer = Peer::connect(server, 1, &events);
    assert_eq!(fixture.timers(), 2);
    drop(peer);
    assert_eq!(events.recv_timeout(PATIENCE), closed(1, End::Closed));
    assert_eq!(fixture.timers(), 0);
}

#[test]
fn bytes_that_lie_unread_are_a_sign_of_life() {
    let fixture = Fixture::new(30 * S);
    let listener = listen();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = accept(&listener);
    let raw = stream.try_clone().unwrap();
    let connection = fixture.runtime.block_on(async {
        stream.set_nonblocking(true).unwrap();
        Connection::open(
            &fixture.exchange,
            tokio::net::TcpStream::from_std(stream).unwrap(),
        )
    });
    peer.write_all(&[QUESTION]).unwrap();
    assert!(happens(|| raw.peek(&mut [0]).is_ok()));
    fixture.advance(30 * S); // This process is busy with other things.
    let mut buffer = [0; 10];
    let limit = Timer::builder().start().unwrap(); // On the real clock.
    let mut read = || {
        let read = limit.timeout(PATIENCE, connection.read(&mut buffer));
        fixture.runtime.block_on(read).unwrap()
    };
    assert_eq!(read(), Ok(1));
    fixture.advance(30 * S);
    assert_eq!(read(), Err(End::Silent(30 * S)));
}

#[test]
fn the_client_gives_a_silent_server_up_and_connects_again() {
    let fixture = Fixture::new(30 * S);
    let server = listen();
    let address = server.local_addr().unwrap();
    fixture
        .runtime
        .spawn(keep_connected(fixture.exchange.clone(), address, 7));

    let mut peer = Peer(accept(&server));
    peer.expect(&7_u32.to_be_bytes());
    for seconds in [11, 11, 8] {
        fixture.advance(seconds * S);
    }
    peer.expect(&[HEARTBEAT; 2]);
    peer.expect_end();
    assert!(happens(|| fixture.timers() > 0)); // It pauses.
    fixture.advance(10 * S);
    Peer(accept(&server)).expect(&7_u32.to_be_bytes());
}
