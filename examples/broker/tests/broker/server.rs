//! The server over real TCP: its limits, and what becomes of those who send nonsense, or have gone.

use crate::wire::encoded;
use crate::world::*;
use bytes::Bytes;
use kafka_protocol::protocol::Decodable;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tickwheel_broker::{Counts, Options, Server, Waiting};
use tokio::sync::oneshot;

struct Fixture {
    world: World,
    counts: Arc<Counts>,
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
}

impl Fixture {
    fn new(options: Options) -> Self {
        let mut world = World::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime");
        let server = runtime.block_on(Server::bind(&options, world.timer.clone()));
        let server = server.expect("a port");
        world.broker = Arc::clone(server.broker());
        let (counts, address) = (Arc::clone(server.counts()), server.address());
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || runtime.block_on(server.run(async { drop(ended.await) })));
        Fixture { world, counts, address, end: Some(end) }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        Client(stream)
    }

    fn wait_for_fetches(&self, fetches: usize) {
        eventually(|| self.world.broker.waiting() == Waiting { fetches, ..Waiting::default() });
    }
}

/// Waits for what other threads do soon.
fn eventually(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never came about");
        std::thread::sleep(MS);
    }
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, key: ApiKey, version: i16, body: impl Into<RequestKind>) {
        let frame = encoded(key, version, &body.into());
        self.write(&(frame.len() as u32).to_be_bytes());
        self.write(&frame);
    }

    fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes); // If it is closed, `receive` sees that.
    }

    /// Receives an answer, or `None` if the connection is closed.
    fn receive(&mut self, key: ApiKey, version: i16) -> Option<ResponseKind> {
        let mut length = [0; 4];
        if let Err(error) = self.0.read_exact(&mut length) {
            let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
            assert!(closed.contains(&error.kind()), "neither an answer nor closed: {error}");
            return None;
        }
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).expect("a whole frame");
        let mut frame = Bytes::from(frame);
        let header = ResponseHeader::decode(&mut frame, key.response_header_version(version));
        assert_eq!(header.expect("a header").correlation_id, 77);
        Some(ResponseKind::decode(key, &mut frame, version).expect("a body"))
    }

    fn is_closed(&mut self) -> bool {
        self.receive(ApiKey::ApiVersions, 0).is_none()
    }

    fn create(&mut self) {
        self.send(ApiKey::Metadata, 7, metadata("orders"));
        answered!(Metadata, self.receive(ApiKey::Metadata, 7).expect("an answer"));
    }

    fn append(&mut self, value: &[u8]) {
        self.send(ApiKey::Produce, 8, produce("orders", 1, batch(value)));
        answered!(Produce, self.receive(ApiKey::Produce, 8).expect("an answer"));
    }
}

#[test]
fn nonsense_closes_its_connection_and_is_counted() {
    let fixture = Fixture::new(options());
    let frames: [&[u8]; 5] = [
        &i32::MAX.to_be_bytes(),
        &(-1_i32).to_be_bytes(),
        &((2_u32 << 20) + 1).to_be_bytes(),
        b"\0\0\0\x0cGET / HTTP/1",
        b"\0\0\0\x0e\0\x03\0\x05\0\0\0\0\xff\xff\x7f\xff\xff\xff", // Two billion topics.
    ];
    for (count, frame) in frames.into_iter().enumerate() {
        let mut client = fixture.client();
        client.write(frame);
        assert!(client.is_closed(), "{frame:?}");
        assert_eq!(fixture.counts.malformed.load(Ordering::Relaxed), count as u64 + 1);
    }
    fixture.client().create();
}

#[test]
fn a_connection_too_many_is_closed_at_once() {
    let fixture = Fixture::new(Options { max_connections: 2, ..options() });
    let (mut first, mut second) = (fixture.client(), fixture.client());
    first.create();
    second.create();
    assert!(fixture.client().is_closed());
    assert_eq!(fixture.counts.refused.load(Ordering::Relaxed), 1);
    drop(second);
    eventually(|| {
        let mut third = fixture.client();
        third.send(ApiKey::Metadata, 7, metadata("orders"));
        third.receive(ApiKey::Metadata, 7).is_some()
    });
}

#[test]
fn a_client_that_goes_takes_its_parked_fetch_along() {
    let fixture = Fixture::new(options());
    let mut client = fixture.client();
    client.create();
    client.send(ApiKey::Fetch, 11, fetch("orders", 0, 1));
    fixture.wait_for_fetches(1);
    drop(client);
    fixture.wait_for_fetches(0);
}

/// Half frames took room of one budget, so that whoever came after them was not read.
#[test]
fn half_frames_of_those_who_have_gone_hold_nobody_up() {
    let fixture = Fixture::new(options());
    let mut halves: Vec<Client> = (0..84).map(|_| fixture.client()).collect();
    for half in &mut halves {
        half.write(&(2_u32 << 20).to_be_bytes());
        half.write(&[0; 1000]);
    }
    let mut client = fixture.client();
    client.create();
    client.append(&vec![0; 1_000_000]);
    // Each has its time limit.
    eventually(|| fixture.world.timer.len() >= 84);
    fixture.world.advance(Duration::from_secs(30));
    halves.iter_mut().for_each(|half| assert!(half.is_closed()));
    // Between two requests a client may be silent for longer, but not for ever.
    client.append(b"small");
    client.0.set_nonblocking(true).expect("a socket");
    eventually(|| {
        fixture.world.advance(Duration::from_secs(600));
        matches!(client.0.peek(&mut [0]), Ok(0))
    });
}

#[test]
fn at_the_end_whoever_waits_is_answered() {
    let mut fixture = Fixture::new(options());
    let mut client = fixture.client();
    client.create();
    client.send(ApiKey::Fetch, 11, fetch("orders", 0, 1));
    fixture.wait_for_fetches(1);
    drop(fixture.end.take());
    answered!(Fetch, client.receive(ApiKey::Fetch, 11).expect("an answer"));
}
