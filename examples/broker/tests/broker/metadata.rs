//! What clients ask before they begin.

use crate::world::*;

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
    for (version, all) in [(7, None), (0, Some(Vec::new()))] {
        let asked = world.ask(version, MetadataRequest::default().with_topics(all));
        assert_eq!(answered!(Metadata, asked.answer()).topics.len(), 100);
    }
}

#[test]
fn a_log_begins_and_ends_where_list_offsets_says() {
    let world = World::new();
    world.create("orders");
    (0..3).for_each(|_| assert_eq!(world.append("orders", batch(b"x")).0, 0));
    world.produce("orders", 1, batch(b"the follower lacks it")).produced();
    let offset_at = |time| {
        let partitions = vec![with!(ListOffsetsPartition { timestamp: time })];
        let topic = with!(ListOffsetsTopic { name: name("orders"), partitions: partitions });
        let asked = world.ask(5, with!(ListOffsetsRequest { topics: vec![topic] }));
        answered!(ListOffsets, asked.answer()).topics[0].partitions[0].offset
    };
    assert_eq!((offset_at(-2), offset_at(-1)), (0, 3));
    assert_eq!((offset_at(1000), offset_at(1001)), (0, -1));
}
