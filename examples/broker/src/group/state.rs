//! A group's state: who is in it, and where it stands between one generation and the next.

use crate::fetch::millis;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{
    JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How far a group has come: the offset, and what the client wrote beside it.
pub(super) type Offsets = BTreeMap<(Arc<str>, i32), (i64, StrBytes)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
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
    pub(super) name: Arc<str>,
    /// A higher number means later.
    pub(super) used: i64,
    pub(super) members: BTreeMap<StrBytes, Member>,
    pub(super) offsets: Offsets,
    phase: Phase,
    generation: i32,
    protocol_type: StrBytes,
    protocol: StrBytes,
    leader: StrBytes,
}

/// What a consumer told when it joined, and what it waits for.
#[derive(Default)]
pub(super) struct Member {
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    /// In the order in which it likes them.
    pub(super) protocols: Vec<JoinGroupRequestProtocol>,
    pub(super) assignment: Bytes,
    /// It has joined, and waits for the others.
    pub(super) joining: Option<oneshot::Sender<JoinGroupResponse>>,
    /// It waits for what the leader assigns to it.
    pub(super) syncing: Option<oneshot::Sender<SyncGroupResponse>>,
}

/// What is left to do when the lock is released.
#[must_use]
#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    /// A rebalance has begun: watch a delayed join, for so long at most.
    Watch {
        timeout: Duration,
    },
    /// The first rebalance of a group.
    WatchFirst,
    /// The delayed join may be complete now.
    Trigger,
}

impl State {
    pub(super) fn new(name: Arc<str>) -> Self {
        State {
            name,
            ..State::default()
        }
    }

    /// Returns whether a member that knows these protocols fits in with the others.
    pub(super) fn accepts(&self, id: &StrBytes, request: &JoinGroupRequest) -> bool {
        let others = self.members.iter().filter(|(other, _)| *other != id);
        let others: Vec<&Member> = others.map(|(_, member)| member).collect();
        let is_common = |name: &str| others.iter().all(|member| member.knows(name));
        (others.is_empty() || request.protocol_type == self.protocol_type)
            && request
                .protocols
                .iter()
                .any(|protocol| is_common(&protocol.name))
    }

