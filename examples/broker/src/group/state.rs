//! A group's state: who is in it, and where it stands between one generation and the next.

use super::member::Member;
use super::offsets::Offsets;
use crate::budget::{Budget, Room};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{
    JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Empty,
    /// Members join; a delayed join waits for all of them.
    PreparingRebalance,
    /// All have joined; the leader is to say who gets what.
    CompletingRebalance,
    Stable,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) generation: i32,
    pub(super) members: BTreeMap<StrBytes, Member>,
    /// New members that were given their ids, and have not joined with them yet.
    pub(super) expected: BTreeSet<StrBytes>,
    pub(super) offsets: Offsets,
    pub(super) protocol_type: StrBytes,
    pub(super) protocol: StrBytes,
    leader: StrBytes,
}

/// What is left to do when the group's lock is released.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    /// A rebalance has begun: watch a delayed join, for so long at most.
    Watch {
        timeout: Duration,
    },
    /// The first rebalance of a group: its join waits in any case, so that those who come soon
    /// after are in it, too.
    WatchFirst,
    /// The delayed join may be complete now.
    Trigger,
}

impl State {
    /// Returns how many members there are, with those who are expected.
    pub(super) fn size(&self) -> usize {
        self.members.len() + self.expected.len()
    }

    /// Lets a member join, or join again. It gets the answer when all have joined, or at once.
    pub(super) fn join(
        &mut self,
        id: StrBytes,
        request: &JoinGroupRequest,
        room: Room,
        answer: oneshot::Sender<JoinGroupResponse>,
    ) -> Next {
        let is_leader = id == self.leader;
        if self.phase == Phase::Empty {
            self.protocol_type = StrBytes::from_string(request.protocol_type.to_string());
        }
        let mut is_same = false;
        let member = match self.members.entry(id.clone()) {
            Entry::Vacant(new) => new.insert(Member::new(request, room)),
            Entry::Occupied(known) => {
                let member = known.into_mut();
                is_same = member.protocols == request.protocols && !member.assignment.is_empty();
                member.update(request, room);
                member
            }
        };
        if self.phase == Phase::Stable && is_same && !is_leader {
            // It has not heard, or has forgotten, what it had: nothing changes for the others.
            let _ = answer.send(self.joined(&id));
            return Next::Nothing;
        }
        // An answer that it waited for on another connection is dropped, and so is that.
        member.joining = Some(answer);
        match self.phase {
            Phase::PreparingRebalance => Next::Trigger,
            Phase::Empty => {
                self.phase = Phase::PreparingRebalance;
                Next::WatchFirst
            }
            Phase::CompletingRebalance | Phase::Stable => self.rebalance(),
        }
    }

    /// Makes all members join again.
    fn rebalance(&mut self) -> Next {
        self.phase = Phase::PreparingRebalance;
        for member in self.members.values_mut() {
            member.assignment.clear();
            member.assignment_room = None;
            if let Some(syncing) = member.syncing.take() {
                let code = ResponseError::RebalanceInProgress.code();
                let _ = syncing.send(SyncGroupResponse::default().with_error_code(code));
            }
        }
        let timeouts = self.members.values().map(|member| member.rebalance_timeout);
        Next::Watch { timeout: timeouts.max().unwrap_or_default() }
    }

    /// Returns whether no member is missing.
    pub(super) fn all_have_joined(&self) -> bool {
        self.members.values().all(|member| member.joining.is_some())
    }

