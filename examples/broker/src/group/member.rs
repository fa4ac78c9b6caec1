//! Members: what a consumer told when it joined, and what it waits for.

use crate::fetch::millis;
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse, SyncGroupResponse};
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use tokio::sync::oneshot;

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
        self.joining.as_ref().is_some_and(|answer| !answer.is_closed())
            || self.syncing.as_ref().is_some_and(|answer| !answer.is_closed())
    }
}
