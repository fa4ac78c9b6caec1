//! Members: what a consumer told when it joined, and what it waits for.

use crate::budget::Room;
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse, SyncGroupResponse};
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use tokio::sync::oneshot;

pub(super) struct Member {
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    pub(super) protocols: Vec<JoinGroupRequestProtocol>,
    pub(super) assignment: Bytes,
    /// It has joined, and waits for the others.
    pub(super) joining: Option<oneshot::Sender<JoinGroupResponse>>,
    /// It waits for what the leader assigns to it.
    pub(super) syncing: Option<oneshot::Sender<SyncGroupResponse>>,
    /// What is kept of it takes a part of the budget.
    pub(super) assignment_room: Option<Room>,
    protocols_room: Option<Room>,
}

impl Member {
    pub(super) fn new(request: &JoinGroupRequest, room: Room) -> Self {
        let mut member = Member {
            session_timeout: Duration::ZERO,
            rebalance_timeout: Duration::ZERO,
            protocols: Vec::new(),
            assignment: Bytes::new(),
            joining: None,
            syncing: None,
            assignment_room: None,
            protocols_room: None,
        };
        member.update(request, room);
        member
    }

    /// Updates what the member says when it joins again.
    pub(super) fn update(&mut self, request: &JoinGroupRequest, room: Room) {
        self.protocols_room = Some(room);
        self.session_timeout = millis(request.session_timeout_ms);
        // The oldest version has only one timeout.
        let rebalance_timeout = millis(request.rebalance_timeout_ms);
        self.rebalance_timeout = rebalance_timeout.max(self.session_timeout);
        // Copied: the frame that it came in must not stay with it.
        let copied = request.protocols.iter().map(|protocol| {
            JoinGroupRequestProtocol::default()
                .with_name(StrBytes::from_string(protocol.name.to_string()))
                .with_metadata(Bytes::copy_from_slice(&protocol.metadata))
        });
        self.protocols = copied.collect();
    }

    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|known| &*known.name == protocol);
        found.map(|known| known.metadata.clone()).unwrap_or_default()
    }

    pub(super) fn knows(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|known| &*known.name == protocol)
    }

    /// Returns the first of the candidates in the member's own order.
    pub(super) fn vote(&self, candidates: &[StrBytes]) -> Option<StrBytes> {
        let names = self.protocols.iter().map(|known| &known.name);
        names.into_iter().find(|name| candidates.contains(name)).cloned()
    }

    /// Returns whether its connection is open and waits for our answer, which is a sign of life.
    pub(super) fn is_waiting(&self) -> bool {
        self.joining.as_ref().is_some_and(|answer| !answer.is_closed())
            || self.syncing.as_ref().is_some_and(|answer| !answer.is_closed())
    }
}

fn millis(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
