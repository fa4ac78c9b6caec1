//! What a client asks, and who knows the answer.

use crate::broker::Broker;
use crate::budget::Room;
use crate::log::Topic;
use crate::wire::{Request, SUPPORTED};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{
    ApiVersionsResponse, HeartbeatResponse, InitProducerIdRequest, InitProducerIdResponse,
    ListOffsetsRequest, ListOffsetsResponse, ProducerId, RequestKind, ResponseKind,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What who begins a transaction hears: an error that no client takes for one that passes.
pub(crate) const NO_TRANSACTIONS: ResponseError = ResponseError::TransactionalIdAuthorizationFailed;
/// ListOffsets' name for the end of the log.
const LATEST: i64 = -1;
/// And for its beginning.
const EARLIEST: i64 = -2;
/// For the record with the latest time.
const MAX_TIMESTAMP: i64 = -3;
/// And for parts of a log of which some lies elsewhere: here none does.
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// What is answered.
pub(crate) struct Answer {
    pub(crate) body: ResponseKind,
    /// What it takes of the budget, if that is taken already.
    pub(crate) room: Option<Room>,
    /// For how long nobody listens to this client.
    pub(crate) throttle: Duration,
}

impl Broker {
    /// Answers a request. Returns `None` if the client wants no answer, or the server is ending.
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
            RequestKind::FindCoordinator(body) => self.find_coordinator(body, version).into(),
            RequestKind::JoinGroup(body) => {
                self.groups.join(body, version, client_id, room).await?.into()
            }
            RequestKind::SyncGroup(body) => self.groups.sync(body).await?.into(),
            RequestKind::Heartbeat(body) => {
                let result = self.groups.heartbeat(&body);
                let code = result.map_or_else(|error| error.code(), |()| 0);
                HeartbeatResponse::default().with_error_code(code).into()
            }
            RequestKind::LeaveGroup(body) => self.groups.leave(&body, version).into(),
            RequestKind::OffsetCommit(body) => self.groups.commit(body, &self.topics).into(),
            RequestKind::OffsetFetch(body) => self.groups.committed(body, version).into(),
            RequestKind::ListGroups(body) => self.groups.list(&body).into(),
            RequestKind::DescribeGroups(body) => self.groups.describe(body, version).into(),
            RequestKind::DeleteGroups(body) => self.groups.delete(body).into(),
            RequestKind::CreateTopics(body) => self.create_topics(body, version).into(),
            RequestKind::DeleteTopics(body) => self.delete_topics(body, version).into(),
            RequestKind::DescribeCluster(body) => self.describe_cluster(&body).into(),
            RequestKind::DescribeConfigs(body) => self.describe_configs(body).into(),
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

    fn init_producer(&self, request: &InitProducerIdRequest) -> InitProducerIdResponse {
        let response = InitProducerIdResponse::default();
        if request.transactional_id.is_some() {
            let code = NO_TRANSACTIONS.code();
            return response.with_error_code(code).with_producer_id(ProducerId(-1));
        }
        let id = self.next_producer.fetch_add(1, Ordering::Relaxed);
        response.with_producer_id(ProducerId(id)).with_producer_epoch(0)
    }

    fn list_offsets(&self, request: ListOffsetsRequest, version: i16) -> ListOffsetsResponse {
        let answer = |found: &Option<Arc<Topic>>, index: i32, timestamp: i64| {
            let answer = ListOffsetsPartitionResponse::default().with_partition_index(index);
            let Some(partition) = found.as_ref().and_then(|found| found.partition(index)) else {
                let code = ResponseError::UnknownTopicOrPartition.code();
                return answer.with_error_code(code).with_offset(-1);
            };
            let (start, high_watermark, _) = partition.offsets();
            let (offset, timestamp) = match timestamp {
                LATEST => (high_watermark, -1),
                EARLIEST | EARLIEST_LOCAL => (start, -1),
                LATEST_TIERED => (-1, -1),
                MAX_TIMESTAMP => partition.latest_time().unwrap_or((-1, -1)),
                _ => partition.offset_at(timestamp).unwrap_or((-1, -1)),
            };
            let epoch = if version >= 4 { 0 } else { -1 };
            answer.with_offset(offset).with_timestamp(timestamp).with_leader_epoch(epoch)
        };
        let topics = request.topics.into_iter().map(|topic| {
            let found = self.topics.get(&topic.name);
            let partitions = topic.partitions.iter();
            let partitions = partitions
                .map(|partition| answer(&found, partition.partition_index, partition.timestamp))
                .collect();
            ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(partitions)
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }
}
