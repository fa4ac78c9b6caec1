//! What consumers ask of their group.

use super::Coordinator;
use super::state::Member;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
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

impl Coordinator {
    /// Joins a group: the answer comes with the next generation.
    pub(crate) async fn join(&self, request: JoinGroupRequest) -> JoinGroupResponse {
        let id = request.member_id.clone();
        let (answer, answered) = oneshot::channel();
        let joined = match self.try_join(&request, answer) {
            // Not answered if the broker ends.
            Ok(()) => answered.await.map_err(|_| ResponseError::CoordinatorNotAvailable),
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
        let size: usize = protocols.map(|it| 100 + it.name.len() + it.metadata.len()).sum();
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
            Ok(()) => answered.await.map_err(|_| ResponseError::RebalanceInProgress),
            Err(error) => Err(error),
        };
        synced.unwrap_or_else(|error| SyncGroupResponse::default().with_error_code(error.code()))
    }

    fn try_sync(
        &self,
        request: SyncGroupRequest,
        answer: oneshot::Sender<SyncGroupResponse>,
    ) -> Result<(), ResponseError> {
        if request.assignments.iter().any(|assigned| assigned.assignment.len() > MAX_KEPT) {
            return Err(ResponseError::InvalidRequest);
        }
        let mut groups = self.groups.lock();
        let group = groups.get_mut(&**request.group_id).ok_or(ResponseError::UnknownMemberId)?;
        group.check(&request.member_id, request.generation_id)?;
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
        let group = groups.get_mut(&**request.group_id).ok_or(ResponseError::UnknownMemberId)?;
        let session = (Arc::clone(&group.name), request.member_id.clone());
        self.sessions.cancel(&session).ok_or(ResponseError::UnknownMemberId)?;
        let next = group.remove(&request.member_id);
        drop(groups);
        self.follow(&session.0, next);
        Ok(())
    }
}

fn code(result: Result<(), ResponseError>) -> i16 {
    result.map_or_else(|error| error.code(), |()| 0)
}
