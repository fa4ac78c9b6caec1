//! Committed offsets: how far groups have come.

use super::state::State;
use super::{Coordinator, Groups};
use crate::log::Topics;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The offset, and what the client wrote beside it.
pub(super) type Offsets = BTreeMap<(Arc<str>, i32), (i64, StrBytes)>;

/// How many bytes a client may write beside an offset.
const MAX_METADATA: usize = 1024;

impl Coordinator {
    pub(crate) fn commit(
        &self,
        request: OffsetCommitRequest,
        topics: &Topics,
    ) -> OffsetCommitResponse {
        let mut groups = self.groups.lock();
        let mut group = self.committer(&mut groups, &request);
        let answers = request.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.into_iter().map(|partition| {
                let index = partition.partition_index;
                let log = topics.partition(&topic.name, index);
                let metadata = partition.committed_metadata.unwrap_or_default();
                let code = match (&mut group, log) {
                    (Err(error), _) => error.code(),
                    (_, None) => ResponseError::UnknownTopicOrPartition.code(),
                    _ if metadata.len() > MAX_METADATA => {
                        ResponseError::OffsetMetadataTooLarge.code()
                    }
                    (Ok(group), Some(log)) => {
                        let metadata = StrBytes::from_string(metadata.to_string());
                        let key = (Arc::clone(&log.name.topic), index);
                        group.offsets.insert(key, (partition.committed_offset, metadata));
                        0
                    }
                };
                OffsetCommitResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(code)
            });
            let partitions = partitions.collect();
            OffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions)
        });
        OffsetCommitResponse::default().with_topics(answers.collect())
    }

    /// Returns the group if the request comes from a member of this generation, also while the
    /// others join; or from a client that is no member, in a group that has none.
    fn committer<'a>(
        &self,
        groups: &'a mut Groups,
        request: &OffsetCommitRequest,
    ) -> Result<&'a mut State, ResponseError> {
        let group = self.open(groups, &request.group_id)?;
        let generation = request.generation_id_or_member_epoch;
        if generation >= 0 || !group.members.is_empty() {
            match group.check(&request.member_id, generation) {
                Ok(()) | Err(ResponseError::RebalanceInProgress) => {}
                Err(error) => return Err(error),
            }
            self.beat(group, &request.member_id);
        }
        Ok(group)
    }

    /// Returns what a group has committed, of the partitions that are asked for or of all. An
    /// offset is -1 if nothing was.
    pub(crate) fn committed(&self, request: OffsetFetchRequest) -> OffsetFetchResponse {
        let groups = self.groups.lock();
        let nothing = Offsets::new();
        let offsets = groups.get(&**request.group_id).map_or(&nothing, |group| &group.offsets);
        let asked: Vec<(TopicName, Vec<i32>)> = match request.topics {
            Some(topics) => {
                topics.into_iter().map(|topic| (topic.name, topic.partition_indexes)).collect()
            }
            None => {
                let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
                offsets.keys().map(|(topic, index)| (name(topic), vec![*index])).collect()
            }
        };
        let topics = asked.into_iter().map(|(topic, indexes)| {
            let key: Arc<str> = (&**topic).into();
            let partitions = indexes.into_iter().map(|index| {
                let known = offsets.get(&(Arc::clone(&key), index)).cloned();
                let (offset, metadata) = known.unwrap_or((-1, StrBytes::new()));
                OffsetFetchResponsePartition::default()
                    .with_partition_index(index)
                    .with_committed_offset(offset)
                    .with_metadata(Some(metadata))
            });
            let partitions = partitions.collect();
            OffsetFetchResponseTopic::default().with_name(topic).with_partitions(partitions)
        });
        OffsetFetchResponse::default().with_topics(topics.collect())
    }
}
