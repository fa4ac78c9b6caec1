//! Fetches: long polls that wait for bytes.

use crate::world::*;
use bytes::Bytes;
use tickwheel_broker::Waiting;

const UNKNOWN_TOPIC: i16 = 3;
const OUT_OF_RANGE: i16 = 1;

fn waiting(fetches: usize) -> Waiting {
    Waiting { fetches, ..Waiting::default() }
}

#[test]
fn a_fetch_waits_for_the_produce_that_brings_enough() {
    let world = World::new();
    world.create("orders");
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
    let world = World::new();
    world.create("orders");
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
    assert_eq!(world.fetch("nothing", 0, 1).fetched(), (UNKNOWN_TOPIC, 0));
    world.create("orders");
    assert_eq!(world.fetch("orders", 1, 1).fetched(), (OUT_OF_RANGE, 0));
    assert_eq!(world.fetch("orders", -1, 1).fetched(), (OUT_OF_RANGE, 0));
}

#[test]
fn a_fetch_whose_client_has_gone_waits_no_longer() {
    let world = World::new();
    world.create("orders");
    let fetch = world.fetch("orders", 0, 1);
    assert_eq!(world.broker.waiting(), waiting(1));
    drop(fetch);
    assert_eq!(world.broker.waiting(), waiting(0));
    assert!(world.timer.is_empty());
}

#[test]
fn an_answer_has_whole_batches_up_to_its_limit_and_the_first_one_in_any_case() {
    let world = World::new();
    world.create("orders");
    (0..3).for_each(|_| assert_eq!(world.append("orders", batch(b"one")).0, 0));
    let size = batch(b"one").len() as i32;
    let fetch_up_to = |limit| {
        let asked = world.ask(11, fetch("orders", 0, 1).with_max_bytes(limit));
        let response = answered!(Fetch, asked.answer());
        response.responses[0].partitions[0].records.as_ref().map_or(0, Bytes::len) as i32
    };
    assert_eq!(fetch_up_to(3 * size - 1), 2 * size);
    assert_eq!(fetch_up_to(1), size);
}
