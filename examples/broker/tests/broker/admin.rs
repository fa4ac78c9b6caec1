//! What tools ask for: topics are created and deleted, groups are listed, described and deleted.

use crate::client::{Client, batch, name, sequenced, text};
use crate::fixture::{Fixture, MS, eventually};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    DescribeGroupsRequest, GroupId, ListGroupsRequest, OffsetCommitRequest, OffsetFetchRequest,
    ResponseKind,
};
use tickwheel_broker::Waiting;

const UNKNOWN_TOPIC: i16 = 3;
const INVALID_TOPIC: i16 = 17;
const TOPIC_EXISTS: i16 = 36;
const INVALID_PARTITIONS: i16 = 37;
const INVALID_REPLICATION: i16 = 38;
const NON_EMPTY_GROUP: i16 = 68;
const NO_SUCH_GROUP: i16 = 69;

/// Creates a topic. Returns the error's code and the number of partitions.
fn create(client: &mut Client, topic: &str, partitions: i32, replicas: i16) -> (i16, i32) {
    let topic = CreatableTopic::default().with_name(name(topic));
    let topic = topic.with_num_partitions(partitions).with_replication_factor(replicas);
    let body = CreateTopicsRequest::default().with_topics(vec![topic]);
    match client.call(ApiKey::CreateTopics, 7, &body.into()) {
        ResponseKind::CreateTopics(response) => {
            (response.topics[0].error_code, response.topics[0].num_partitions)
        }
        other => panic!("{other:?}"),
    }
}

fn delete(client: &mut Client, topic: &str) -> i16 {
    let topic = DeleteTopicState::default().with_name(Some(name(topic)));
    let body = DeleteTopicsRequest::default().with_topics(vec![topic]);
    match client.call(ApiKey::DeleteTopics, 6, &body.into()) {
        ResponseKind::DeleteTopics(response) => response.responses[0].error_code,
        other => panic!("{other:?}"),
    }
}

fn delete_group(client: &mut Client, group: &str) -> i16 {
    let body = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(group))]);
    match client.call(ApiKey::DeleteGroups, 2, &body.into()) {
        ResponseKind::DeleteGroups(response) => response.results[0].error_code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn topics_are_created_as_they_are_asked_for() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    assert_eq!(create(&mut client, "orders", 7, 1), (0, 7));
    assert_eq!(create(&mut client, "others", -1, -1), (0, 2));
    assert_eq!(client.create("orders").topics[0].partitions.len(), 7);
    for (topic, partitions, replicas, code) in [
        ("orders", 7, 1, TOPIC_EXISTS),
        ("a b", 7, 1, INVALID_TOPIC),
        ("more", 0, 1, INVALID_PARTITIONS),
        ("more", i32::MAX, 1, INVALID_PARTITIONS),
        ("more", 1, 3, INVALID_REPLICATION),
    ] {
        assert_eq!(create(&mut client, topic, partitions, replicas).0, code, "{topic}");
    }
}

#[test]
fn who_waits_for_a_topic_that_is_deleted_is_told() {
    let fixture = Fixture::new();
    let (mut client, mut consumer) = (fixture.client(), fixture.client());
    client.create("orders");
    assert_eq!(client.produce("orders", batch(1, b"x")), (0, 0));
    consumer.send_fetch("orders", 1, 60_000, 1);
    fixture.wait_for(Waiting { fetches: 1, ..Waiting::default() });
    assert_eq!((delete(&mut client, "orders"), delete(&mut client, "orders")), (0, UNKNOWN_TOPIC));
    assert_eq!(consumer.receive_fetched().0, UNKNOWN_TOPIC);
    assert_eq!(client.produce("orders", batch(1, b"x")).0, UNKNOWN_TOPIC);
    client.create("orders"); // A new one, that begins anew.
    assert_eq!(client.produce("orders", batch(1, b"x")), (0, 0));
}

