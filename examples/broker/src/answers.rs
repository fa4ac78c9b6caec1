//! What a client asks, and who knows the answer.

use crate::broker::Broker;
use crate::budget::Room;
use crate::wire::{Request, SUPPORTED};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiVersionsResponse, BrokerId, FindCoordinatorRequest, FindCoordinatorResponse,
    HeartbeatResponse, InitProducerIdRequest, InitProducerIdResponse, LeaveGroupResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse, ProducerId,
    RequestKind, ResponseKind, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// This broker's number: it is alone.
const NODE: BrokerId = BrokerId(1);
/// What who begins a transaction hears: an error that no client takes for one that passes.
pub(crate) const NO_TRANSACTIONS: ResponseError = ResponseError::TransactionalIdAuthorizationFailed;
/// ListOffsets' name for the end of the log.
const LATEST: i64 = -1;
/// And for its beginning.
const EARLIEST: i64 = -2;

/// What is answered.
pub(crate) struct Answer {
    pub(crate) body: ResponseKind,
    /// What it takes of the budget, if that is taken already.
    pub(crate) room: Option<Room>,
    /// For how long nobody listens to this client.
    pub(crate) throttle: Duration,
}

impl Broker {
    /// `None` if there is no answer: nobody wants one, or there is a shutdown.
    pub(crate) async fn answer(self: &Arc<Self>, request: Request) -> Option<Answer> {
        let body = match request.body {
            RequestKind::Fetch(body) => return self.fetch(body).await,
            body => self.answer_other(body, request.version, &request.client_id, request.room),
        };
        Some(Answer { body: body.await?, room: None, throttle: Duration::ZERO })
    }

    async fn answer_other(
        self: &Arc<Self>,
        body: RequestKind,
        version: i16,
        client_id: &str,
        room: Option<Room>,
    ) -> Option<ResponseKind> {
        Some(match body {
            RequestKind::ApiVersions(_) => self.api_versions().into(),
            RequestKind::Metadata(body) => self.metadata(&body, version).into(),
            RequestKind::Produce(body) => self.produce(body, room).await?.into(),
            RequestKind::ListOffsets(body) => self.list_offsets(body, version).into(),
            RequestKind::InitProducerId(body) => self.init_producer(&body).into(),
            RequestKind::FindCoordinator(body) => self.find_coordinator(&body).into(),
            RequestKind::JoinGroup(body) => self.groups.join(body, client_id, room).await?.into(),
            RequestKind::SyncGroup(body) => self.groups.sync(body).await?.into(),
            RequestKind::Heartbeat(body) => {
                let code = code(self.groups.heartbeat(&body));
                HeartbeatResponse::default().with_error_code(code).into()
            }
            RequestKind::LeaveGroup(body) => {
                let code = code(self.groups.leave(&body));
                LeaveGroupResponse::default().with_error_code(code).into()
            }
            RequestKind::OffsetCommit(body) => self.groups.commit(body, &self.topics).into(),
            RequestKind::OffsetFetch(body) => self.groups.committed(body).into(),
            _ => return None, // `Request::decode` lets nothing else through.
        })
    }

    pub(crate) fn api_versions(&self) -> ApiVersionsResponse {
        let version = |api: &crate::wire::Api| {
            ApiVersion::default()
                .with_api_key(api.key as i16)
                .with_min_version(api.min)
                .with_max_version(api.max)
        };
        ApiVersionsResponse::default().with_api_keys(SUPPORTED.iter().map(version).collect())
    }

    fn host(&self) -> StrBytes {
        StrBytes::from_string(self.address.ip().to_string())
    }

    fn init_producer(&self, request: &InitProducerIdRequest) -> InitProducerIdResponse {
        let response = InitProducerIdResponse::default();
        if request.transactional_id.is_some() {
            let code = NO_TRANSACTIONS.code();
            return response.with_error_code(code).with_producer_id(ProducerId(-1));
        }
        let id = self.next_producer.fetch_add(1, Ordering::Relaxed);
        response.with_producer_id(ProducerId(id)).with_producer_epoch(0)
    }

    fn find_coordinator(&self, request: &FindCoordinatorRequest) -> FindCoordinatorResponse {
        let response = FindCoordinatorResponse::default();
        let error = match request.key_type {
            0 => {
                let port = i32::from(self.address.port());
                return response.with_node_id(NODE).with_host(self.host()).with_port(port);
            }
            1 => NO_TRANSACTIONS,
            _ => ResponseError::InvalidRequest,
        };
        let response = response.with_error_code(error.code()).with_node_id(BrokerId(-1));
        response.with_port(-1)
    }

    fn metadata(&self, request: &MetadataRequest, version: i16) -> MetadataResponse {
        let asked = request.topics.as_ref().filter(|topics| version > 0 || !topics.is_empty());
        let create = version < 4 || request.allow_auto_topic_creation;
        let topics = match asked {
            None => {
                let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
                let all = self.topics.all().into_iter();
                all.map(|(topic, partitions)| described(name(&topic), Ok(partitions.len())))
                    .collect()
            }
            Some(topics) => {
                let names = topics.iter().filter_map(|topic| topic.name.clone());
                names.map(|name| self.describe(name, create)).collect()
            }
        };
        let broker = MetadataResponseBroker::default()
            .with_node_id(NODE)
            .with_host(self.host())
            .with_port(i32::from(self.address.port()));
        MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_cluster_id(Some(StrBytes::from_static_str("tickwheel")))
            .with_controller_id(NODE)
            .with_topics(topics)
    }

    fn describe(&self, name: TopicName, create: bool) -> MetadataResponseTopic {
        let found = if create {
            self.topics.get_or_create(&name)
        } else {
            self.topics.get(&name).ok_or(ResponseError::UnknownTopicOrPartition)
        };
        described(name, found.map(|partitions| partitions.len()))
    }

    fn list_offsets(&self, request: ListOffsetsRequest, version: i16) -> ListOffsetsResponse {
        let answer = |topic: &str, index: i32, timestamp: i64| {
            let answer = ListOffsetsPartitionResponse::default().with_partition_index(index);
            let Some(partition) = self.topics.partition(topic, index) else {
                let code = ResponseError::UnknownTopicOrPartition.code();
                return answer.with_error_code(code).with_offset(-1);
            };
            let (start, high_watermark, _) = partition.offsets();
            let (offset, timestamp) = match timestamp {
                LATEST => (high_watermark, -1),
                EARLIEST => (start, -1),
                _ => partition.offset_at(timestamp).unwrap_or((-1, -1)),
            };
            let epoch = if version >= 4 { 0 } else { -1 };
            answer.with_offset(offset).with_timestamp(timestamp).with_leader_epoch(epoch)
        };
        let topics = request.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter();
            let partitions = partitions
                .map(|partition| {
                    answer(&topic.name, partition.partition_index, partition.timestamp)
                })
                .collect();
            ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(partitions)
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }
}

fn described(name: TopicName, partitions: Result<usize, ResponseError>) -> MetadataResponseTopic {
    let topic = MetadataResponseTopic::default().with_name(Some(name));
    let count = match partitions {
        Ok(count) => count,
        Err(error) => return topic.with_error_code(error.code()),
    };
    let partition = |index| {
        MetadataResponsePartition::default()
            .with_partition_index(index as i32)
            .with_leader_id(NODE)
            .with_leader_epoch(0)
            .with_replica_nodes(vec![NODE])
            .with_isr_nodes(vec![NODE])
    };
    topic.with_partitions((0..count).map(partition).collect())
}

fn code(result: Result<(), ResponseError>) -> i16 {
    result.map_or_else(|error| error.code(), |()| 0)
}
