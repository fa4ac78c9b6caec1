//! Slow clients: who gets on is served, however slow; who stands still is not.

use crate::client::{Client, MIB, batch, framed};
use crate::fixture::{Fixture, MS, terms};
use std::io::{Read, Write};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn fixture() -> Fixture {
    let mut terms = terms();
    terms.limits.max_memory = 64 * MIB;
    terms.limits.max_message = 2 * MIB;
    terms.limits.max_frame = 2 * MIB;
    terms.limits.max_partition_bytes = 64 * MIB as u64;
    Fixture::with(&terms, 10_000)
}

/// Sends a part, and lets time pass when the broker has some of it.
fn trickle(fixture: &Fixture, client: &mut Client, part: &[u8], delay: Duration) {
    client.stream.write_all(part).expect("an open connection");
    fixture.wait_for_next_turn(|next| next > 25 * SECOND && next <= 30 * SECOND);
    fixture.advance(delay);
}

#[test]
fn a_frame_that_comes_slowly_but_steadily_is_taken() {
    let fixture = fixture();
    let mut client = fixture.client();
    client.create("orders");
    client.send_produce("orders", 1, 1000, batch(1, &vec![b'x'; MIB]));
    assert_eq!(client.receive_produced(), (0, 0));
    let mut slow = fixture.client();
    let whole = slow.produce_frame("orders", batch(1, &vec![b'x'; MIB]));
    let (most, rest) = whole.split_at(whole.len() - 1);
    for part in most.chunks(whole.len() / 3 + 1) {
        trickle(&fixture, &mut slow, part, 20 * SECOND);
    }
    slow.stream.write_all(rest).expect("an open connection");
    assert_eq!(slow.receive_produced(), (0, 1));
}

#[test]
fn a_frame_of_which_too_little_comes_is_not_waited_for() {
    let fixture = fixture();
    let mut client = fixture.client();
    let frame = framed(&vec![0; 160 << 10]); // Ten seconds for it, and half a minute.
    trickle(&fixture, &mut client, &frame[..20_000], 20 * SECOND);
    client.stream.write_all(&frame[..1]).expect("an open connection");
    fixture.wait_for_next_turn(|next| next > 15 * SECOND && next <= 20 * SECOND);
    fixture.advance(20 * SECOND + MS);
    assert_eq!(client.frame(), None);
}

#[test]
fn an_answer_that_is_read_slowly_but_steadily_is_sent() {
    let fixture = fixture();
    let mut client = fixture.client();
    client.create("orders");
    client.produce_mebibytes("orders", 48);
    client.send_fetch("orders", 0, 0, 1);
    let mut length = [0; 4];
    client.stream.read_exact(&mut length).expect("an answer");
    let mut left = u32::from_be_bytes(length) as usize;
    let mut part = vec![0; 8 * MIB];
    while left > 0 {
        let step = left.min(part.len());
        client.stream.read_exact(&mut part[..step]).expect("the answer goes on");
        left -= step;
        if left > 16 * MIB {
            fixture.wait_for_next_turn(|next| next > 25 * SECOND && next <= 30 * SECOND);
            fixture.advance(20 * SECOND);
        }
    }
    client.create("orders");
}

#[test]
fn an_answer_that_nobody_reads_is_given_half_a_minute() {
    let fixture = fixture();
    let mut client = fixture.client();
    client.create("orders");
    client.produce_mebibytes("orders", 48);
    client.send_fetch("orders", 0, 0, 1);
    // Until what the sockets take is written, and nothing more goes.
    let mut before = usize::MAX;
    while before != fixture.broker.memory() || before == 0 {
        before = fixture.broker.memory();
        std::thread::sleep(50 * MS);
    }
    fixture.wait_for_next_turn(|next| next > 25 * SECOND && next <= 30 * SECOND);
    std::thread::sleep(50 * MS);
    fixture.advance(30 * SECOND + MS);
    fixture.wait_for_end_of_connections();
    assert_eq!((fixture.broker.memory(), fixture.timers()), (0, 0));
}
