//! Memory: one budget for what all connections take, and what becomes of those who ask for more.

use crate::client::{Client, MIB, batch, encoded, framed};
use crate::fixture::{Fixture, MS, NS, eventually, terms};
use bytes::Bytes;
use kafka_protocol::messages::{ApiKey, HeartbeatRequest};
use std::io::{Read, Write};
use tickwheel_broker::Waiting;

const COORDINATOR_NOT_AVAILABLE: i16 = 15;

fn fixture(max_memory: usize) -> Fixture {
    let mut terms = terms();
    terms.limits.max_memory = max_memory;
    terms.limits.max_message = MIB;
    terms.limits.max_frame = 2 * MIB;
    terms.limits.max_partition_bytes = 64 * MIB as u64;
    Fixture::with(&terms, 10_000)
}

fn wait_for_memory(fixture: &Fixture, holds: impl Fn(usize) -> bool) {
    eventually(|| holds(fixture.broker.memory()), || format!("{}", fixture.broker.memory()));
}

#[test]
fn when_answers_lie_unread_further_ones_are_put_off() {
    let fixture = fixture(24 * MIB);
    let mut producer = fixture.client();
    producer.create("orders");
    producer.produce_mebibytes("orders", 24);
    wait_for_memory(&fixture, |taken| taken == 0);
    let mut idler = fixture.client();
    idler.send_fetch("orders", 0, 0, 1);
    wait_for_memory(&fixture, |taken| taken == 24 * MIB);

    let mut consumer = fixture.client();
    consumer.send_fetch("orders", 0, 60_000, 1);
    let response = consumer.receive_fetch();
    let answer = &response.responses[0].partitions[0];
    assert_eq!(
        (response.throttle_time_ms, answer.error_code, answer.high_watermark),
        (1000, 0, 24)
    );
    assert!(answer.records.as_ref().is_none_or(Bytes::is_empty));
    // Who does not heed it waits all the same.
    consumer.send_fetch("orders", 0, 0, 1);
    fixture.wait_for_next_turn(|next| next <= 1000 * MS);
    fixture.advance(1000 * MS - NS);
    assert!(!consumer.has_answer());
    // Small requests with small answers go on.
    assert_eq!(producer.produce("orders", batch(1, b"small")), (0, 24));
    producer.send_fetch("orders", 24, 60_000, 1);
    assert_eq!(producer.receive_fetched().1.len(), batch(1, b"small").len());

    assert_eq!(idler.receive_fetched().1.len(), 24 * MIB);
    wait_for_memory(&fixture, |taken| taken == 0);
    fixture.advance(NS);
    assert!(consumer.receive_fetched().1.len() >= 23 * MIB);
}

#[test]
fn when_there_is_room_for_a_little_a_little_is_answered() {
    let fixture = fixture(26 * MIB);
    let mut producer = fixture.client();
    producer.create("orders");
    producer.produce_mebibytes("orders", 24);
    let mut idler = fixture.client();
    idler.send_fetch("orders", 0, 0, 1);
    wait_for_memory(&fixture, |taken| taken == 24 * MIB);
    producer.send_fetch("orders", 0, 0, 1);
    let (code, records) = producer.receive_fetched();
    assert_eq!((code, records.len()), (0, MIB)); // One batch, which is more than a little.
}

#[test]
fn an_answer_of_another_kind_that_there_is_no_room_for_closes_its_connection() {
    let mut terms = terms();
    terms.partitions = 1000;
    terms.limits.max_memory = 4 * MIB;
    let fixture = Fixture::with(&terms, 10_000);
    let mut client = fixture.client();
    assert_eq!(client.create("orders").topics[0].partitions.len(), 1000);
    let mut halves = [0; 4].map(|_| fixture.client());
    for half in &mut halves {
        half.stream.write_all(&(MIB as u32).to_be_bytes()).expect("an open connection");
    }
    wait_for_memory(&fixture, |taken| taken == 4 * MIB);
    client.send_create("orders");
    assert_eq!(client.frame(), None);
    drop(halves);
    wait_for_memory(&fixture, |taken| taken == 0);
    fixture.client().create("orders");
}

