//! What clients ask before they begin: which topics there are, where their groups are to be found,
//! where a log begins and ends, and who they are.

use crate::Broker;
use crate::log::Topic;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, FindCoordinatorRequest, FindCoordinatorResponse, InitProducerIdRequest,
    InitProducerIdResponse, ListOffsetsRequest, ListOffsetsResponse, MetadataRequest,
    MetadataResponse, ProducerId, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// This broker's number: it is alone.
const NODE: BrokerId = BrokerId(1);
/// What whoever begins a transaction hears: an error that no client takes for one that passes.
pub(crate) const NO_TRANSACTIONS: ResponseError = ResponseError::TransactionalIdAuthorizationFailed;
/// ListOffsets' names for the end of the log and for its beginning.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

impl Broker {
    /// Describes topics. One that does not exist is created, unless the client says not to; before
    /// version 4 it could not say so.
    pub(crate) fn metadata(&self, request: MetadataRequest, version: i16) -> MetadataResponse {
        let create = version < 4 || request.allow_auto_topic_creation;
        // All of them are asked for by no list; in the oldest version by an empty one.
        let asked = request
            .topics
            .filter(|topics| version > 0 || !topics.is_empty());
        let topics = match asked {
            None => self
                .topics
                .all()
                .iter()
                .map(|topic| describe(topic))
                .collect(),
            Some(asked) => {
                let names = asked
                    .into_iter()
                    .map(|topic| topic.name.unwrap_or_default());
                names.map(|name| self.topic(name, create)).collect()
            }
        };
        let broker = MetadataResponseBroker::default()
            .with_node_id(NODE)
            .with_host(self.host())
            .with_port(self.address.port().into());
        MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_controller_id(NODE)
            .with_topics(topics)
    }

    fn topic(&self, name: TopicName, create: bool) -> MetadataResponseTopic {
        let found = match self.topics.get(&name) {
            None if create => self.topics.create(&name),
            found => found.ok_or(ResponseError::UnknownTopicOrPartition),
        };
        match found {
            Ok(topic) => describe(&topic),
            Err(error) => {
                let answer = MetadataResponseTopic::default().with_name(Some(name));
                answer.with_error_code(error.code())
            }
        }
    }

    fn host(&self) -> StrBytes {
        StrBytes::from_string(self.address.ip().to_string())
    }

    /// All groups are coordinated here, and there are no transactions.
    pub(crate) fn find_coordinator(
        &self,
        request: &FindCoordinatorRequest,
    ) -> FindCoordinatorResponse {
        let answer = FindCoordinatorResponse::default();
        if request.key_type != 0 {
            return answer
                .with_error_code(NO_TRANSACTIONS.code())
                .with_node_id(BrokerId(-1));
        }
        let port = self.address.port().into();
        answer
            .with_node_id(NODE)
            .with_host(self.host())
            .with_port(port)
    }

    pub(crate) fn init_producer(&self, request: &InitProducerIdRequest) -> InitProducerIdResponse {
        let answer = InitProducerIdResponse::default();
        if request.transactional_id.is_some() {
            return answer
                .with_error_code(NO_TRANSACTIONS.code())
                .with_producer_id(ProducerId(-1));
        }
        answer.with_producer_id(ProducerId(self.producer_ids.next()))
    }

    pub(crate) fn list_offsets(&self, request: ListOffsetsRequest) -> ListOffsetsResponse {
        let answer = |topic: &TopicName, index, time| {
            let answer = ListOffsetsPartitionResponse::default().with_partition_index(index);
            let Some(partition) = self.topics.partition(topic, index) else {
                let code = ResponseError::UnknownTopicOrPartition.code();
                return answer.with_error_code(code).with_offset(-1);
            };
            let offsets = partition.offsets();
            let (offset, time) = match time {
                LATEST => (offsets.high_watermark, -1),
                EARLIEST => (offsets.start, -1),
                time => partition.offset_at(time).unwrap_or((-1, -1)),
            };
            answer.with_offset(offset).with_timestamp(time)
        };
        let topics = request.topics.into_iter().map(|topic| {
            let asked = topic.partitions.iter();
            let answers =
                asked.map(|asked| answer(&topic.name, asked.partition_index, asked.timestamp));
            let answers = answers.collect();
            ListOffsetsTopicResponse::default()
                .with_name(topic.name)
                .with_partitions(answers)
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }
}

fn describe(topic: &Topic) -> MetadataResponseTopic {
    let partition = |index| {
        MetadataResponsePartition::default()
            .with_partition_index(index as i32)
            .with_leader_id(NODE)
            .with_replica_nodes(vec![NODE])
            .with_isr_nodes(vec![NODE])
    };
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(
            topic.name.to_string(),
        ))))
        .with_partitions((0..topic.partitions.len()).map(partition).collect())
}

/// Ids: numbers that no two lives of the broker share.
///
/// A client that outlives the broker keeps the id that it was given. If a new life gave the same id
/// to another client, the batches of one would be taken for repetitions of the other's, and be
/// acknowledged without being appended.
#[derive(Debug)]
pub(crate) struct Ids(AtomicI64);

impl Ids {
    /// Starts from the time in milliseconds, and 22 random bits in case that a clock was set back.
    pub(crate) fn new() -> Self {
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let random = RandomState::new().hash_one(0) as i64 & 0x3f_ffff;
        Ids(AtomicI64::new(
            ((time.as_millis() as i64) << 22 | random) & i64::MAX,
        ))
    }

    pub(crate) fn next(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
