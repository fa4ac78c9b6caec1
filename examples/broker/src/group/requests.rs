//! What consumers ask of their group.

use super::coordinator::Coordinator;
use super::offsets::Committed;
use crate::budget::Room;
use crate::log::Topics;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use kafka_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest,
    OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, SyncGroupRequest,
    SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tickwheel::TimerEntry;
use tokio::sync::oneshot;

/// In milliseconds.
const SESSION_TIMEOUTS: std::ops::RangeInclusive<i32> = 100..=1_800_000;
/// As Kafka's `offset.metadata.max.bytes`.
const MAX_METADATA: usize = 4096;

impl Coordinator {
    /// Joins a group. Returns `None` if the broker shuts down before the answer.
    pub async fn join(
        &self,
        request: JoinGroupRequest,
        client_id: &str,
        room: Option<Room>,
    ) -> Option<JoinGroupResponse> {
        let (answer, answered) = oneshot::channel();
        if let Err(error) = self.try_join(&request, client_id, answer) {
            let response = JoinGroupResponse::default().with_protocol_name(Some(StrBytes::new()));
            let response = response.with_generation_id(-1).with_member_id(request.member_id);
            return Some(response.with_error_code(error.code()));
        }
        drop((request, room)); // Its frame must not wait, too.
        answered.await.ok()
    }

    fn try_join(
        &self,
        request: &JoinGroupRequest,
        client_id: &str,
        answer: oneshot::Sender<JoinGroupResponse>,
    ) -> Result<(), ResponseError> {
        if !SESSION_TIMEOUTS.contains(&request.session_timeout_ms) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        let group = self.get_or_create(&request.group_id)?;
        let mut state = group.state.lock();
        let is_new = request.member_id.is_empty();
        let id = if is_new {
            self.new_member_id(client_id)
        } else {
            let known = state.members.get_key_value(&request.member_id);
            known.ok_or(ResponseError::UnknownMemberId)?.0.clone()
        };
        if !state.accepts(&id, request) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        if is_new && state.members.len() >= self.terms.max_members {
            return Err(ResponseError::GroupMaxSizeReached);
        }
        let room = self.budget.try_take(size_of_protocols(request));
        let room = room.ok_or(ResponseError::CoordinatorNotAvailable)?;
        let timeout = std::time::Duration::from_millis(request.session_timeout_ms as u64);
        self.sessions
            .schedule((Arc::clone(&group.name), id.clone()), TimerEntry::after(timeout, ()))
            .map_err(|_| ResponseError::CoordinatorNotAvailable)?;
        let next = state.join(id, request, room, answer);
        drop(state);
        self.follow(&group, next);
        Ok(())
    }

    pub async fn sync(&self, request: SyncGroupRequest) -> Option<SyncGroupResponse> {
        let Some(group) = self.get(&request.group_id) else {
            let code = ResponseError::UnknownMemberId.code();
            return Some(SyncGroupResponse::default().with_error_code(code));
        };
        let (answer, answered) = oneshot::channel();
        group.state.lock().sync(request, &self.budget, answer);
        answered.await.ok()
    }

    /// Accepts a sign of life, also while the others join.
    pub fn heartbeat(&self, request: &HeartbeatRequest) -> Result<(), ResponseError> {
        let group = self.get(&request.group_id).ok_or(ResponseError::UnknownMemberId)?;
        let state = group.state.lock();
        if let Some(member) = state.members.get(&request.member_id) {
            let key = (Arc::clone(&group.name), request.member_id.clone());
            self.sessions.touch(&key, member.session_timeout);
        }
        state.check(&request.member_id, request.generation_id)
    }

    pub fn leave(&self, request: &LeaveGroupRequest) -> Result<(), ResponseError> {
        let group = self.get(&request.group_id).ok_or(ResponseError::UnknownMemberId)?;
        let mut state = group.state.lock();
        if !state.members.contains_key(&request.member_id) {
            return Err(ResponseError::UnknownMemberId);
        }
        self.sessions.cancel(&(Arc::clone(&group.name), request.member_id.clone()));
        let next = state.remove(&request.member_id);
        drop(state);
        tracing::info!(group = &*group.name, member = &*request.member_id, "member has left");
        self.follow(&group, next);
        Ok(())
    }

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

    /// Returns whether the sender may commit: a member of this generation, also while the others
    /// join; or anybody else, in a group without members.
    fn may_commit(
        &self,
        request: &OffsetCommitRequest,
    ) -> Result<Arc<super::coordinator::Group>, ResponseError> {
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

    pub fn committed(&self, request: OffsetFetchRequest) -> OffsetFetchResponse {
        let group = self.get(&request.group_id);
        let state = group.as_ref().map(|group| group.state.lock());
        let asked: Vec<(TopicName, i32)> = match request.topics {
            Some(topics) => topics
                .into_iter()
                .flat_map(|topic| {
                    let name = topic.name;
                    topic.partition_indexes.into_iter().map(move |index| (name.clone(), index))
                })
                .collect(),
            None => {
                let all = state.iter().flat_map(|state| state.offsets.all());
                let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
                all.map(|(topic, index)| (name(topic), index)).collect()
            }
        };
        let mut topics: BTreeMap<TopicName, Vec<OffsetFetchResponsePartition>> = BTreeMap::new();
        for (topic, index) in asked {
            let found = state.as_ref().and_then(|state| state.offsets.get(&topic, index));
            let answer = OffsetFetchResponsePartition::default().with_partition_index(index);
            let metadata = found.and_then(|found| found.metadata.clone()).unwrap_or_default();
            topics.entry(topic).or_default().push(
                answer
                    .with_committed_offset(found.map_or(-1, |found| found.offset))
                    .with_metadata(Some(metadata)),
            );
        }
        let topic = |(name, partitions)| {
            OffsetFetchResponseTopic::default().with_name(name).with_partitions(partitions)
        };
        OffsetFetchResponse::default().with_topics(topics.into_iter().map(topic).collect())
    }
}

/// What a member's protocols take, about, in bytes.
fn size_of_protocols(request: &JoinGroupRequest) -> usize {
    let sizes = request.protocols.iter();
    sizes.map(|protocol| 128 + protocol.name.len() + protocol.metadata.len()).sum()
}
