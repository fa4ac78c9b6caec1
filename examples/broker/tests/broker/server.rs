//! The server over real TCP: its limits, and what becomes of those who send nonsense, or have gone.

use crate::world::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::Encodable;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tickwheel_broker::{Counts, Options, Server, Waiting, decode};
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        let runtime = runtime.expect("a runtime");
        let server = runtime.block_on(Server::bind(&options, world.timer.clone()));
        let server = server.expect("a port");
        world.broker = Arc::clone(server.broker());
        let counts = Arc::clone(server.counts());
        let address = server.address();
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || runtime.block_on(server.run(async { drop(ended.await) })));
        Fixture {
            world,
            counts,
            address,
            end: Some(end),
        }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a socket");
        Client(stream)
    }

    /// Connects a client whose fetch waits.
    fn parked(&self) -> Client {
        let mut client = self.client();
        client.create();
        client.send(ApiKey::Fetch, 11, fetch("orders", 0, 1));
        self.wait_for_fetches(1);
        client
    }

    fn wait_for_fetches(&self, fetches: usize) {
        eventually(|| {
            self.world.broker.waiting()
                == Waiting {
                    fetches,
                    ..Waiting::default()
                }
        });
    }
}

/// Waits for what other threads do soon.
fn eventually(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it never came about"
        );
        std::thread::sleep(MS);
    }
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, key: ApiKey, version: i16, body: impl Into<RequestKind>) {
        let frame = encoded(key, version, &body.into());
        self.write(&[&(frame.len() as u32).to_be_bytes(), &frame[..]].concat());
    }

    fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes); // If it is closed, `receive` sees that.
    }

    /// Receives an answer, or `None` if the connection is closed.
    fn receive(&mut self, key: ApiKey, version: i16) -> Option<ResponseKind> {
        let mut length = [0; 4];
        if let Err(error) = self.0.read_exact(&mut length) {
            let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
            assert!(
                closed.contains(&error.kind()),
                "neither an answer nor closed: {error}"
            );
            return None;
        }
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).expect("a whole frame");
        let mut body = Bytes::from(frame);
        assert_eq!(*body.split_to(4), 77_u32.to_be_bytes());
        Some(ResponseKind::decode(key, &mut body, version).expect("a body"))
    }

    fn is_closed(&mut self) -> bool {
        self.receive(ApiKey::ApiVersions, 0).is_none()
    }

    fn asks(&mut self, key: ApiKey, version: i16, body: impl Into<RequestKind>) -> bool {
        self.send(key, version, body);
        self.receive(key, version).is_some()
    }

    fn create(&mut self) {
        assert!(self.asks(ApiKey::Metadata, 7, metadata("orders")));
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
        assert_eq!(
            fixture.counts.malformed.load(Ordering::Relaxed),
            count as u64 + 1
        );
    }
    fixture.client().create();
}

#[test]
fn a_connection_too_many_is_closed_at_once() {
    let fixture = Fixture::new(Options {
        max_connections: 2,
        ..options()
    });
    let mut first = fixture.client();
    let mut second = fixture.client();
    first.create();
    second.create();
    assert!(fixture.client().is_closed());
    assert_eq!(fixture.counts.refused.load(Ordering::Relaxed), 1);
    drop(second);
    eventually(|| {
        let mut third = fixture.client();
        third.asks(ApiKey::Metadata, 7, metadata("orders"))
    });
}

#[test]
fn a_client_that_goes_takes_its_parked_fetch_along() {
    let fixture = Fixture::new(options());
    drop(fixture.parked());
    fixture.wait_for_fetches(0);
}

#[test]
fn a_frame_on_its_way_and_a_silent_client_have_their_time() {
    let fixture = Fixture::new(options());
    let mut half = fixture.client();
    let mut client = fixture.client();
    // A request, and half of one, in one piece: when the answer is there, both were read.
    let body = encoded(ApiKey::Metadata, 7, &metadata("orders").into());
    half.write(
        &[
            &(body.len() as u32).to_be_bytes(),
            &body[..],
            b"\0\x20\0\0half",
        ]
        .concat(),
    );
    assert!(half.receive(ApiKey::Metadata, 7).is_some());
    client.create();
    fixture.world.advance(Duration::from_secs(30));
    assert!(half.is_closed());
    // Between two requests a client may be silent for longer, but not for ever.
    client.create();
    client.0.set_nonblocking(true).expect("a socket");
    eventually(|| {
        fixture.world.advance(Duration::from_secs(600));
        matches!(client.0.peek(&mut [0]), Ok(0))
    });
}

#[test]
fn at_the_end_whoever_waits_is_answered() {
    let mut fixture = Fixture::new(options());
    let mut client = fixture.parked();
    drop(fixture.end.take());
    answered!(Fetch, client.receive(ApiKey::Fetch, 11).expect("an answer"));
}

/// Encodes a request, without its length.
fn encoded(key: ApiKey, version: i16, body: &RequestKind) -> BytesMut {
    let header = RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_correlation_id(77)
        .with_client_id(Some(text("test")));
    let mut frame = BytesMut::new();
    header
        .encode(&mut frame, key.request_header_version(version))
        .expect("a header");
    body.encode(&mut frame, version).expect("a body");
    frame
}

/// What is decoded takes far more room than what was sent.
#[test]
fn a_request_has_not_too_many_elements() {
    let with_topics = |count| {
        let topics = vec![MetadataRequestTopic::default().with_name(Some(name("t"))); count];
        let body = MetadataRequest::default().with_topics(Some(topics)).into();
        decode(encoded(ApiKey::Metadata, 7, &body).freeze())
    };
    assert!(with_topics(20_000).is_ok() && with_topics(20_001).is_err());
}
