//! How far groups have come: what they commit, and what they ask for.

use super::coordinator::{Coordinator, Group};
use super::offsets::Committed;
use crate::log::Topics;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// As Kafka's `offset.metadata.max.bytes`.
const MAX_METADATA: usize = 4096;

impl Coordinator {
    pub fn commit(&self, request: OffsetCommitRequest, topics: &Topics) -> OffsetCommitResponse {
        let may = self.may_commit(&request);
        let answers = request.topics.into_iter().map(|topic| {
            let known = topics.get(&topic.name);
            let partitions = topic.partitions.into_iter().map(|partition| {
                let index = partition.partition_index;
                let log = known.as_ref().and_then(|known| known.get(usize::try_from(index).ok()?));
                let metadata = partition.committed_metadata;
                let metadata = metadata.map(|text| StrBytes::from_string(text.to_string()));
                let too_long = metadata.as_ref().is_some_and(|text| text.len() > MAX_METADATA);
                let answer = OffsetCommitResponsePartition::default().with_partition_index(index);
                let code = match (&may, log) {
                    (Err(error), _) => error.code(),
                    (_, None) => ResponseError::UnknownTopicOrPartition.code(),
                    _ if too_long => ResponseError::OffsetMetadataTooLarge.code(),
                    (Ok(group), Some(log)) => {
                        let length = metadata.as_ref().map_or(0, |text| text.len());
                        let Some(room) = self.budget.try_take(length) else {
                            let code = ResponseError::CoordinatorNotAvailable.code();
                            return answer.with_error_code(code);
                        };
                        let offset = partition.committed_offset;
                        let committed = Committed { offset, metadata, _room: room };
                        group.state.lock().offsets.commit(&log.name.topic, index, committed);
                        0
                    }
                };
                answer.with_error_code(code)
            });
            let partitions = partitions.collect();
            let answer = OffsetCommitResponseTopic::default().with_name(topic.name);
            answer.with_partitions(partitions)
        });
        OffsetCommitResponse::default().with_topics(answers.collect())
    }

    /// Returns the group if the request comes from a member of this generation, also while the
    /// others join; or from a client that is no member, in a group that has none.
    fn may_commit(&self, request: &OffsetCommitRequest) -> Result<Arc<Group>, ResponseError> {
        let group = self.get_or_create(&request.group_id)?;
        let state = group.state.lock();
        let generation = request.generation_id_or_member_epoch;
        if generation >= 0 || !state.members.is_empty() {
            match state.check(&request.member_id, generation) {
                Ok(()) | Err(ResponseError::RebalanceInProgress) => {
                    let key = (Arc::clone(&group.name), request.member_id.clone());
                    if let Some(member) = state.members.get(&request.member_id) {
                        self.sessions.touch(&key, member.session_timeout);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        drop(state);
        Ok(group)
    }

    /// Returns what groups have committed: of one group in old versions, of several in later ones.
    pub fn committed(&self, request: OffsetFetchRequest, version: i16) -> OffsetFetchResponse {
        let response = OffsetFetchResponse::default();
        if version < 8 {
            let asked = request.topics.map(|topics| {
                topics.into_iter().map(|topic| (topic.name, topic.partition_indexes)).collect()
            });
            let topic = |(name, found): (TopicName, Vec<Found>)| {
                let partitions = found.into_iter().map(|found| {
                    OffsetFetchResponsePartition::default()
                        .with_partition_index(found.index)
                        .with_committed_offset(found.offset)
                        .with_metadata(Some(found.metadata))
                });
                let topic = OffsetFetchResponseTopic::default().with_name(name);
                topic.with_partitions(partitions.collect())
            };
            let found = self.find(&request.group_id, asked).into_iter();
            return response.with_topics(found.map(topic).collect());
        }
        let groups = request.groups.into_iter().map(|group| {
            let asked = group.topics.map(|topics| {
                topics.into_iter().map(|topic| (topic.name, topic.partition_indexes)).collect()
            });
            let topic = |(name, found): (TopicName, Vec<Found>)| {
                let partitions = found.into_iter().map(|found| {
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(found.index)
                        .with_committed_offset(found.offset)
                        .with_metadata(Some(found.metadata))
                });
                let topic = OffsetFetchResponseTopics::default().with_name(name);
                topic.with_partitions(partitions.collect())
            };
            let topics = self.find(&group.group_id, asked).into_iter().map(topic).collect();
            let answer = OffsetFetchResponseGroup::default().with_group_id(group.group_id);
            answer.with_topics(topics)
        });
        response.with_groups(groups.collect())
    }

    /// Finds what a group has committed, of the partitions that are asked for or of all.
    fn find(
        &self,
        group: &str,
        asked: Option<Vec<(TopicName, Vec<i32>)>>,
    ) -> BTreeMap<TopicName, Vec<Found>> {
        let group = self.get(group);
        let state = group.as_ref().map(|group| group.state.lock());
        let asked = asked.unwrap_or_else(|| {
            let all = state.iter().flat_map(|state| state.offsets.all());
            let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
            all.map(|(topic, index)| (name(topic), vec![index])).collect()
        });
        let mut topics: BTreeMap<TopicName, Vec<Found>> = BTreeMap::new();
        for (topic, indexes) in asked {
            let found = indexes.into_iter().map(|index| {
                let known = state.as_ref().and_then(|state| state.offsets.get(&topic, index));
                let metadata = known.and_then(|known| known.metadata.clone()).unwrap_or_default();
                Found { index, offset: known.map_or(-1, |known| known.offset), metadata }
            });
            let found: Vec<_> = found.collect();
            topics.entry(topic).or_default().extend(found);
        }
        topics
    }
}

/// What was committed for a partition; the offset is -1 if nothing was.
struct Found {
    index: i32,
    offset: i64,
    metadata: StrBytes,
}