    /// Lets a member join, or join again. It is answered when all have joined.
    pub(super) fn join(&mut self, id: StrBytes, protocol_type: &str, member: Member) -> Next {
        if self.members.keys().all(|other| *other == id) {
            self.protocol_type = StrBytes::from_string(protocol_type.to_owned());
        }
        // An answer that it waited for on another connection is dropped, and so is that.
        self.members.insert(id, member);
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
            member.syncing = None;
        }
        let timeouts = self.members.values().map(|member| member.rebalance_timeout);
        Next::Watch {
            timeout: timeouts.max().unwrap_or_default(),
        }
    }

    pub(super) fn all_have_joined(&self) -> bool {
        self.members.values().all(|member| member.joining.is_some())
    }

    /// Begins a new generation of those who have joined. Returns the others, which are out.
    pub(super) fn begin_generation(&mut self) -> Vec<StrBytes> {
        if self.phase != Phase::PreparingRebalance {
            return Vec::new(); // It was a group of the same name that was to be rebalanced.
        }
        let has_gone = |member: &Member| {
            let joining = member.joining.as_ref();
            joining.is_none_or(oneshot::Sender::is_closed)
        };
        let gone = self.members.iter().filter(|(_, member)| has_gone(member));
        let gone: Vec<StrBytes> = gone.map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|id| drop(self.members.remove(id)));
        self.generation += 1;
        let Some(first) = self.members.keys().next().cloned() else {
            self.phase = Phase::Empty;
            return gone;
        };
        if !self.members.contains_key(&self.leader) {
            self.leader = first;
        }
        self.protocol = self.choose_protocol();
        self.phase = Phase::CompletingRebalance;
        for id in self.members.keys().cloned().collect::<Vec<_>>() {
            let joined = self.joined(&id);
            let member = self.members.get_mut(&id);
            if let Some(answer) = member.and_then(|member| member.joining.take()) {
                let _ = answer.send(joined);
            }
        }
        gone
    }

    /// Chooses the first protocol of the leader's that all know.
    fn choose_protocol(&self) -> StrBytes {
        let known = self
            .members
            .get(&self.leader)
            .into_iter()
            .flat_map(|it| &it.protocols);
        let names = known.map(|protocol| &protocol.name);
        let is_common = |name: &&StrBytes| self.members.values().all(|member| member.knows(name));
        names
            .into_iter()
            .find(is_common)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns what a member is told when all have joined. The leader hears who they are.
    fn joined(&self, id: &StrBytes) -> JoinGroupResponse {
        let of_leader = self.members.iter().filter(|_| *id == self.leader);
        let members = of_leader.map(|(id, member)| {
            let protocol = member
                .protocols
                .iter()
                .find(|known| known.name == self.protocol);
            JoinGroupResponseMember::default()
                .with_member_id(id.clone())
                .with_metadata(
                    protocol
                        .map(|known| known.metadata.clone())
                        .unwrap_or_default(),
                )
        });
        JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_name(Some(self.protocol.clone()))
            .with_leader(self.leader.clone())
            .with_member_id(id.clone())
            .with_members(members.collect())
    }

    /// Tells a member its assignment, as soon as the leader has provided everybody's.
    pub(super) fn sync(
        &mut self,
        request: SyncGroupRequest,
        answer: oneshot::Sender<SyncGroupResponse>,
    ) {
        let synced = |member: &Member| {
            SyncGroupResponse::default().with_assignment(member.assignment.clone())
        };
        if self.phase == Phase::CompletingRebalance && request.member_id == self.leader {
            for assigned in request.assignments {
                if let Some(member) = self.members.get_mut(&assigned.member_id) {
                    member.assignment = Bytes::copy_from_slice(&assigned.assignment);
                }
            }
            self.phase = Phase::Stable;
            for member in self.members.values_mut() {
                if let Some(answer) = member.syncing.take() {
                    let _ = answer.send(synced(member));
                }
            }
        }
        let Some(member) = self.members.get_mut(&request.member_id) else {
            return;
        };
        if self.phase == Phase::Stable {
            let _ = answer.send(synced(member));
        } else {
            member.syncing = Some(answer);
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
        self.members.remove(id);
        match self.phase {
            Phase::PreparingRebalance => Next::Trigger,
            Phase::Empty => Next::Nothing,
            Phase::CompletingRebalance | Phase::Stable => self.rebalance(),
        }
    }
}

impl Member {
    pub(super) fn new(
        request: &JoinGroupRequest,
        answer: oneshot::Sender<JoinGroupResponse>,
    ) -> Self {
        // Copied: the frame that it came in must not stay with it.
        let copied = request.protocols.iter().map(|protocol| {
            JoinGroupRequestProtocol::default()
                .with_name(StrBytes::from_string(protocol.name.to_string()))
                .with_metadata(Bytes::copy_from_slice(&protocol.metadata))
        });
        let session_timeout = millis(request.session_timeout_ms);
        Member {
            session_timeout,
            // The oldest version has only one timeout.
            rebalance_timeout: millis(request.rebalance_timeout_ms).max(session_timeout),
            protocols: copied.collect(),
            joining: Some(answer),
            ..Member::default()
        }
    }

    pub(super) fn knows(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|known| &*known.name == protocol)
    }

    /// Returns whether its connection is open and waits for our answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.joining
            .as_ref()
            .is_some_and(|answer| !answer.is_closed())
            || self.is_syncing()
    }

    /// Returns whether its connection is open and waits for an assignment.
    pub(super) fn is_syncing(&self) -> bool {
        self.syncing
            .as_ref()
            .is_some_and(|answer| !answer.is_closed())
    }
}
