//! A client: it says what it likes, and blocks until it is answered.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, BrokerId, FetchRequest, FetchResponse, GroupId, JoinGroupRequest, MetadataRequest,
    MetadataResponse, ProduceRequest, RequestHeader, RequestKind, ResponseHeader, ResponseKind,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        Client { stream }
    }

    pub(crate) fn send(&mut self, key: ApiKey, version: i16, body: &RequestKind) {
        self.stream.write_all(&framed(&encoded(key, version, body))).expect("an open connection");
    }

    pub(crate) fn receive(&mut self, key: ApiKey, version: i16) -> ResponseKind {
        let frame = self.frame().expect("an answer");
        let mut frame = Bytes::from(frame);
        let header = ResponseHeader::decode(&mut frame, key.response_header_version(version));
        assert_eq!(header.expect("a header").correlation_id, CORRELATION);
        ResponseKind::decode(key, &mut frame, version).expect("a body")
    }

    pub(crate) fn call(&mut self, key: ApiKey, version: i16, body: &RequestKind) -> ResponseKind {
        self.send(key, version, body);
        self.receive(key, version)
    }

    /// Reads the next frame; `None` if the connection is closed.
    pub(crate) fn frame(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) => {
                let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                assert!(closed.contains(&error.kind()), "neither an answer nor closed: {error}");
                return None;
            }
        }
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame).expect("a whole frame");
        Some(frame)
    }

    pub(crate) fn send_create(&mut self, topic: &str) {
        let topics = vec![MetadataRequestTopic::default().with_name(Some(name(topic)))];
        let body = MetadataRequest::default().with_topics(Some(topics));
        self.send(ApiKey::Metadata, 5, &body.into());
    }

    pub(crate) fn create(&mut self, topic: &str) -> MetadataResponse {
        self.send_create(topic);
        match self.receive(ApiKey::Metadata, 5) {
            ResponseKind::Metadata(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// Sends records to partition 0.
    pub(crate) fn send_produce(&mut self, topic: &str, acks: i16, timeout_ms: i32, records: Bytes) {
        let with = |body: ProduceRequest| body.with_acks(acks).with_timeout_ms(timeout_ms);
        self.send_produce_with(topic, records, with);
    }

    pub(crate) fn produce_frame(&self, topic: &str, records: Bytes) -> Bytes {
        framed(&encoded(ApiKey::Produce, 7, &produce(topic, records).with_timeout_ms(1000).into()))
    }

    pub(crate) fn send_produce_with(
        &mut self,
        topic: &str,
        records: Bytes,
        with: impl FnOnce(ProduceRequest) -> ProduceRequest,
    ) {
        self.send(ApiKey::Produce, 7, &with(produce(topic, records)).into());
    }

    /// Returns the error's code and the offset.
    pub(crate) fn receive_produced(&mut self) -> (i16, i64) {
        match self.receive(ApiKey::Produce, 7) {
            ResponseKind::Produce(response) => {
                let answer = &response.responses[0].partition_responses[0];
                (answer.error_code, answer.base_offset)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Appends so many batches of a mebibyte.
    pub(crate) fn produce_mebibytes(&mut self, topic: &str, count: usize) {
        let one = batch(1, &vec![b'x'; MIB - batch(1, b"").len()]);
        for _ in 0..count {
            assert_eq!(self.produce(topic, one.clone()).0, 0);
        }
    }

    pub(crate) fn produce(&mut self, topic: &str, records: Bytes) -> (i16, i64) {
        self.send_produce(topic, 1, 1000, records);
        self.receive_produced()
    }

    /// Makes a topic, and appends to it. Returns the error's code.
    pub(crate) fn produce_to(&mut self, topic: &str, records: Bytes) -> i16 {
        self.create(topic);
        self.produce(topic, records).0
    }

    /// Asks for partition 0 from an offset on.
    pub(crate) fn send_fetch(&mut self, topic: &str, offset: i64, max_wait_ms: i32, min: i32) {
        let body = fetch(topic, &[(0, offset)]).with_max_wait_ms(max_wait_ms).with_min_bytes(min);
        self.send(ApiKey::Fetch, 11, &body.into());
    }

    /// Asks for partitions, each from an offset on.
    pub(crate) fn send_fetch_of(&mut self, topic: &str, max_wait_ms: i32, wanted: &[(i32, i64)]) {
        let body = fetch(topic, wanted).with_max_wait_ms(max_wait_ms).with_min_bytes(1);
        self.send(ApiKey::Fetch, 11, &body.into());
    }

    /// Returns the error's code and the records.
    pub(crate) fn receive_fetched(&mut self) -> (i16, Bytes) {
        let response = self.receive_fetch();
        let answer = &response.responses[0].partitions[0];
        (answer.error_code, answer.records.clone().unwrap_or_default())
    }

    /// Receives the partitions of one topic, and their records.
    pub(crate) fn receive_all_fetched(&mut self) -> Vec<(i32, Bytes)> {
        let response = self.receive_fetch();
        let partitions = response.responses[0].partitions.iter();
        let records = |data: &PartitionData| data.records.clone().unwrap_or_default();
        partitions.map(|data| (data.partition_index, records(data))).collect()
    }

    pub(crate) fn receive_fetch(&mut self) -> FetchResponse {
        match self.receive(ApiKey::Fetch, 11) {
            ResponseKind::Fetch(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// Joins a group as a new member.
    pub(crate) fn send_join(&mut self, group: &str) {
        self.send_join_with(group, Bytes::new());
    }

    pub(crate) fn send_join_with(&mut self, group: &str, metadata: Bytes) {
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
        let protocol = protocol.with_metadata(metadata);
        let body = JoinGroupRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_session_timeout_ms(10_000)
            .with_protocols(vec![protocol]);
        self.send(ApiKey::JoinGroup, 3, &body.into());
    }

    /// Returns the error's code and the generation.
    pub(crate) fn receive_joined(&mut self) -> (i16, i32) {
        match self.receive(ApiKey::JoinGroup, 3) {
            ResponseKind::JoinGroup(response) => (response.error_code, response.generation_id),
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether an answer has arrived already.
    pub(crate) fn has_answer(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket");
        peeked.is_ok()
    }
}

fn produce(topic: &str, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(0).with_records(Some(records));
    let topic = TopicProduceData::default().with_name(name(topic));
    let topics = vec![topic.with_partition_data(vec![data])];
    ProduceRequest::default().with_acks(1).with_topic_data(topics)
}

pub(crate) fn fetch(topic: &str, wanted: &[(i32, i64)]) -> FetchRequest {
    let partition = |(index, offset): &(i32, i64)| {
        FetchPartition::default()
            .with_partition(*index)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(i32::MAX)
    };
    let topic = FetchTopic::default().with_topic(name(topic));
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_bytes(i32::MAX)
        .with_topics(vec![topic.with_partitions(wanted.iter().map(partition).collect())])
}

pub(crate) const MIB: usize = 1 << 20;
const CORRELATION: i32 = 77;

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Encodes a request without its length.
pub(crate) fn encoded(key: ApiKey, version: i16, body: &RequestKind) -> BytesMut {
    let header = RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_correlation_id(CORRELATION)
        .with_client_id(Some(StrBytes::from_static_str("test")));
    let mut frame = BytesMut::new();
    header.encode(&mut frame, key.request_header_version(version)).expect("a header");
    body.encode(&mut frame, version).expect("a body");
    frame
}

pub(crate) fn framed(body: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u32(body.len() as u32);
    frame.put_slice(body);
    frame.freeze()
}

/// Encodes a batch of identical records.
pub(crate) fn batch(count: i32, value: &[u8]) -> Bytes {
    tickwheel_broker::Batch::encode(count, 1000, value)
}

/// Returns the same batch, as an idempotent producer sends it.
pub(crate) fn sequenced(batch: &[u8], producer_id: i64, epoch: i16, first: i32) -> Bytes {
    changed(batch, |batch| {
        batch[43..51].copy_from_slice(&producer_id.to_be_bytes());
        batch[51..53].copy_from_slice(&epoch.to_be_bytes());
        batch[53..57].copy_from_slice(&first.to_be_bytes());
    })
}

/// Returns a batch that is changed, and whose checksum is right all the same.
pub(crate) fn changed(batch: &[u8], change: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut batch = BytesMut::from(batch);
    change(&mut batch);
    let checksum = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    batch.freeze()
}
