//! Limits: what is beyond them is refused, and the rest goes on.

use crate::client::batch;
use crate::fixture::{Fixture, MS, NS, terms};
use std::io::Write;
use std::time::Duration;
use tickwheel_broker::Waiting;

const TOPIC_AUTHORIZATION_FAILED: i16 = 29;
const MESSAGE_TOO_LARGE: i16 = 10;
const INVALID_TOPIC: i16 = 17;

#[test]
fn a_connection_too_many_is_closed() {
    let mut terms = terms();
    terms.limits.max_connections = 2;
    let fixture = Fixture::with(&terms, 10_000);
    let (mut first, mut second) = (fixture.client(), fixture.client());
    first.create("orders");
    second.create("orders");
    assert_eq!(fixture.client().frame(), None);
    drop(first);
    second.create("orders");
    crate::fixture::eventually(|| fixture.broker.connections() == 1, || "2 are left".to_owned());
    fixture.client().create("orders");
}

#[test]
fn when_as_many_wait_as_may_no_connection_more_is_served() {
    // A connection has a timer while it waits for a request, and its request has one when it waits.
    let fixture = Fixture::with(&terms(), 3);
    let mut consumers = [fixture.client(), fixture.client(), fixture.client()];
    consumers[0].create("orders");
    for (place, consumer) in consumers.iter_mut().enumerate() {
        consumer.send_fetch("orders", 0, 60_000, 1);
        fixture.wait_for(Waiting { fetches: place + 1, ..Waiting::default() });
    }
    assert_eq!(fixture.client().frame(), None);
    let [first, rest @ ..] = consumers;
    drop(first);
    fixture.wait_for(Waiting { fetches: 2, ..Waiting::default() });
    fixture.client().create("others");
    assert_eq!(fixture.broker.waiting().fetches, 2);
    drop(rest);
}

#[test]
fn when_as_many_wait_as_may_a_request_is_answered_at_once() {
    let fixture = Fixture::with(&terms(), 1);
    let mut client = fixture.client();
    // Its session is the one timer, so its join can't wait: not even for the first rebalance.
    client.send_join("readers");
    assert_eq!(client.receive_joined(), (0, 1));
    // No timer is left for the connection.
    assert_eq!(client.frame(), None);
}

#[test]
fn topics_are_not_made_without_end() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut code = |topic: &str| client.create(topic).topics[0].error_code;
    for number in 0..10 {
        assert_eq!(code(&format!("topic-{number}")), 0);
    }
    assert_eq!(code("one-more"), TOPIC_AUTHORIZATION_FAILED);
    assert_eq!(code("topic-0"), 0);
    for bad in ["", ".", "..", "a b", "ü", &"x".repeat(250)] {
        assert_eq!(code(bad), INVALID_TOPIC);
    }
}

#[test]
fn half_a_frame_is_given_half_a_minute() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.stream.write_all(&[0, 0, 0, 100, 0]).expect("an open connection");
    // The time for a frame is far shorter than the idle time, which it takes the place of.
    let limit = Duration::from_secs(30);
    fixture.wait_for_next_turn(|next| next <= limit);
    fixture.advance(limit - NS);
    assert_eq!((fixture.timers(), client.has_answer()), (1, false));
    fixture.advance(NS);
    assert_eq!(client.frame(), None);
    fixture.wait_for_end_of_connections();
    assert_eq!(fixture.timers(), 0);
}

#[test]
fn who_says_nothing_for_ten_minutes_is_closed() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // Until only the idle time runs: all others are of half a minute at most.
    let is_idle = |next| next > Duration::from_secs(60);
    client.create("orders");
    fixture.wait_for_next_turn(is_idle);
    fixture.advance(Duration::from_secs(600) - NS);
    assert_eq!(client.produce("orders", batch(1, b"alive")), (0, 0));
    fixture.wait_for_next_turn(is_idle);
    fixture.advance(Duration::from_secs(600) + MS); // A tick, because it is not on one.
    assert_eq!(client.frame(), None);
}

#[test]
fn a_batch_that_is_too_large_is_refused_and_its_connection_goes_on() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    let of_size = |size| batch(1, &vec![b'x'; size - batch(1, b"").len()]);
    assert_eq!(client.produce("orders", of_size((1 << 16) + 1)), (MESSAGE_TOO_LARGE, -1));
    assert_eq!(client.produce("orders", of_size(1 << 16)), (0, 0));
}
