//! What clients ask before they begin.

use crate::world::{World, answered, batch, metadata, name};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{ListOffsetsRequest, MetadataRequest};

const UNKNOWN_TOPIC: i16 = 3;
const INVALID_TOPIC: i16 = 17;
const NOT_ALLOWED: i16 = 29;

#[test]
fn a_topic_is_created_where_the_client_allows_it() {
    let world = World::new();
    let ask = |version, allow| {
        let body = metadata("orders").with_allow_auto_topic_creation(allow);
        let topic = answered!(Metadata, world.ask(version, body).answer()).topics.remove(0);
        (topic.error_code, topic.partitions.len())
    };
    assert_eq!(ask(7, false), (UNKNOWN_TOPIC, 0));
    assert_eq!(ask(7, true), (0, 2));
    assert_eq!(ask(7, false), (0, 2));
    let world = World::new();
    let asked = world.ask(3, metadata("orders").with_allow_auto_topic_creation(false));
    let topics = answered!(Metadata, asked.answer()).topics;
    assert_eq!(topics[0].error_code, 0, "before version 4 nobody can say so");
}

#[test]
fn there_are_no_topics_but_legal_ones_and_not_too_many() {
    let world = World::new();
    for illegal in ["", ".", "..", "a/b", "é", &"x".repeat(250)] {
        assert_eq!(world.create(illegal).topics[0].error_code, INVALID_TOPIC, "{illegal}");
    }
    for number in 0..100 {
        assert_eq!(world.create(&format!("t{number}")).topics[0].error_code, 0);
    }
    assert_eq!(world.create("one-too-many").topics[0].error_code, NOT_ALLOWED);
    let all = world.ask(7, MetadataRequest::default().with_topics(None));
    assert_eq!(answered!(Metadata, all.answer()).topics.len(), 100);
    let all = world.ask(0, MetadataRequest::default().with_topics(Some(Vec::new())));
    assert_eq!(answered!(Metadata, all.answer()).topics.len(), 100);
}

#[test]
fn a_log_begins_and_ends_where_list_offsets_says() {
    let world = World::new();
    world.create("orders");
    (0..3).for_each(|_| assert_eq!(world.append("orders", batch(b"x")).0, 0));
    world.produce("orders", 1, batch(b"the follower lacks it")).produced();
    let offset_at = |time| {
        let partition = ListOffsetsPartition::default().with_timestamp(time);
        let topic = ListOffsetsTopic::default().with_name(name("orders"));
        let topics = vec![topic.with_partitions(vec![partition])];
        let asked = world.ask(5, ListOffsetsRequest::default().with_topics(topics));
        answered!(ListOffsets, asked.answer()).topics[0].partitions[0].offset
    };
    assert_eq!((offset_at(-2), offset_at(-1)), (0, 3));
    assert_eq!((offset_at(1000), offset_at(1001)), (0, -1));
}
