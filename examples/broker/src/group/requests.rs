//! What consumers ask of their group.

use super::coordinator::{Coordinator, Group};
use crate::budget::Room;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::TimerEntry;
use tokio::sync::oneshot;

/// In milliseconds.
const SESSION_TIMEOUTS: RangeInclusive<i32> = 100..=1_800_000;
/// The first version of JoinGroup whose clients take an id and come back with it.
const ASKS_FOR_IDS: i16 = 4;

impl Coordinator {
    /// Joins a group. Returns `None` if the broker shuts down before the answer.
    pub async fn join(
        &self,
        request: JoinGroupRequest,
        version: i16,
        client_id: &str,
        room: Option<Room>,
    ) -> Option<JoinGroupResponse> {
        let is_static = request.group_instance_id.is_some();
        if version >= ASKS_FOR_IDS && request.member_id.is_empty() && !is_static {
            return Some(match self.expect_member(&request, client_id) {
                Ok(id) => refused(id, ResponseError::MemberIdRequired),
                Err(error) => refused(request.member_id, error),
            });
        }
        let (answer, answered) = oneshot::channel();
        if let Err(error) = self.try_join(&request, client_id, answer) {
            return Some(refused(request.member_id, error));
        }
        drop((request, room)); // Its frame must not wait, too.
        answered.await.ok()
    }

    /// Gives a new member an id, with which it is to join before its session is over. So the
    /// group never waits for a member that has not heard its id.
    fn expect_member(
        &self,
        request: &JoinGroupRequest,
        client_id: &str,
    ) -> Result<StrBytes, ResponseError> {
        if !SESSION_TIMEOUTS.contains(&request.session_timeout_ms) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        let group = self.get_or_create(&request.group_id)?;
        let mut state = group.state.lock();
        if !state.accepts(&request.member_id, request) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        if state.size() >= self.terms.max_members {
            return Err(ResponseError::GroupMaxSizeReached);
        }
        let id = self.new_member_id(client_id);
        self.begin_session(&group, &id, request)?;
        state.expected.insert(id.clone());
        Ok(id)
    }

    fn begin_session(
        &self,
        group: &Group,
        id: &StrBytes,
        request: &JoinGroupRequest,
    ) -> Result<(), ResponseError> {
        let timeout = Duration::from_millis(request.session_timeout_ms.unsigned_abs().into());
        self.sessions
            .schedule((Arc::clone(&group.name), id.clone()), TimerEntry::after(timeout, ()))
            .map_err(|_| ResponseError::CoordinatorNotAvailable)?;
        Ok(())
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
            let known = state.members.get_key_value(&request.member_id).map(|(id, _)| id);
            let known = known.or_else(|| state.expected.get(&request.member_id));
            known.ok_or(ResponseError::UnknownMemberId)?.clone()
        };
        if !state.accepts(&id, request) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        if is_new && state.size() >= self.terms.max_members {
            return Err(ResponseError::GroupMaxSizeReached);
        }
        let room = self.budget.try_take(size_of_protocols(request));
        let room = room.ok_or(ResponseError::CoordinatorNotAvailable)?;
        self.begin_session(&group, &id, request)?;
        state.expected.remove(&id);
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

    /// Lets members leave: one in old versions, several at once in later ones.
    pub fn leave(&self, request: &LeaveGroupRequest, version: i16) -> LeaveGroupResponse {
        let code = |id| self.leave_one(&request.group_id, id).map_or_else(|e| e.code(), |()| 0);
        let response = LeaveGroupResponse::default();
        if version < 3 {
            return response.with_error_code(code(&request.member_id));
        }
        let members = request.members.iter().map(|member| {
            MemberResponse::default()
                .with_member_id(member.member_id.clone())
                .with_group_instance_id(member.group_instance_id.clone())
                .with_error_code(code(&member.member_id))
        });
        response.with_members(members.collect())
    }

    fn leave_one(&self, group: &str, id: &StrBytes) -> Result<(), ResponseError> {
        let group = self.get(group).ok_or(ResponseError::UnknownMemberId)?;
        let mut state = group.state.lock();
        if state.expected.remove(id) {
            self.sessions.cancel(&(Arc::clone(&group.name), id.clone()));
            return Ok(());
        }
        let (id, _) = state.members.get_key_value(id).ok_or(ResponseError::UnknownMemberId)?;
        let id = id.clone();
        self.sessions.cancel(&(Arc::clone(&group.name), id.clone()));
        let next = state.remove(&id);
        drop(state);
        tracing::info!(group = &*group.name, member = &*id, "member has left");
        self.follow(&group, next);
        Ok(())
    }
}

fn refused(member_id: StrBytes, error: ResponseError) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_protocol_name(Some(StrBytes::new()))
        .with_generation_id(-1)
        .with_member_id(member_id)
        .with_error_code(error.code())
}

/// Returns about how many bytes a member's protocols take.
fn size_of_protocols(request: &JoinGroupRequest) -> usize {
    let sizes = request.protocols.iter();
    sizes.map(|protocol| 128 + protocol.name.len() + protocol.metadata.len()).sum()
}
