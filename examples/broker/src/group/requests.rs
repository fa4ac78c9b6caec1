//! What consumers ask of their group: to join, to stay, to leave, and how far it has come.

use super::state::{Member, Offsets, State};
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
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, SyncGroupRequest, SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tokio::sync::oneshot;

/// In milliseconds. Whoever has gone is kept for no longer.
const SESSION_TIMEOUTS: RangeInclusive<i32> = 100..=300_000;
/// Members of all groups. With what each of them may keep this bounds the memory of the groups,
/// apart from that of requests.
const MAX_MEMBERS: usize = 1000;
/// What a member may bring along, and what may be assigned to it, in bytes.
const MAX_KEPT: usize = 64 << 10;
/// How many bytes a client may write beside an offset.
const MAX_METADATA: usize = 1024;

impl Coordinator {
    /// Joins a group: the answer comes with the next generation.
    pub(crate) async fn join(&self, request: JoinGroupRequest) -> JoinGroupResponse {
        let id = request.member_id.clone();
        let (answer, answered) = oneshot::channel();
        let joined = match self.try_join(&request, answer) {
            // Not answered if the broker ends.
            Ok(()) => answered
                .await
                .map_err(|_| ResponseError::CoordinatorNotAvailable),
            Err(error) => Err(error),
        };
        joined.unwrap_or_else(|error| {
            JoinGroupResponse::default()
                .with_protocol_name(Some(StrBytes::new()))
                .with_generation_id(-1)
                .with_member_id(id)
                .with_error_code(error.code())
        })
    }

    fn try_join(
        &self,
        request: &JoinGroupRequest,
        answer: oneshot::Sender<JoinGroupResponse>,
    ) -> Result<(), ResponseError> {
        if !SESSION_TIMEOUTS.contains(&request.session_timeout_ms) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        let protocols = request.protocols.iter();
        let size: usize = protocols
            .map(|it| 100 + it.name.len() + it.metadata.len())
            .sum();
        if size > MAX_KEPT || request.protocol_type.len() > MAX_KEPT {
            return Err(ResponseError::InvalidRequest);
        }
        let mut groups = self.groups.lock();
        let group = self.open(&mut groups, &request.group_id)?;
        let id = if request.member_id.is_empty() {
            if self.sessions.len() >= MAX_MEMBERS {
                return Err(ResponseError::GroupMaxSizeReached);
            }
            StrBytes::from_string(format!("member-{:x}", self.member_ids.next()))
        } else {
            let known = group.members.get_key_value(&request.member_id);
            known.ok_or(ResponseError::UnknownMemberId)?.0.clone()
        };
        if !group.accepts(&id, request) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        let member = Member::new(request, answer);
        if !self.begin_session(group, &id, member.session_timeout) {
            return Err(ResponseError::CoordinatorNotAvailable); // The timer was shut down.
        }
        self.keep_syncing(group);
        let next = group.join(id, &request.protocol_type, member);
        let name = Arc::clone(&group.name);
        drop(groups);
        self.follow(&name, next);
        Ok(())
    }

    /// Asks for an assignment: the answer comes when the leader has asked, too.
    pub(crate) async fn sync(&self, request: SyncGroupRequest) -> SyncGroupResponse {
        let (answer, answered) = oneshot::channel();
        let synced = match self.try_sync(request, answer) {
            // Not answered if a rebalance begins before.
            Ok(()) => answered
                .await
                .map_err(|_| ResponseError::RebalanceInProgress),
            Err(error) => Err(error),
        };
        synced.unwrap_or_else(|error| SyncGroupResponse::default().with_error_code(error.code()))
    }

    fn try_sync(
        &self,
        request: SyncGroupRequest,
        answer: oneshot::Sender<SyncGroupResponse>,
    ) -> Result<(), ResponseError> {
        if request
            .assignments
            .iter()
            .any(|assigned| assigned.assignment.len() > MAX_KEPT)
        {
            return Err(ResponseError::InvalidRequest);
        }
        let mut groups = self.groups.lock();
        let group = groups
            .get_mut(&**request.group_id)
            .ok_or(ResponseError::UnknownMemberId)?;
        group.check(&request.member_id, request.generation_id)?;
        self.beat(group, &request.member_id);
        self.keep_syncing(group);
        group.sync(request, answer);
        Ok(())
    }

    /// Accepts a sign of life, also while the others join.
    pub(crate) fn heartbeat(&self, request: &HeartbeatRequest) -> HeartbeatResponse {
        let groups = self.groups.lock();
        let result = match groups.get(&**request.group_id) {
            Some(group) => {
                self.beat(group, &request.member_id);
                group.check(&request.member_id, request.generation_id)
            }
            None => Err(ResponseError::UnknownMemberId),
        };
        HeartbeatResponse::default().with_error_code(code(result))
    }

    pub(crate) fn leave(&self, request: &LeaveGroupRequest) -> LeaveGroupResponse {
        LeaveGroupResponse::default().with_error_code(code(self.try_leave(request)))
    }

    fn try_leave(&self, request: &LeaveGroupRequest) -> Result<(), ResponseError> {
        let mut groups = self.groups.lock();
        let group = groups
            .get_mut(&**request.group_id)
            .ok_or(ResponseError::UnknownMemberId)?;
        let session = (Arc::clone(&group.name), request.member_id.clone());
        self.sessions
            .cancel(&session)
            .ok_or(ResponseError::UnknownMemberId)?;
        self.keep_syncing(group);
        let next = group.remove(&request.member_id);
        drop(groups);
        self.follow(&session.0, next);
        Ok(())
    }

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
                        group
                            .offsets
                            .insert(key, (partition.committed_offset, metadata));
                        0
                    }
                };
                OffsetCommitResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(code)
            });
            let partitions = partitions.collect();
            OffsetCommitResponseTopic::default()
                .with_name(topic.name)
                .with_partitions(partitions)
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
        let offsets = groups
            .get(&**request.group_id)
            .map_or(&nothing, |group| &group.offsets);
        let asked: Vec<(TopicName, Vec<i32>)> = match request.topics {
            Some(topics) => topics
                .into_iter()
                .map(|topic| (topic.name, topic.partition_indexes))
                .collect(),
            None => {
                let name = |topic: &str| TopicName(StrBytes::from_string(topic.to_owned()));
                offsets
                    .keys()
                    .map(|(topic, index)| (name(topic), vec![*index]))
                    .collect()
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
            OffsetFetchResponseTopic::default()
                .with_name(topic)
                .with_partitions(partitions)
        });
        OffsetFetchResponse::default().with_topics(topics.collect())
    }
}

fn code(result: Result<(), ResponseError>) -> i16 {
    result.map_or_else(|error| error.code(), |()| 0)
}
