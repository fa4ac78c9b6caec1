//! What may be appended, and what is read.

use crate::client::batch;
use crate::fixture::{Fixture, terms};
use bytes::{Bytes, BytesMut};

const CORRUPT: i16 = 2;
const OLD_FORMAT: i16 = 43;
const INVALID_RECORD: i16 = 87;
const OUT_OF_RANGE: i16 = 1;

#[test]
fn a_batch_that_is_not_in_order_is_refused() {
    let fixture = Fixture::new();
    let mut producer = fixture.client();
    producer.create("orders");
    let good = batch(2, b"good");
    let changed = |place: usize, value: u8| {
        let mut bad = BytesMut::from(&good[..]);
        bad[place] = value;
        bad.freeze()
    };
    let twice = Bytes::from([&good[..], &good[..]].concat());
    for (bad, code) in [
        (Bytes::new(), CORRUPT),
        (good.slice(..60), CORRUPT),
        (changed(16, 1), OLD_FORMAT),
        (changed(17, good[17] ^ 1), CORRUPT),
        (changed(good.len() - 1, b'D'), CORRUPT),
        (changed(11, 0), INVALID_RECORD),
        (changed(8, 0x80), INVALID_RECORD),
        (twice, INVALID_RECORD),
        (batch(0, b""), INVALID_RECORD),
    ] {
        assert_eq!(producer.produce("orders", bad), (code, -1));
    }
    assert_eq!(producer.produce("orders", good), (0, 0));
}

#[test]
fn a_fetch_begins_with_the_batch_that_has_its_offset() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    let sizes: Vec<usize> = (1..=3)
        .map(|number| {
            let one = batch(10, &vec![b'x'; number]);
            client.produce("orders", one.clone());
            one.len()
        })
        .collect();
    for (offset, first) in [(0, 0), (9, 0), (10, 1), (29, 2)] {
        client.send_fetch("orders", offset, 0, 1);
        let (code, records) = client.receive_fetched();
        assert_eq!((code, records.len()), (0, sizes[first..].iter().sum()));
        let base = i64::from_be_bytes(records[..8].try_into().expect("eight bytes"));
        assert_eq!(base, first as i64 * 10);
    }
    client.send_fetch("orders", 30, 0, 1);
    assert_eq!(client.receive_fetched(), (0, Bytes::new()));
}

#[test]
fn the_oldest_batches_go_when_a_partition_is_full() {
    let mut terms = terms();
    terms.limits.max_partition_bytes = 1000;
    let fixture = Fixture::with(&terms, 10_000);
    let mut client = fixture.client();
    client.create("orders");
    for number in 0..100 {
        assert_eq!(client.produce("orders", batch(1, &[b'x'; 100])), (0, number));
    }
    client.send_fetch("orders", 0, 1000, 1);
    assert_eq!(client.receive_fetched().0, OUT_OF_RANGE);
    client.send_fetch("orders", 99, 1000, 1);
    assert_eq!(client.receive_fetched().0, 0);
}
