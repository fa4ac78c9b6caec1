//! Fetches that wait.

use crate::client::batch;
use crate::fixture::{Fixture, MS, NS, eventually, terms};
use tickwheel_broker::{LongPoll, Waiting};

const ONE_FETCH: Waiting = Waiting { fetches: 1, produces: 0, joins: 0, sessions: 0 };
const UNKNOWN_TOPIC: i16 = 3;
const NOT_COORDINATOR: i16 = 16;
const OUT_OF_RANGE: i16 = 1;

#[test]
fn a_fetch_is_answered_by_the_produce_that_brings_the_bytes() {
    let fixture = Fixture::new();
    let (mut consumer, mut producer) = (fixture.client(), fixture.client());
    producer.create("orders");
    let one = batch(3, b"hello");
    consumer.send_fetch("orders", 0, 10_000, one.len() as i32 + 1);
    fixture.wait_for(ONE_FETCH);
    assert_eq!(producer.produce("orders", one.clone()), (0, 0));
    fixture.wait_for(ONE_FETCH); // Not enough.
    assert!(!consumer.has_answer());
    assert_eq!(producer.produce("orders", one.clone()), (0, 3));
    fixture.wait_for(Waiting::default());
    let (code, records) = consumer.receive_fetched();
    assert_eq!((code, records.len()), (0, 2 * one.len()));
}

#[test]
fn an_empty_fetch_is_answered_at_max_wait_and_never_before() {
    let fixture = Fixture::new();
    let mut consumer = fixture.client();
    consumer.create("orders");
    consumer.send_fetch("orders", 0, 500, 1);
    fixture.wait_for(ONE_FETCH);
    fixture.advance(500 * MS - NS);
    assert_eq!(fixture.broker.waiting(), ONE_FETCH);
    assert!(!consumer.has_answer());
    fixture.advance(NS);
    let (code, records) = consumer.receive_fetched();
    assert_eq!((code, records.len()), (0, 0));
}

#[test]
fn a_thousand_fetches_wait_without_a_thread_for_each() {
    let mut terms = terms();
    terms.limits.max_connections = 2000;
    let fixture = Fixture::with(&terms, 10_000);
    fixture.client().create("orders");
    let mut consumers: Vec<_> = (0..1000).map(|_| fixture.client()).collect();
    for consumer in &mut consumers {
        consumer.send_fetch("orders", 0, 60_000, 1);
    }
    fixture.wait_for(Waiting { fetches: 1000, ..Waiting::default() });
    assert_eq!(fixture.threads(), 2);
    let one = batch(1, b"all of you");
    fixture.client().produce("orders", one.clone());
    for consumer in &mut consumers {
        assert_eq!(consumer.receive_fetched().1.len(), one.len());
    }
    assert_eq!(fixture.broker.waiting(), Waiting::default());
}

#[test]
fn a_fetch_whose_client_has_gone_does_not_stay() {
    let fixture = Fixture::new();
    let mut consumer = fixture.client();
    consumer.create("orders");
    consumer.send_fetch("orders", 0, 60_000, 1);
    consumer.send_fetch("orders", 0, 60_000, 1); // Its next request lies behind it.
    fixture.wait_for(ONE_FETCH);
    drop(consumer);
    fixture.wait_for(Waiting::default());
    fixture.wait_for_end_of_connections();
    assert_eq!(fixture.timers(), 0);
}

#[test]
fn what_is_wrong_is_answered_at_once() {
    let fixture = Fixture::new();
    let mut consumer = fixture.client();
    consumer.send_fetch("nothing", 0, 60_000, 1);
    assert_eq!(consumer.receive_fetched().0, UNKNOWN_TOPIC);
    consumer.create("orders");
    consumer.send_fetch("orders", 1, 60_000, 1);
    assert_eq!(consumer.receive_fetched().0, OUT_OF_RANGE);
    consumer.send_fetch("orders", 0, 0, 1);
    assert_eq!(consumer.receive_fetched(), (0, bytes::Bytes::new()));
}

#[test]
fn the_usual_long_poll_sees_it_only_when_it_looks_again() {
    let mut terms = terms();
    terms.long_poll = LongPoll::Sleep { pause: 50 * MS };
    let fixture = Fixture::with(&terms, 10_000);
    let (mut consumer, mut producer) = (fixture.client(), fixture.client());
    producer.create("orders");
    consumer.send_fetch("orders", 0, 10_000, 1);
    fixture.wait_for_next_turn(|next| next <= 50 * MS); // It sleeps.
    producer.produce("orders", batch(1, b"late"));
    assert!(!consumer.has_answer());
    fixture.advance(50 * MS);
    assert!(!consumer.receive_fetched().1.is_empty());
}

#[test]
fn a_shutdown_answers_what_waits_and_closes() {
    let mut fixture = Fixture::new();
    let mut consumer = fixture.client();
    consumer.create("orders");
    consumer.send_fetch("orders", 0, 60_000, 1);
    consumer.send_fetch("orders", 0, 60_000, 1); // Nothing more is begun.
    let mut member = fixture.client();
    member.send_join("readers");
    fixture.wait_for(Waiting { joins: 1, sessions: 1, ..ONE_FETCH });
    fixture.shutdown();
    assert_eq!(consumer.receive_fetched(), (0, bytes::Bytes::new()));
    assert_eq!(member.receive_joined(), (NOT_COORDINATOR, -1));
    assert_eq!((consumer.frame(), member.frame()), (None, None));
    eventually(|| fixture.timers() == 0, || format!("{} timers", fixture.timers()));
}

#[test]
fn a_partition_that_is_named_again_and_again_counts_once() {
    let fixture = Fixture::new();
    let (mut consumer, mut producer) = (fixture.client(), fixture.client());
    producer.create("orders");
    let one = batch(1, b"x");
    producer.produce("orders", one.clone());
    consumer.send_fetch_of("orders", 60_000, &[(0, 0), (1, 0), (0, 1), (1, 0), (0, 1)]);
    // The last one of each counts: there is nothing new.
    fixture.wait_for(ONE_FETCH);
    producer.produce("orders", one.clone());
    let answers = consumer.receive_all_fetched();
    let lengths: Vec<_> = answers.iter().map(|(index, records)| (*index, records.len())).collect();
    assert_eq!(lengths, [(0, one.len()), (1, 0)]);
}

#[test]
fn who_names_more_partitions_than_any_client_has_is_not_served() {
    let fixture = Fixture::new();
    let mut consumer = fixture.client();
    consumer.create("orders");
    consumer.send_fetch_of("orders", 60_000, &vec![(0, 0); 19_000]);
    fixture.wait_for(ONE_FETCH);
    let mut glutton = fixture.client();
    glutton.send_fetch_of("orders", 60_000, &vec![(0, 0); 21_000]);
    assert_eq!(glutton.frame(), None);
}
