//! Versions: every one of every request is understood and answered in it, with something in each
//! of its arrays; what a request claims to hold is looked at in each of them.

use crate::client::{Client, encoded, framed, name, text};
use crate::fixture::Fixture;
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;
use std::io::Write;

/// The requests, and the oldest and newest versions in which they are answered.
pub(crate) const ALL: [(ApiKey, i16, i16); 20] = [
    (ApiKey::Produce, 3, 13),
    (ApiKey::Fetch, 4, 16),
    (ApiKey::ListOffsets, 1, 10),
    (ApiKey::Metadata, 0, 13),
    (ApiKey::OffsetCommit, 2, 9),
    (ApiKey::OffsetFetch, 1, 9),
    (ApiKey::FindCoordinator, 0, 6),
    (ApiKey::JoinGroup, 0, 9),
    (ApiKey::Heartbeat, 0, 4),
    (ApiKey::LeaveGroup, 0, 5),
    (ApiKey::SyncGroup, 0, 5),
    (ApiKey::DescribeGroups, 0, 6),
    (ApiKey::ListGroups, 0, 5),
    (ApiKey::ApiVersions, 0, 4),
    (ApiKey::CreateTopics, 2, 7),
    (ApiKey::DeleteTopics, 1, 6),
    (ApiKey::InitProducerId, 0, 5),
    (ApiKey::DescribeConfigs, 1, 4),
    (ApiKey::DeleteGroups, 0, 2),
    (ApiKey::DescribeCluster, 0, 2),
];

const NO_TOPIC: uuid::Uuid = uuid::Uuid::from_u128(77);

/// Returns a request with something in each of its arrays. No version of it changes anything or
/// waits.
pub(crate) fn full(key: ApiKey, version: i16) -> RequestKind {
    let group = || GroupId(text("readers"));
    match key {
        ApiKey::Produce => {
            let data = PartitionProduceData::default().with_records(Some(Bytes::from_static(b"x")));
            let topic = match version {
                ..13 => TopicProduceData::default().with_name(name("orders")),
                _ => TopicProduceData::default().with_topic_id(NO_TOPIC),
            };
            let topics = vec![topic.with_partition_data(vec![data])];
            ProduceRequest::default().with_acks(1).with_topic_data(topics).into()
        }
        ApiKey::Fetch => full_fetch(version).into(),
        ApiKey::ListOffsets => {
            let partitions = vec![ListOffsetsPartition::default()];
            let topic = ListOffsetsTopic::default().with_name(name("orders"));
            let topics = vec![topic.with_partitions(partitions)];
            ListOffsetsRequest::default().with_topics(topics).into()
        }
        ApiKey::Metadata => {
            let topic = MetadataRequestTopic::default().with_name(Some(name("orders")));
            MetadataRequest::default().with_topics(Some(vec![topic])).into()
        }
        ApiKey::OffsetCommit => {
            let partition = OffsetCommitRequestPartition::default();
            let topic = OffsetCommitRequestTopic::default().with_name(name("none"));
            let topics = vec![topic.with_partitions(vec![partition])];
            OffsetCommitRequest::default().with_group_id(group()).with_topics(topics).into()
        }
        ApiKey::OffsetFetch => full_offset_fetch(version).into(),
        ApiKey::FindCoordinator if version < 4 => {
            FindCoordinatorRequest::default().with_key(text("readers")).into()
        }
        ApiKey::FindCoordinator => FindCoordinatorRequest::default()
            .with_coordinator_keys(vec![text("readers"), text("writers")])
            .into(),
        ApiKey::JoinGroup => {
            let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
            let body = JoinGroupRequest::default().with_protocols(vec![protocol]);
            body.with_session_timeout_ms(1).into() // Too short.
        }
        ApiKey::Heartbeat => HeartbeatRequest::default().into(),
        ApiKey::LeaveGroup if version < 3 => LeaveGroupRequest::default().into(),
        ApiKey::LeaveGroup => {
            let member = MemberIdentity::default().with_member_id(text("nobody"));
            LeaveGroupRequest::default().with_members(vec![member]).into()
        }
        ApiKey::SyncGroup => {
            let assignment = SyncGroupRequestAssignment::default().with_member_id(text("nobody"));
            SyncGroupRequest::default().with_assignments(vec![assignment]).into()
        }
        other => full_for_tools(other, version),
    }
}

