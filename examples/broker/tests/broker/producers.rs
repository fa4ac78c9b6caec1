//! Producers: those that are idempotent are known again, and none begins a transaction.

use crate::client::{Client, batch, changed, sequenced};
use crate::fixture::{Fixture, MS, NS, terms};
use kafka_protocol::messages::{
    ApiKey, FindCoordinatorRequest, InitProducerIdRequest, ProduceRequest, ResponseKind,
    TransactionalId,
};
use std::time::Duration;

const OUT_OF_ORDER: i16 = 45;
const INVALID_EPOCH: i16 = 47;
const NO_TRANSACTIONS: i16 = 53;
const INVALID_RECORD: i16 = 87;
const INVALID_REQUEST: i16 = 42;
const INVALID_REQUIRED_ACKS: i16 = 21;

fn producer(fixture: &Fixture) -> Client {
    let mut producer = fixture.client();
    producer.create("orders");
    producer
}

#[test]
fn a_batch_that_is_sent_again_is_not_appended_again() {
    let fixture = Fixture::new();
    let mut producer = producer(&fixture);
    let mut send =
        |first, records| producer.produce("orders", sequenced(&batch(records, b"x"), 7, 0, first));
    assert_eq!(send(0, 3), (0, 0));
    assert_eq!(send(0, 3), (0, 0));
    assert_eq!(send(3, 2), (0, 3));
    assert_eq!((send(0, 3), send(3, 2)), ((0, 0), (0, 3)));
    // One that is missing in between, and one that is neither known nor next.
    assert_eq!((send(6, 1), send(4, 1)), ((OUT_OF_ORDER, -1), (OUT_OF_ORDER, -1)));
    // Five are known; the sixth last is not.
    for first in 5..10 {
        assert_eq!(send(first, 1), (0, i64::from(first)));
    }
    assert_eq!((send(5, 1), send(3, 2)), ((0, 5), (OUT_OF_ORDER, -1)));
    let unknown = batch(1, b"x"); // Of a producer that is not idempotent.
    assert_eq!(producer.produce("orders", unknown.clone()), (0, 10));
    assert_eq!(producer.produce("orders", unknown), (0, 11));
}

#[test]
fn a_new_epoch_begins_at_zero_and_an_old_one_is_over() {
    let fixture = Fixture::new();
    let mut producer = producer(&fixture);
    let mut send =
        |epoch, first| producer.produce("orders", sequenced(&batch(1, b"x"), 7, epoch, first));
    assert_eq!(send(1, 0), (0, 0));
    assert_eq!((send(0, 1), send(2, 1)), ((INVALID_EPOCH, -1), (OUT_OF_ORDER, -1)));
    assert_eq!((send(2, 0), send(1, 1)), ((0, 1), (INVALID_EPOCH, -1)));
}

#[test]
fn after_the_last_number_comes_zero() {
    let fixture = Fixture::new();
    let mut producer = producer(&fixture);
    let mut send = |first| producer.produce("orders", sequenced(&batch(3, b"x"), 7, 0, first));
    assert_eq!(send(i32::MAX - 1), (0, 0)); // The last but one, the last, zero.
    assert_eq!((send(1), send(i32::MAX - 1)), ((0, 3), (0, 0)));
}

#[test]
fn a_producer_is_forgotten_after_a_day() {
    let fixture = Fixture::new();
    let mut producer = producer(&fixture);
    let day = Duration::from_secs(24 * 60 * 60);
    let again = sequenced(&batch(1, b"x"), 7, 0, 5);
    assert_eq!(producer.produce("orders", again.clone()), (0, 0));
    drop(producer);
    fixture.wait_for_end_of_connections();
    fixture.advance(day - NS);
    assert_eq!(fixture.client().produce("orders", again.clone()), (0, 0));
    fixture.wait_for_end_of_connections();
    fixture.advance(day + MS); // From when it wrote last; a tick more, as it was on none.
    assert_eq!(fixture.timers(), 0);
    assert_eq!(fixture.client().produce("orders", again), (0, 1));
}

#[test]
fn the_producers_that_wrote_the_longest_time_ago_make_room() {
    let mut terms = terms();
    terms.limits.max_producers = 10;
    let fixture = Fixture::with(&terms, 10_000);
    let mut producer = producer(&fixture);
    let mut send = |id| {
        fixture.advance(NS);
        producer.produce("orders", sequenced(&batch(1, b"x"), id, 0, 5)).1
    };
    for id in 0..10 {
        assert_eq!(send(id), id);
    }
    assert_eq!((send(0), send(1)), (0, 1)); // Known, and now the latest.
    assert_eq!(send(10), 10); // Two go: a tenth of them, and one.
    assert_eq!((send(0), send(1), send(4), send(10)), (0, 1, 4, 10));
    assert_eq!((send(2), send(3)), (11, 12));
    assert!(fixture.timers() <= 12, "{}", fixture.timers());
}

#[test]
fn who_begins_a_transaction_is_refused_at_once() {
    let fixture = Fixture::new();
    let mut client = producer(&fixture);
    let name = || Some(TransactionalId(crate::client::text("transfer")));
    let body = InitProducerIdRequest::default().with_transactional_id(name());
    match client.call(ApiKey::InitProducerId, 1, &body.into()) {
        ResponseKind::InitProducerId(response) => {
            assert_eq!((response.error_code, response.producer_id.0), (NO_TRANSACTIONS, -1));
        }
        other => panic!("{other:?}"),
    }
    for (key_type, code) in [(0, 0), (1, NO_TRANSACTIONS), (2, INVALID_REQUEST)] {
        let body = FindCoordinatorRequest::default().with_key_type(key_type);
        match client.call(ApiKey::FindCoordinator, 2, &body.into()) {
            ResponseKind::FindCoordinator(response) => assert_eq!(response.error_code, code),
            other => panic!("{other:?}"),
        }
    }
    let one = batch(1, b"x");
    for (attributes, code) in [(1 << 4, NO_TRANSACTIONS), (1 << 5, INVALID_RECORD)] {
        let bad = changed(&one, |batch| batch[22] = attributes);
        assert_eq!(client.produce("orders", bad), (code, -1));
    }
    let whole = |request: ProduceRequest| request.with_transactional_id(name());
    client.send_produce_with("orders", one, whole);
    assert_eq!(client.receive_produced(), (NO_TRANSACTIONS, -1));
}

#[test]
fn acks_that_mean_nothing_are_refused() {
    let fixture = Fixture::new();
    let mut client = producer(&fixture);
    for acks in [i16::MIN, -2, 2, i16::MAX] {
        client.send_produce("orders", acks, 1000, batch(1, b"x"));
        assert_eq!(client.receive_produced(), (INVALID_REQUIRED_ACKS, -1), "{acks}");
    }
    assert_eq!(client.produce("orders", batch(1, b"x")), (0, 0));
}
