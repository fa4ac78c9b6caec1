//! The broker in virtual time: topics, produces and fetches here, groups beside; and over real TCP.
//! Kafka's own clients are in `e2e`.

mod groups;
mod server;
mod world;

use bytes::Bytes;
use kafka_protocol::ResponseError::*;
use tickwheel_broker::Waiting;
use world::*;

fn orders() -> World {
    let world = World::new();
    world.create("orders");
    world
}

fn waiting(fetches: usize) -> Waiting {
    Waiting {
        fetches,
        ..Waiting::default()
    }
}

#[test]
fn the_code_in_the_readme_is_the_brokers() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sources = [
        include_str!("../../src/lib.rs"),
        include_str!("../../src/fetch.rs"),
        include_str!("../../src/group/mod.rs"),
    ];
    let source = words(&sources.concat());
    let blocks = include_str!("../../README.md").split("```rust\n").skip(1);
    let blocks: Vec<String> = blocks
        .filter_map(|rest| rest.split("```").next())
        .map(words)
        .collect();
    assert_eq!(blocks.len(), 3);
    blocks
        .iter()
        .for_each(|block| assert!(source.contains(block), "{block}"));
}

#[test]
fn a_topic_is_created_where_the_client_allows_it() {
    let world = World::new();
    let ask = |version, allow| {
        let body = metadata("orders").with_allow_auto_topic_creation(allow);
        let topic = answered!(Metadata, world.ask(version, body).answer())
            .topics
            .remove(0);
        (topic.error_code, topic.partitions.len())
    };
    assert_eq!(ask(7, false), (UnknownTopicOrPartition.code(), 0));
    assert_eq!(ask(7, true), (0, 2));
    assert_eq!(ask(7, false), (0, 2));
}

#[test]
fn there_are_no_topics_but_legal_ones_and_not_too_many() {
    let world = World::new();
    for illegal in ["", ".", "..", "a/b", "é", &"x".repeat(250)] {
        assert_eq!(
            world.create(illegal).topics[0].error_code,
            InvalidTopicException.code(),
            "{illegal}"
        );
    }
    for number in 0..100 {
        assert_eq!(world.create(&format!("t{number}")).topics[0].error_code, 0);
    }
    assert_eq!(
        world.create("one-too-many").topics[0].error_code,
        TopicAuthorizationFailed.code()
    );
    for (version, all) in [(7, None), (0, Some(Vec::new()))] {
        let asked = world.ask(version, MetadataRequest::default().with_topics(all));
        assert_eq!(answered!(Metadata, asked.answer()).topics.len(), 100);
    }
}

#[test]
fn acks_decide_who_waits_for_the_follower() {
    let world = orders();
    assert!(world.produce("orders", 0, batch(b"none")).wants_none());
    assert_eq!(world.produce("orders", 1, batch(b"one")).produced(), (0, 1));
    let mut all = world.produce("orders", -1, batch(b"all"));
    assert_eq!(
        world.broker.waiting(),
        Waiting {
            produces: 1,
            ..Waiting::default()
        }
    );
    world.advance(LAG - NS);
    assert!(!all.is_answered());
    world.advance(NS);
    assert_eq!(all.produced(), (0, 2));
    assert_eq!(
        world.produce("orders", 2, batch(b"two")).produced(),
        (InvalidRequiredAcks.code(), -1)
    );
}

/// Seen to fail: each append put off the copy that was due.
#[test]
fn appends_do_not_keep_the_follower_away() {
    let world = orders();
    let all = world.produce("orders", -1, batch(b"all"));
    world.clock.advance(LAG); // No turn comes.
    assert_eq!(
        world.produce("orders", 1, batch(b"more")).produced(),
        (0, 1)
    );
    world.advance(MS - MS);
    assert_eq!(all.produced(), (0, 0));
}

#[test]
fn what_the_follower_gets_too_late_is_timed_out_but_not_lost() {
    let world = orders();
    let impatient = produce("orders", -1, batch(b"late")).with_timeout_ms(2);
    let mut all = world.ask(8, impatient);
    assert_eq!(
        world.fetch("orders", 0, 0).fetched(),
        (0, 0),
        "no consumer is to see it yet"
    );
    world.advance(2 * MS - NS);
    assert!(!all.is_answered());
    world.advance(NS);
    assert_eq!(all.produced(), (RequestTimedOut.code(), -1));
    world.advance(LAG - 2 * MS);
    assert_eq!(
        world.fetch("orders", 0, 1).fetched(),
        (0, batch(b"late").len())
    );
}

#[test]
fn what_is_sent_again_is_not_appended_again() {
    let world = orders();
    let send = |epoch, sequence| world.append("orders", sequenced(b"x", 7, epoch, sequence));
    assert_eq!(send(0, 0), (0, 0));
    assert_eq!(send(0, 1), (0, 1));
    assert_eq!(send(0, 0), (0, 0));
    assert_eq!(send(0, 3), (OutOfOrderSequenceNumber.code(), -1));
    assert_eq!(send(0, 2), (0, 2));
    assert_eq!(send(1, 3), (OutOfOrderSequenceNumber.code(), -1));
    assert_eq!(send(1, 0), (0, 3));
    assert_eq!(send(0, 3), (InvalidProducerEpoch.code(), -1));
    assert_eq!(
        world.fetch("orders", 0, 0).fetched().1,
        4 * batch(b"x").len()
    );
}

