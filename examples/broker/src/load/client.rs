//! A client: as much of Kafka's protocol as the load speaks.

use crate::Failure;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ApiKey, BrokerId, FetchRequest, GroupId, HeartbeatRequest, JoinGroupRequest, MetadataRequest,
    ProduceRequest, RequestHeader, RequestKind, ResponseHeader, ResponseKind, SyncGroupRequest,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(super) struct Client(TcpStream);

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client(stream))
    }

    /// Makes the topic that all use.
    pub(super) async fn create_topic(&mut self) -> Result<(), Failure> {
        let topic = MetadataRequestTopic::default().with_name(Some(topic()));
        let request = MetadataRequest::default().with_topics(Some(vec![topic]));
        self.call(ApiKey::Metadata, 5, request.into()).await?;
        Ok(())
    }

    pub(super) async fn produce(&mut self, partition: i32, records: Bytes) -> Result<(), Failure> {
        let request = produce_request(partition, records);
        match self.call(ApiKey::Produce, 7, request.into()).await? {
            ResponseKind::Produce(response)
                if response.responses[0].partition_responses[0].error_code == 0 =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}").into()),
        }
    }

    /// Returns the records from an offset on, and the high watermark.
    pub(super) async fn fetch(
        &mut self,
        partition: i32,
        offset: i64,
        max_wait_ms: i32,
    ) -> Result<(Bytes, i64), Failure> {
        let wanted = FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default().with_topic(topic()).with_partitions(vec![wanted]);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(max_wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_topics(vec![topic]);
        match self.call(ApiKey::Fetch, 11, request.into()).await? {
            ResponseKind::Fetch(mut response) if !response.responses.is_empty() => {
                let answer = response.responses.remove(0).partitions.remove(0);
                match answer.error_code {
                    0 => Ok((answer.records.unwrap_or_default(), answer.high_watermark)),
                    code => Err(format!("a fetch has failed: {code}").into()),
                }
            }
            other => Err(format!("{other:?}").into()),
        }
    }

    /// Joins a group of which it is the only member. Returns what its heartbeats say.
    pub(super) async fn join(&mut self, session_ms: i32) -> Result<HeartbeatRequest, Failure> {
        let group = || GroupId(StrBytes::from_static_str("load"));
        let protocol = JoinGroupRequestProtocol::default();
        let protocol = protocol.with_name(StrBytes::from_static_str("range"));
        let join = JoinGroupRequest::default()
            .with_group_id(group())
            .with_session_timeout_ms(session_ms)
            .with_protocols(vec![protocol]);
        let (id, generation) = match self.call(ApiKey::JoinGroup, 3, join.into()).await? {
            ResponseKind::JoinGroup(joined) => (joined.member_id, joined.generation_id),
            other => return Err(format!("{other:?}").into()),
        };
        let assignment = SyncGroupRequestAssignment::default().with_member_id(id.clone());
        let sync = SyncGroupRequest::default()
            .with_group_id(group())
            .with_member_id(id.clone())
            .with_generation_id(generation)
            .with_assignments(vec![assignment]);
        self.call(ApiKey::SyncGroup, 2, sync.into()).await?;
        let heartbeat = HeartbeatRequest::default().with_group_id(group());
        Ok(heartbeat.with_member_id(id).with_generation_id(generation))
    }

    /// Returns the error's code.
    pub(super) async fn heartbeat(&mut self, heartbeat: HeartbeatRequest) -> Result<i16, Failure> {
        match self.call(ApiKey::Heartbeat, 2, heartbeat.into()).await? {
            ResponseKind::Heartbeat(response) => Ok(response.error_code),
            other => Err(format!("{other:?}").into()),
        }
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.0
    }

    async fn call(
        &mut self,
        key: ApiKey,
        version: i16,
        body: RequestKind,
    ) -> Result<ResponseKind, Failure> {
        self.0.write_all(&framed(key, version, &body)?).await?;
        let length = self.0.read_u32().await?;
        let mut frame = vec![0; length as usize];
        self.0.read_exact(&mut frame).await?;
        let mut frame = Bytes::from(frame);
        ResponseHeader::decode(&mut frame, key.response_header_version(version))?;
        Ok(ResponseKind::decode(key, &mut frame, version)?)
    }
}

/// Returns a produce as it goes out.
pub(super) fn produce_frame(partition: i32, records: Bytes) -> Result<Bytes, Failure> {
    framed(ApiKey::Produce, 7, &produce_request(partition, records).into())
}

fn produce_request(partition: i32, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition);
    let data = data.with_records(Some(records));
    let topic = TopicProduceData::default().with_name(topic()).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(1).with_topic_data(vec![topic])
}

fn framed(key: ApiKey, version: i16, body: &RequestKind) -> Result<Bytes, Failure> {
    let mut frame = BytesMut::new();
    frame.put_u32(0);
    RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .encode(&mut frame, key.request_header_version(version))?;
    body.encode(&mut frame, version)?;
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame.freeze())
}

fn topic() -> TopicName {
    TopicName(StrBytes::from_static_str("load"))
}