/// Sends half a frame, at whose end is no request of ours, so that it is closed and not answered.
fn half_a_frame(client: &mut Client) {
    let mut frame = (2 * MIB as u32).to_be_bytes().to_vec();
    frame.extend([0; 100]);
    client.stream.write_all(&frame).expect("an open connection");
}

#[test]
fn when_requests_are_half_there_others_are_read_later() {
    let fixture = fixture(4 * MIB);
    let mut producer = fixture.client();
    producer.create("orders");
    let mut halves = [fixture.client(), fixture.client()];
    halves.iter_mut().for_each(half_a_frame);
    wait_for_memory(&fixture, |taken| taken == 4 * MIB);
    let mut waiting = fixture.client();
    waiting.send_produce("orders", 1, 1000, batch(1, &vec![b'x'; 100_000]));
    for _ in 0..10 {
        assert_eq!(producer.produce("orders", batch(1, b"small")).0, 0);
    }
    assert!(!waiting.has_answer());
    let [one, mut other] = halves;
    drop(one);
    assert_eq!(waiting.receive_produced(), (0, 10));
    // Nothing comes of the other: its room is given back, too.
    fixture.wait_for_next_turn(|next| next <= 30_000 * MS);
    fixture.advance(30_000 * MS);
    assert_eq!(other.frame(), None);
    wait_for_memory(&fixture, |taken| taken == 0);
}

#[test]
fn what_members_bring_along_is_counted_as_long_as_they_are_members() {
    let fixture = fixture(2 * MIB);
    let mut members = [fixture.client(), fixture.client(), fixture.client()];
    let metadata = Bytes::from(vec![b'x'; 600 << 10]);
    members[0].send_join_with("first", metadata.clone());
    // Until a request is read it takes room itself: two at once would not fit.
    fixture.wait_for(Waiting { joins: 1, sessions: 1, ..Waiting::default() });
    members[1].send_join_with("second", metadata.clone());
    fixture.wait_for(Waiting { joins: 2, sessions: 2, ..Waiting::default() });
    wait_for_memory(&fixture, |taken| (1200 << 10..1300 << 10).contains(&taken));
    members[2].send_join_with("third", metadata.clone());
    assert_eq!(members[2].receive_joined(), (COORDINATOR_NOT_AVAILABLE, -1));
    drop(members);
    fixture.wait_for_end_of_connections();
    fixture.advance(100 * MS); // The first rebalance ends, and they have gone.
    wait_for_memory(&fixture, |taken| taken == 0);
    let mut member = fixture.client();
    member.send_join_with("third", metadata);
    fixture.wait_for(Waiting { joins: 1, sessions: 1, ..Waiting::default() });
}

#[test]
fn requests_that_pile_up_behind_an_unread_answer_take_nothing() {
    let fixture = fixture(24 * MIB);
    let mut producer = fixture.client();
    producer.create("orders");
    producer.produce_mebibytes("orders", 24);
    let mut glutton = fixture.client();
    glutton.send_fetch("orders", 0, 0, 1);
    let more = framed(&encoded(ApiKey::Heartbeat, 2, &HeartbeatRequest::default().into()));
    let mut reader = glutton.stream.try_clone().expect("a socket");
    let sender = std::thread::spawn(move || {
        for _ in 0..100_000 {
            glutton.stream.write_all(&more).expect("an open connection");
        }
    });
    wait_for_memory(&fixture, |taken| taken == 24 * MIB);
    let mut answers = 0_u64;
    let mut length = [0; 4];
    while answers < 100_001 {
        reader.read_exact(&mut length).expect("an answer");
        let length = u64::from(u32::from_be_bytes(length));
        let read = std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink());
        assert_eq!(read.expect("an answer"), length);
        answers += 1;
    }
    sender.join().expect("it has sent all");
    wait_for_memory(&fixture, |taken| taken == 0);
}