/// Commits an offset for a group that has no members.
fn commit(client: &mut Client, offset: i64) {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default().with_name(name("orders"));
    let body = OffsetCommitRequest::default()
        .with_group_id(GroupId(text("readers")))
        .with_topics(vec![topic.with_partitions(vec![partition])]);
    match client.call(ApiKey::OffsetCommit, 2, &body.into()) {
        ResponseKind::OffsetCommit(response) => {
            assert_eq!(response.topics[0].partitions[0].error_code, 0);
        }
        other => panic!("{other:?}"),
    }
}

fn committed(client: &mut Client) -> i64 {
    let topic = OffsetFetchRequestTopic::default().with_name(name("orders"));
    let body = OffsetFetchRequest::default()
        .with_group_id(GroupId(text("readers")))
        .with_topics(Some(vec![topic.with_partition_indexes(vec![0])]));
    match client.call(ApiKey::OffsetFetch, 5, &body.into()) {
        ResponseKind::OffsetFetch(response) => response.topics[0].partitions[0].committed_offset,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_topic_that_is_deleted_leaves_nothing_to_its_successor() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    let one = sequenced(&batch(1, b"x"), 7, 0, 5);
    assert_eq!(client.produce("orders", one.clone()), (0, 0));
    commit(&mut client, 1);
    assert_eq!(committed(&mut client), 1);
    assert_eq!(delete(&mut client, "orders"), 0);
    client.create("orders");
    assert_eq!(committed(&mut client), -1);
    drop(client);
    fixture.wait_for_end_of_connections();
    assert_eq!(fixture.timers(), 0); // Its producer's.
    assert_eq!(fixture.client().produce("orders", one), (0, 0));
}

#[test]
fn groups_are_listed_described_and_deleted() {
    let fixture = Fixture::new();
    let (mut client, mut member) = (fixture.client(), fixture.client());
    member.send_join("readers");
    fixture.wait_for(Waiting { joins: 1, sessions: 1, ..Waiting::default() });
    fixture.advance(100 * MS);
    assert_eq!(member.receive_joined(), (0, 1));
    match client.call(ApiKey::ListGroups, 5, &ListGroupsRequest::default().into()) {
        ResponseKind::ListGroups(response) => {
            let group = &response.groups[0];
            assert_eq!(
                (&**group.group_id, &*group.group_state),
                ("readers", "CompletingRebalance")
            );
        }
        other => panic!("{other:?}"),
    }
    let groups = vec![GroupId(text("readers")), GroupId(text("nobody"))];
    let body = DescribeGroupsRequest::default().with_groups(groups);
    match client.call(ApiKey::DescribeGroups, 6, &body.into()) {
        ResponseKind::DescribeGroups(response) => {
            let [group, none] = &response.groups[..] else { panic!("{response:?}") };
            assert_eq!((group.error_code, &*group.protocol_data), (0, "range"));
            assert_eq!((group.members.len(), &*group.members[0].client_id), (1, "test"));
            assert_eq!((none.error_code, &*none.group_state), (NO_SUCH_GROUP, "Dead"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(delete_group(&mut client, "readers"), NON_EMPTY_GROUP);
    fixture.advance(10_000 * MS); // Its session.
    eventually(|| fixture.broker.waiting() == Waiting::default(), || "a member".to_owned());
    assert_eq!(delete_group(&mut client, "readers"), 0);
    assert_eq!(delete_group(&mut client, "readers"), NO_SUCH_GROUP);
}

#[test]
fn the_cluster_is_this_broker() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let body = DescribeClusterRequest::default().with_endpoint_type(1);
    match client.call(ApiKey::DescribeCluster, 1, &body.into()) {
        ResponseKind::DescribeCluster(response) => {
            let ports: Vec<_> = response.brokers.iter().map(|broker| broker.port).collect();
            assert_eq!((response.error_code, ports), (0, vec![fixture.address.port().into()]));
        }
        other => panic!("{other:?}"),
    }
}
