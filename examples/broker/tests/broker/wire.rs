//! Requests: each kind in each version is read, and no count in it is believed.

use crate::world::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::Encodable;
use std::ops::RangeInclusive;
use tickwheel_broker::{Malformed, decode};

/// Encodes a request, without its length.
pub(crate) fn encoded(key: ApiKey, version: i16, body: &RequestKind) -> BytesMut {
    let header = RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_correlation_id(77)
        .with_client_id(Some(text("test")));
    let mut frame = BytesMut::new();
    header.encode(&mut frame, key.request_header_version(version)).expect("a header");
    body.encode(&mut frame, version).expect("a body");
    frame
}

/// A request of each kind, with something in each array, and the versions that are spoken.
fn requests() -> Vec<(ApiKey, RangeInclusive<i16>, RequestKind)> {
    let list = with!(ListOffsetsTopic { partitions: vec![ListOffsetsPartition::default(); 2] });
    let commit = OffsetCommitRequestPartition::default();
    let commit = with!(OffsetCommitRequestTopic { partitions: vec![commit; 2] });
    let committed = with!(OffsetFetchRequestTopic { partition_indexes: vec![1, 2] });
    let forgotten = vec![with!(ForgottenTopic { partitions: vec![1] })];
    let list = with!(ListOffsetsRequest { topics: vec![list] }).into();
    let commit = with!(OffsetCommitRequest { topics: vec![commit] }).into();
    let committed = with!(OffsetFetchRequest { topics: Some(vec![committed]) }).into();
    let protocol = with!(JoinGroupRequestProtocol { metadata: Bytes::from_static(b"topics") });
    let join = with!(JoinGroupRequest { protocols: vec![protocol; 2] }).into();
    let assigned = with!(SyncGroupRequestAssignment { assignment: Bytes::from_static(b"x") });
    let sync = with!(SyncGroupRequest { assignments: vec![assigned; 2] }).into();
    let fetch = fetch("orders", 0, 1);
    let newer_fetch = fetch.clone().with_forgotten_topics_data(forgotten).into();
    vec![
        (ApiKey::Produce, 3..=8, produce("orders", 1, batch(b"x")).into()),
        (ApiKey::Fetch, 4..=6, fetch.into()),
        (ApiKey::Fetch, 7..=11, newer_fetch),
        (ApiKey::ListOffsets, 1..=5, list),
        (ApiKey::Metadata, 0..=7, metadata("orders").into()),
        (ApiKey::OffsetCommit, 2..=4, commit),
        (ApiKey::OffsetFetch, 1..=5, committed),
        (ApiKey::FindCoordinator, 0..=2, FindCoordinatorRequest::default().into()),
        (ApiKey::JoinGroup, 0..=3, join),
        (ApiKey::Heartbeat, 0..=2, HeartbeatRequest::default().into()),
        (ApiKey::LeaveGroup, 0..=2, LeaveGroupRequest::default().into()),
        (ApiKey::SyncGroup, 0..=2, sync),
        (ApiKey::ApiVersions, 0..=2, ApiVersionsRequest::default().into()),
        (ApiKey::InitProducerId, 0..=1, InitProducerIdRequest::default().into()),
    ]
}

#[test]
fn each_request_is_read_in_each_version_and_in_no_other() {
    for (key, versions, body) in requests() {
        for version in versions.clone() {
            let frame = encoded(key, version, &body).freeze();
            let request = decode(frame.clone()).unwrap_or_else(|_| panic!("{key:?} {version}"));
            assert_eq!((request.version, request.correlation_id), (version, 77));
            // Not without its last byte, nor with one more.
            assert!(decode(frame.slice(..frame.len() - 1)).is_err(), "{key:?} {version}");
            let longer = Bytes::from([&frame[..], b"x"].concat());
            assert!(decode(longer).is_err(), "{key:?} {version}");
        }
    }
    let unknown = |version| {
        let frame = encoded(ApiKey::ApiVersions, version, &ApiVersionsRequest::default().into());
        decode(frame.freeze()).expect_err("it is not spoken")
    };
    assert_eq!(unknown(3), Malformed::Versions { correlation_id: 77 });
}

/// Twelve bytes that claim two billion elements would take all memory.
#[test]
fn a_count_is_not_believed_wherever_it_stands() {
    for (key, versions, body) in requests() {
        for version in versions {
            let frame = encoded(key, version, &body);
            for place in 8..=frame.len() - 4 {
                for claim in [i32::MAX, 1 << 24, 20_001] {
                    let mut frame = frame.clone();
                    frame[place..place + 4].copy_from_slice(&claim.to_be_bytes());
                    drop(decode(frame.freeze()));
                }
            }
        }
    }
}

/// What is decoded takes far more room than what was sent.
#[test]
fn a_request_has_not_too_many_elements() {
    let with_topics = |count| {
        let topics = vec![MetadataRequestTopic::default().with_name(Some(name("t"))); count];
        let body = MetadataRequest::default().with_topics(Some(topics)).into();
        decode(encoded(ApiKey::Metadata, 7, &body).freeze())
    };
    assert!(with_topics(20_000).is_ok() && with_topics(20_001).is_err());
}
