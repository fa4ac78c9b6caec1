//! A fuzzer in virtual time: every request in every version, changed at random, for some seconds.
//! The broker stays there, serves others, and when it is over nothing is left that waits.

use crate::client::{Client, MIB, batch, encoded, name, text};
use crate::fixture::{Fixture, eventually, terms};
use crate::noise::{Noise, mutated};
use crate::versions::{ALL, full};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ApiKey, GroupId, JoinGroupRequest, ProduceRequest};
use std::io::Write;
use std::time::{Duration, Instant};

/// How long it goes on, in each of its threads.
const SECONDS: u64 = 3;
const THREADS: u64 = 2;
/// What the process may take in addition: the budget, and what the log may hold.
const GROWTH: usize = 256 * MIB;

/// Returns what clients send: every request in every version, and those that change something.
fn frames() -> Vec<Bytes> {
    let mut frames: Vec<Bytes> = ALL
        .iter()
        .flat_map(|(key, oldest, newest)| (*oldest..=*newest).map(move |version| (*key, version)))
        .map(|(key, version)| encoded(key, version, &full(key, version)).freeze())
        .collect();
    for version in [7, 9, 12] {
        let records = batch(3, b"some records of a producer");
        let data = PartitionProduceData::default().with_records(Some(records));
        let topic = TopicProduceData::default().with_name(name("orders"));
        let topics = vec![topic.with_partition_data(vec![data])];
        let body = ProduceRequest::default().with_acks(-1).with_timeout_ms(10);
        frames
            .push(encoded(ApiKey::Produce, version, &body.with_topic_data(topics).into()).freeze());
    }
    for version in [3, 9] {
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
        let body = JoinGroupRequest::default()
            .with_group_id(GroupId(text("readers")))
            .with_session_timeout_ms(10_000)
            .with_protocols(vec![protocol.with_metadata(Bytes::from_static(b"metadata"))]);
        frames.push(encoded(ApiKey::JoinGroup, version, &body.into()).freeze());
    }
    frames
}

/// Returns how many frames it has sent.
fn attack(fixture: &Fixture, seed: u64) -> u64 {
    let (mut noise, frames) = (Noise::new(seed), frames());
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        let mut client = fixture.client();
        client.stream.set_nodelay(true).expect("a socket");
        for _ in 0..=noise.below(50) {
            let frame = mutated(&frames, &mut noise);
            if client.stream.write_all(&frame).is_err() {
                break; // It was closed, as it may be.
            }
            sent += 1;
        }
        if noise.below(2) == 0 {
            // Reads what it is answered, until there is nothing more: what waits is given up.
            let _ = client.stream.set_read_timeout(Some(Duration::from_millis(5)));
            let _ = std::io::copy(&mut client.stream, &mut std::io::sink());
        }
    }
    sent
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).expect("a number").parse::<usize>().expect("a number") << 10
}

#[test]
fn frames_that_are_changed_at_random_do_no_harm() {
    let mut terms = terms();
    terms.limits.max_topics = 100;
    let fixture = Fixture::with(&terms, 10_000);
    let mut witness: Client = fixture.client();
    witness.create("orders");
    let before = resident();
    let sent: u64 = std::thread::scope(|scope| {
        let fixture = &fixture;
        let attackers: Vec<_> =
            (0..THREADS).map(|seed| scope.spawn(move || attack(fixture, seed + 1))).collect();
        while attackers.iter().any(|attacker| !attacker.is_finished()) {
            // A health check, while it goes on.
            witness.create("orders");
            std::thread::sleep(Duration::from_millis(50));
        }
        attackers.into_iter().map(|attacker| attacker.join().expect("it has ended")).sum()
    });
    let growth = resident().saturating_sub(before);
    assert!(growth < GROWTH, "{} MiB more after {sent} frames", growth / MIB);
    assert_eq!(witness.create("orders").topics[0].error_code, 0);
    drop(witness);
    fixture.wait_for_end_of_connections();
    // What is left has a time: sessions, groups that rebalance, producers.
    fixture.advance(Duration::from_secs(1_800));
    fixture.advance(Duration::from_secs(24 * 60 * 60));
    eventually(|| fixture.timers() == 0, || format!("{} timers", fixture.timers()));
    let idle = fixture.polls();
    std::thread::sleep(Duration::from_millis(300));
    let polls = fixture.polls() - idle;
    assert!(polls < 100, "it turns {polls} times with nothing to do");
    assert!(sent > 1000, "{sent} frames");
}