fn full_for_tools(key: ApiKey, version: i16) -> RequestKind {
    let group = || GroupId(text("readers"));
    match key {
        ApiKey::DescribeGroups => {
            DescribeGroupsRequest::default().with_groups(vec![group()]).into()
        }
        ApiKey::ListGroups => {
            let mut body = ListGroupsRequest::default();
            if version >= 4 {
                body.states_filter = vec![text("Stable")];
            }
            if version >= 5 {
                body.types_filter = vec![text("classic")];
            }
            body.into()
        }
        ApiKey::ApiVersions => ApiVersionsRequest::default().into(),
        ApiKey::CreateTopics => {
            let replicas = CreatableReplicaAssignment::default().with_broker_ids(vec![1.into()]);
            let config = CreatableTopicConfig::default().with_name(text("a"));
            let topic = CreatableTopic::default()
                .with_name(name("new"))
                .with_assignments(vec![replicas])
                .with_configs(vec![config.with_value(Some(text("b")))]);
            CreateTopicsRequest::default().with_topics(vec![topic]).into()
        }
        ApiKey::DeleteTopics if version < 6 => {
            DeleteTopicsRequest::default().with_topic_names(vec![name("none")]).into()
        }
        ApiKey::DeleteTopics => {
            let topic = DeleteTopicState::default().with_name(Some(name("none")));
            DeleteTopicsRequest::default().with_topics(vec![topic]).into()
        }
        ApiKey::InitProducerId => InitProducerIdRequest::default().into(),
        ApiKey::DescribeConfigs => {
            let resource = DescribeConfigsResource::default().with_resource_name(text("1"));
            let keys = Some(vec![text("num.partitions")]);
            let resource = resource.with_resource_type(4).with_configuration_keys(keys);
            DescribeConfigsRequest::default().with_resources(vec![resource]).into()
        }
        ApiKey::DeleteGroups => {
            DeleteGroupsRequest::default().with_groups_names(vec![group()]).into()
        }
        ApiKey::DescribeCluster => DescribeClusterRequest::default().into(),
        other => panic!("{other:?}"),
    }
}

fn full_fetch(version: i16) -> FetchRequest {
    let (topic, forgotten) = match version {
        ..13 => (
            FetchTopic::default().with_topic(name("orders")),
            ForgottenTopic::default().with_topic(name("old")),
        ),
        _ => (
            FetchTopic::default().with_topic_id(NO_TOPIC),
            ForgottenTopic::default().with_topic_id(NO_TOPIC),
        ),
    };
    let topics = vec![topic.with_partitions(vec![FetchPartition::default()])];
    let mut body = FetchRequest::default().with_topics(topics);
    if version >= 7 {
        body.forgotten_topics_data = vec![forgotten.with_partitions(vec![1, 2])];
    }
    body
}

fn full_offset_fetch(version: i16) -> OffsetFetchRequest {
    let group = GroupId(text("readers"));
    if version < 8 {
        let topic = OffsetFetchRequestTopic::default().with_name(name("orders"));
        let topics = Some(vec![topic.with_partition_indexes(vec![0, 1])]);
        return OffsetFetchRequest::default().with_group_id(group).with_topics(topics);
    }
    let topic = OffsetFetchRequestTopics::default().with_name(name("orders"));
    let topics = Some(vec![topic.with_partition_indexes(vec![0, 1])]);
    let one = OffsetFetchRequestGroup::default().with_group_id(group).with_topics(topics);
    OffsetFetchRequest::default().with_groups(vec![one.clone(), one])
}

#[test]
fn every_version_of_every_request_is_answered_in_it() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    for (key, oldest, newest) in ALL {
        for version in oldest..=newest {
            let answer = client.call(key, version, &full(key, version));
            let told = format!("{answer:?}");
            assert!(told.len() > 10, "{key:?} {version}: {told}");
        }
    }
}

#[test]
fn the_versions_that_are_told_are_these() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    match client.call(ApiKey::ApiVersions, 4, &ApiVersionsRequest::default().into()) {
        ResponseKind::ApiVersions(response) => {
            let told = response.api_keys.iter();
            let told: Vec<_> =
                told.map(|api| (api.api_key, api.min_version, api.max_version)).collect();
            assert_eq!(told, ALL.map(|(key, oldest, newest)| (key as i16, oldest, newest)));
        }
        other => panic!("{other:?}"),
    }
}

/// A count that would take hundreds of gigabytes, in every place of every request, in either
/// encoding of a number.
#[test]
fn absurd_counts_take_no_memory() {
    let fixture = Fixture::new();
    let throw = |bytes: &[u8]| {
        let mut client: Client = fixture.client();
        if client.stream.write_all(bytes).is_ok() {
            let _ = client.stream.shutdown(std::net::Shutdown::Write);
            while client.frame().is_some() {}
        }
    };
    for (key, oldest, newest) in ALL {
        for version in [oldest, newest] {
            let whole = encoded(key, version, &full(key, version));
            for place in 8..whole.len() {
                let mut bad = BytesMut::from(&whole[..place]);
                bad.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
                bad.extend_from_slice(&whole[place + 1..]);
                throw(&framed(&bad));
                if let Some(rest) = whole.get(place + 4..) {
                    let mut bad = BytesMut::from(&whole[..place]);
                    bad.extend_from_slice(&i32::MAX.to_be_bytes());
                    bad.extend_from_slice(rest);
                    throw(&framed(&bad));
                }
            }
        }
    }
    fixture.client().create("orders");
}
