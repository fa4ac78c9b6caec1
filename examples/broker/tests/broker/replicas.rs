//! `acks=all`, and the follower.

use crate::client::{Client, batch};
use crate::fixture::{Fixture, MS, NS, terms};
use std::time::Duration;
use tickwheel_broker::{Pace, Waiting};

const ALL: i16 = -1;
const OUT_OF_RANGE: i16 = 1;
const NOT_ENOUGH_REPLICAS: i16 = 19;
const REQUEST_TIMED_OUT: i16 = 7;
const ONE_PRODUCE: Waiting = Waiting { fetches: 0, produces: 1, joins: 0, sessions: 0 };

fn producer(fixture: &Fixture) -> Client {
    let mut producer = fixture.client();
    producer.create("orders");
    producer
}

#[test]
fn acks_all_waits_for_a_slow_follower() {
    let mut terms = terms();
    terms.follower_lag = 300 * MS;
    let fixture = Fixture::with(&terms, 10_000);
    let mut producer = producer(&fixture);
    producer.send_produce("orders", ALL, 1000, batch(2, b"slow"));
    fixture.wait_for(ONE_PRODUCE);
    fixture.advance(300 * MS - NS);
    assert_eq!(fixture.broker.waiting(), ONE_PRODUCE);
    fixture.advance(NS);
    assert_eq!(producer.receive_produced(), (0, 0));
}

#[test]
fn a_stopped_follower_makes_acks_all_time_out_and_recovers() {
    let fixture = Fixture::new();
    let mut producer = producer(&fixture);
    fixture.broker.set_follower(Pace::Stopped);
    producer.send_produce("orders", ALL, 1000, batch(2, b"stopped"));
    fixture.wait_for(ONE_PRODUCE);
    fixture.advance(1000 * MS - NS);
    assert_eq!(fixture.broker.waiting(), ONE_PRODUCE);
    fixture.advance(NS);
    assert_eq!(producer.receive_produced(), (REQUEST_TIMED_OUT, -1));

    // It lies in the log, but no consumer sees it before the follower has it.
    producer.send_fetch("orders", 0, 0, 1);
    assert!(producer.receive_fetched().1.is_empty());
    let mut consumer = fixture.client();
    consumer.send_fetch("orders", 0, 60_000, 1);
    fixture.wait_for(Waiting { fetches: 1, ..Waiting::default() });
    fixture.broker.set_follower(Pace::Running { lag: Duration::ZERO });
    assert!(!consumer.receive_fetched().1.is_empty());
    producer.send_produce("orders", ALL, 1000, batch(1, b"again"));
    assert_eq!(producer.receive_produced(), (0, 2));
}

#[test]
fn acks_1_waits_for_nobody_and_acks_0_hears_nothing() {
    let fixture = Fixture::new();
    let mut producer = producer(&fixture);
    fixture.broker.set_follower(Pace::Stopped);
    assert_eq!(producer.produce("orders", batch(1, b"one")), (0, 0));
    producer.send_produce("orders", 0, 1000, batch(1, b"none"));
    // The next answer belongs to the next request.
    assert_eq!(producer.produce("orders", batch(1, b"one")), (0, 2));
}

#[test]
fn what_the_follower_lacks_stays_though_the_log_is_full() {
    let mut terms = terms();
    terms.limits.max_partition_bytes = 1000;
    let fixture = Fixture::with(&terms, 10_000);
    let mut producer = producer(&fixture);
    let one = batch(1, &[b'x'; 139]); // 200 bytes.
    assert_eq!(producer.produce("orders", one.clone()), (0, 0));
    fixture.broker.set_follower(Pace::Stopped);
    for number in 1..=5 {
        assert_eq!(producer.produce("orders", one.clone()), (0, number));
    }
    assert_eq!(producer.produce("orders", one.clone()), (NOT_ENOUGH_REPLICAS, -1));
    // A consumer at the high watermark waits; it is not out of range.
    let mut consumer = fixture.client();
    consumer.send_fetch("orders", 1, 60_000, 1);
    fixture.wait_for(Waiting { fetches: 1, ..Waiting::default() });
    fixture.broker.set_follower(Pace::Running { lag: Duration::ZERO });
    assert_eq!(consumer.receive_fetched().0, 0);
    assert_eq!(producer.produce("orders", one), (0, 6));
    consumer.send_fetch("orders", 0, 0, 1);
    assert_eq!(consumer.receive_fetched().0, OUT_OF_RANGE);
}
