//! The server over real TCP: its limits, and what becomes of those who send nonsense, or have gone.
//! And requests: each kind in each version is read, and no count in it is believed.

use crate::world::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::{Decodable, Encodable};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tickwheel_broker::{Counts, Malformed, Options, Server, Waiting, decode};
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

/// Encodes a request, without its length.
fn encoded(key: ApiKey, version: i16, body: &RequestKind) -> BytesMut {
    let header = RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_correlation_id(77)
        .with_client_id(Some(text("test")));
    let mut frame = BytesMut::new();
    header.encode(&mut frame, key.request_header_version(version)).expect("a header");
    body.encode(&mut frame, version).expect("a body");
    frame
}

/// A request of each kind, with something in each array, and the versions that are spoken.
fn requests() -> Vec<(ApiKey, RangeInclusive<i16>, RequestKind)> {
    let list = with!(ListOffsetsTopic { partitions: vec![ListOffsetsPartition::default(); 2] });
    let commit = OffsetCommitRequestPartition::default();
    let commit = with!(OffsetCommitRequestTopic { partitions: vec![commit; 2] });
    let committed = with!(OffsetFetchRequestTopic { partition_indexes: vec![1, 2] });
    let forgotten = vec![with!(ForgottenTopic { partitions: vec![1] })];
    let list = with!(ListOffsetsRequest { topics: vec![list] }).into();
    let commit = with!(OffsetCommitRequest { topics: vec![commit] }).into();
    let committed = with!(OffsetFetchRequest { topics: Some(vec![committed]) }).into();
    let protocol = with!(JoinGroupRequestProtocol { metadata: Bytes::from_static(b"topics") });
    let join = with!(JoinGroupRequest { protocols: vec![protocol; 2] }).into();
    let assigned = with!(SyncGroupRequestAssignment { assignment: Bytes::from_static(b"x") });
    let sync = with!(SyncGroupRequest { assignments: vec![assigned; 2] }).into();
    let fetch = fetch("orders", 0, 1);
    let newer_fetch = fetch.clone().with_forgotten_topics_data(forgotten).into();
    vec![
        (ApiKey::Produce, 3..=8, produce("orders", 1, batch(b"x")).into()),
        (ApiKey::Fetch, 4..=6, fetch.into()),
        (ApiKey::Fetch, 7..=11, newer_fetch),
        (ApiKey::ListOffsets, 1..=5, list),
        (ApiKey::Metadata, 0..=7, metadata("orders").into()),
        (ApiKey::OffsetCommit, 2..=4, commit),
        (ApiKey::OffsetFetch, 1..=5, committed),
        (ApiKey::FindCoordinator, 0..=2, FindCoordinatorRequest::default().into()),
        (ApiKey::JoinGroup, 0..=3, join),
        (ApiKey::Heartbeat, 0..=2, HeartbeatRequest::default().into()),
        (ApiKey::LeaveGroup, 0..=2, LeaveGroupRequest::default().into()),
        (ApiKey::SyncGroup, 0..=2, sync),
        (ApiKey::ApiVersions, 0..=2, ApiVersionsRequest::default().into()),
        (ApiKey::InitProducerId, 0..=1, InitProducerIdRequest::default().into()),
    ]
}

#[test]
fn each_request_is_read_in_each_version_and_in_no_other() {
    for (key, versions, body) in requests() {
        for version in versions.clone() {
            let frame = encoded(key, version, &body).freeze();
            let request = decode(frame.clone()).unwrap_or_else(|_| panic!("{key:?} {version}"));
            assert_eq!((request.version, request.correlation_id), (version, 77));
            // Not without its last byte, nor with one more.
            assert!(decode(frame.slice(..frame.len() - 1)).is_err(), "{key:?} {version}");
            let longer = Bytes::from([&frame[..], b"x"].concat());
            assert!(decode(longer).is_err(), "{key:?} {version}");
        }
    }
    let unknown = |version| {
        let frame = encoded(ApiKey::ApiVersions, version, &ApiVersionsRequest::default().into());
        decode(frame.freeze()).expect_err("it is not spoken")
    };
    assert_eq!(unknown(3), Malformed::Versions { correlation_id: 77 });
}

/// Twelve bytes that claim two billion elements would take all memory.
#[test]
fn a_count_is_not_believed_wherever_it_stands() {
    for (key, versions, body) in requests() {
        for version in versions {
            let frame = encoded(key, version, &body);
            for place in 8..=frame.len() - 4 {
                for claim in [i32::MAX, 1 << 24, 20_001] {
                    let mut frame = frame.clone();
                    frame[place..place + 4].copy_from_slice(&claim.to_be_bytes());
                    drop(decode(frame.freeze()));
                }
            }
        }
    }
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