    /// Begins a new generation of those who have joined. Returns the others, which are out.
    pub(super) fn begin_generation(&mut self) -> Vec<StrBytes> {
        let is_gone =
            |member: &Member| member.joining.as_ref().is_none_or(oneshot::Sender::is_closed);
        let gone = self.members.iter().filter(|(_, member)| is_gone(member));
        let gone: Vec<StrBytes> = gone.map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|id| drop(self.members.remove(id)));
        self.generation += 1;
        let Some(first) = self.members.keys().next().cloned() else {
            self.phase = Phase::Empty;
            self.leader = StrBytes::new();
            return gone;
        };
        if !self.members.contains_key(&self.leader) {
            self.leader = first;
        }
        self.protocol = self.choose_protocol();
        self.phase = Phase::CompletingRebalance;
        for id in self.members.keys().cloned().collect::<Vec<_>>() {
            let joined = self.joined(&id);
            let joining = self.members.get_mut(&id).and_then(|member| member.joining.take());
            if let Some(answer) = joining {
                let _ = answer.send(joined);
            }
        }
        gone
    }

    fn joined(&self, id: &StrBytes) -> JoinGroupResponse {
        let of_leader = self.members.iter().filter(|_| *id == self.leader);
        let members = of_leader.map(|(id, member)| {
            JoinGroupResponseMember::default()
                .with_member_id(id.clone())
                .with_metadata(member.metadata(&self.protocol))
        });
        JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(Some(self.protocol_type.clone()))
            .with_protocol_name(Some(self.protocol.clone()))
            .with_leader(self.leader.clone())
            .with_member_id(id.clone())
            .with_members(members.collect())
    }

    /// Tells a member its assignment; the leader provides everybody's.
    pub(super) fn sync(
        &mut self,
        request: SyncGroupRequest,
        budget: &Budget,
        answer: oneshot::Sender<SyncGroupResponse>,
    ) {
        if let Err(error) = self.check(&request.member_id, request.generation_id) {
            let _ = answer.send(SyncGroupResponse::default().with_error_code(error.code()));
            return;
        }
        let synced = SyncGroupResponse::default()
            .with_protocol_type(Some(self.protocol_type.clone()))
            .with_protocol_name(Some(self.protocol.clone()));
        let differs = |said: &Option<StrBytes>, known| said.as_ref().is_some_and(|it| it != known);
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol)
        {
            let code = ResponseError::InconsistentGroupProtocol.code();
            let _ = answer.send(SyncGroupResponse::default().with_error_code(code));
            return;
        }
        if self.phase == Phase::CompletingRebalance && request.member_id == self.leader {
            for assignment in request.assignments {
                let Some(member) = self.members.get_mut(&assignment.member_id) else { continue };
                let Some(room) = budget.try_take(assignment.assignment.len()) else {
                    let code = ResponseError::CoordinatorNotAvailable.code();
                    let _ = answer.send(SyncGroupResponse::default().with_error_code(code));
                    return;
                };
                member.assignment = Bytes::copy_from_slice(&assignment.assignment);
                member.assignment_room = Some(room);
            }
            self.phase = Phase::Stable;
            for member in self.members.values_mut() {
                if let Some(answer) = member.syncing.take() {
                    let assignment = member.assignment.clone();
                    let _ = answer.send(synced.clone().with_assignment(assignment));
                }
            }
        }
        let Some(member) = self.members.get_mut(&request.member_id) else { return };
        if self.phase == Phase::Stable {
            let _ = answer.send(synced.with_assignment(member.assignment.clone()));
        } else {
            member.syncing = Some(answer);
        }
    }

    /// Tells all members that wait to ask another broker: this one is ending.
    pub(super) fn send_away(&mut self) {
        let code = ResponseError::NotCoordinator.code();
        for (id, member) in &mut self.members {
            if let Some(joining) = member.joining.take() {
                let response = JoinGroupResponse::default().with_member_id(id.clone());
                let response = response.with_protocol_name(Some(StrBytes::new()));
                let _ = joining.send(response.with_generation_id(-1).with_error_code(code));
            }
            if let Some(syncing) = member.syncing.take() {
                let _ = syncing.send(SyncGroupResponse::default().with_error_code(code));
            }
        }
    }

    /// Checks whether a member may speak for this generation.
    pub(super) fn check(&self, id: &StrBytes, generation: i32) -> Result<(), ResponseError> {
        if !self.members.contains_key(id) {
            Err(ResponseError::UnknownMemberId)
        } else if generation != self.generation {
            Err(ResponseError::IllegalGeneration)
        } else if self.phase == Phase::PreparingRebalance {
            Err(ResponseError::RebalanceInProgress)
        } else {
            Ok(())
        }
    }

    /// Removes a member that has left, or whose session has expired.
    pub(super) fn remove(&mut self, id: &StrBytes) -> Next {
        if self.members.remove(id).is_none() {
            return Next::Nothing;
        }
        match self.phase {
            Phase::PreparingRebalance => Next::Trigger,
            Phase::Empty => Next::Nothing,
            Phase::CompletingRebalance | Phase::Stable => self.rebalance(),
        }
    }
}