/// Each life of the broker gave the same ids, so a producer of the life before and a new one had
/// the same: what one of them sent was taken for a repetition of the other's, and lost.
#[test]
fn no_two_lives_give_a_producer_the_same_id() {
    let first_id = |world: &World| {
        let body = InitProducerIdRequest::default().with_transactional_id(None);
        let asked = world.ask(1, body);
        answered!(InitProducerId, asked.answer()).producer_id.0
    };
    let before = first_id(&orders());
    let now = orders();
    let id = first_id(&now);
    assert_ne!(before, id);
    assert!(before > 0 && id > 0);
    assert_eq!(now.append("orders", sequenced(b"mine", id, 0, 0)), (0, 0));
    assert_eq!(
        now.append("orders", sequenced(b"yours", before, 0, 0)),
        (0, 1)
    );
}

#[test]
fn a_batch_that_is_too_large_or_corrupt_is_refused() {
    let world = orders();
    assert_eq!(
        world.append("orders", batch(&vec![0; (1 << 20) - 100])).0,
        0
    );
    assert_eq!(
        world.append("orders", batch(&vec![0; 1 << 20])).0,
        MessageTooLarge.code()
    );
    let mut changed = batch(b"changed").to_vec();
    *changed.last_mut().expect("a batch") ^= 1;
    assert_eq!(
        world.append("orders", changed.into()).0,
        CorruptMessage.code()
    );
}

#[test]
fn the_oldest_batches_go_but_not_what_the_follower_lacks() {
    let world = orders();
    let large = batch(&vec![0; 1_000_000]);
    for offset in 0..16 {
        assert_eq!(
            world.produce("orders", 1, large.clone()).produced(),
            (0, offset)
        );
    }
    let refused = world.produce("orders", 1, large.clone()).produced();
    assert_eq!(refused, (NotEnoughReplicas.code(), -1));
    world.advance(LAG);
    for offset in 16..20 {
        assert_eq!(world.append("orders", large.clone()), (0, offset));
    }
    assert_eq!(
        world.fetch("orders", 3, 1).fetched().0,
        OffsetOutOfRange.code()
    );
    assert_eq!(world.fetch("orders", 4, 1).fetched(), (0, large.len()));
}

#[test]
fn a_fetch_waits_for_the_produce_that_brings_enough() {
    let world = orders();
    let size = batch(b"one").len();
    let mut fetch = world.fetch("orders", 0, size as i32 + 1);
    assert_eq!(world.append("orders", batch(b"one")), (0, 0));
    assert!(!fetch.is_answered());
    assert_eq!(world.broker.waiting(), waiting(1));
    world.produce("orders", 1, batch(b"two"));
    world.advance(LAG - NS);
    assert!(!fetch.is_answered(), "the follower does not have it yet");
    world.advance(NS);
    assert_eq!(fetch.fetched(), (0, 2 * size));
    assert_eq!(world.broker.waiting(), waiting(0));
    assert!(world.timer.is_empty());
}

#[test]
fn a_fetch_is_answered_at_max_wait_and_never_before() {
    let world = orders();
    let mut fetch = world.fetch("orders", 0, i32::MAX);
    world.append("orders", batch(b"one"));
    world.advance(500 * MS - LAG - NS);
    assert!(!fetch.is_answered());
    world.advance(NS);
    assert_eq!(fetch.fetched(), (0, batch(b"one").len()));
}

#[test]
fn what_can_not_be_fetched_is_told_at_once() {
    let world = World::new();
    assert_eq!(
        world.fetch("nothing", 0, 1).fetched(),
        (UnknownTopicOrPartition.code(), 0)
    );
    world.create("orders");
    assert_eq!(
        world.fetch("orders", 1, 1).fetched(),
        (OffsetOutOfRange.code(), 0)
    );
    assert_eq!(
        world.fetch("orders", -1, 1).fetched(),
        (OffsetOutOfRange.code(), 0)
    );
}

#[test]
fn an_answer_has_whole_batches_up_to_its_limit_and_the_first_one_in_any_case() {
    let world = orders();
    (0..3).for_each(|_| assert_eq!(world.append("orders", batch(b"one")).0, 0));
    let size = batch(b"one").len() as i32;
    let fetch_up_to = |limit| {
        let asked = world.ask(11, fetch("orders", 0, 1).with_max_bytes(limit));
        let response = answered!(Fetch, asked.answer());
        response.responses[0].partitions[0]
            .records
            .as_ref()
            .map_or(0, Bytes::len) as i32
    };
    assert_eq!(fetch_up_to(3 * size - 1), 2 * size);
    assert_eq!(fetch_up_to(1), size);
}
