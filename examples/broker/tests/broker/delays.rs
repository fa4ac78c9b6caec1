//! Delayed records: a header says when consumers may see them.

use crate::client::{Client, batch, sequenced};
use crate::fixture::{Fixture, NS, terms};
use bytes::Bytes;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel_broker::{Pace, Waiting, delayed, delivery_times};

const ONE_FETCH: Waiting = Waiting { fetches: 1, produces: 0, joins: 0, sessions: 0 };
const OUT_OF_RANGE: i16 = 1;
const HELD_ENOUGH: i16 = 89;
const INVALID_TIMESTAMP: i16 = 32;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the time so long from now, as a header has it: the test takes less than `SLACK`.
fn after(delay: Duration) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    (now + delay).as_millis() as i64
}

const SLACK: Duration = Duration::from_secs(600);

fn times(client: &mut Client, offset: i64) -> Vec<i64> {
    client.send_fetch("orders", offset, 0, 1);
    let (code, records) = client.receive_fetched();
    assert_eq!(code, 0);
    delivery_times(&records)
}

#[test]
fn a_record_is_held_back_until_its_time_and_wakes_who_waits_for_it() {
    let fixture = Fixture::new();
    let (mut producer, mut consumer) = (fixture.client(), fixture.client());
    producer.create("orders");
    let hour = after(Duration::from_secs(3600) + SLACK);
    assert_eq!(producer.produce("orders", delayed(&[hour], 0, b"later")), (0, -1));
    assert_eq!(producer.produce("orders", batch(1, b"now")), (0, 0));
    consumer.send_fetch("orders", 1, i32::MAX, 1);
    fixture.wait_for(ONE_FETCH);
    fixture.advance(Duration::from_secs(3600));
    assert_eq!(fixture.broker.waiting(), ONE_FETCH);
    fixture.advance(2 * SLACK);
    let (code, records) = consumer.receive_fetched();
    assert_eq!((code, delivery_times(&records)), (0, vec![hour]));
}

#[test]
fn records_come_in_the_order_of_their_times() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    let past = after(Duration::ZERO) - 1000;
    let [one, two, three] = [1, 2, 3].map(|days| after(days * DAY));
    assert_eq!(client.produce("orders", delayed(&[three, past, one], 0, b"x")), (0, 0));
    assert_eq!(client.produce("orders", delayed(&[two, one], 0, b"x")), (0, -1));
    assert_eq!(times(&mut client, 0), [past]);
    drop(client);
    fixture.wait_for_end_of_connections();
    fixture.advance(DAY + SLACK);
    assert_eq!(times(&mut fixture.client(), 1), [one, one]);
    fixture.wait_for_end_of_connections();
    fixture.advance(2 * DAY); // Two of them fall due between two turns.
    assert_eq!(times(&mut fixture.client(), 1), [one, one, two, three]);
    fixture.wait_for_end_of_connections();
    assert_eq!(fixture.timers(), 0);
}

#[test]
fn one_that_is_due_before_the_others_is_not_late_for_them() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    let [one, two] = [1, 2].map(|days| after(days * DAY));
    assert_eq!(client.produce("orders", delayed(&[two], 0, b"x")), (0, -1));
    assert_eq!(client.produce("orders", delayed(&[one], 0, b"x")), (0, -1));
    drop(client);
    fixture.wait_for_end_of_connections();
    fixture.advance(DAY + SLACK);
    assert_eq!(times(&mut fixture.client(), 0), [one]);
}

#[test]
fn one_that_is_sent_again_is_held_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    let time = after(DAY);
    let one = sequenced(&delayed(&[time], 0, b"x"), 7, 0, 0);
    assert_eq!(client.produce("orders", one.clone()), (0, -1));
    assert_eq!(client.produce("orders", one).0, 0);
    drop(client);
    fixture.wait_for_end_of_connections();
    fixture.advance(DAY + SLACK - NS);
    assert_eq!(times(&mut fixture.client(), 0), [time]);
}

#[test]
fn absurd_times_are_refused_or_mean_nothing() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.create("orders");
    for far in [i64::MAX, after(400 * DAY)] {
        let refused = client.produce("orders", delayed(&[far], 0, b"x"));
        assert_eq!(refused, (INVALID_TIMESTAMP, -1), "{far}");
    }
    assert_eq!(client.produce("orders", delayed(&[i64::MIN, -1, 0], 0, b"x")), (0, 0));
    // Half a record, and one whose header is no number.
    let whole = delayed(&[after(DAY)], 0, b"x");
    let text = whole.windows(10).position(|part| part == b"deliver-at").expect("a header");
    for (place, byte) in [(61, 0x7e), (text + 12, b'x'), (text - 1, 0xff), (text, b'D')] {
        let bad = crate::client::changed(&whole, |batch| batch[place] = byte);
        assert_eq!(client.produce("orders", bad).0, 0, "{place}");
    }
    assert_eq!(fixture.broker.waiting(), Waiting::default());
    client.send_fetch("orders", 0, 0, 1);
    assert_ne!(client.receive_fetched().1, Bytes::new());
}

#[test]
fn what_is_delivered_while_the_follower_stands_still_stays() {
    let mut terms = terms();
    terms.limits.max_partition_bytes = 1000;
    let fixture = Fixture::with(&terms, 10_000);
    let mut client = fixture.client();
    client.create("orders");
    fixture.broker.set_follower(Pace::Stopped);
    for number in 0..3 {
        assert_eq!(client.produce("orders", batch(1, &[b'x'; 130])), (0, number));
    }
    let time = after(DAY);
    assert_eq!(client.produce("orders", delayed(&[time; 6], 0, b"x")), (0, -1));
    assert_eq!(client.produce("orders", delayed(&[time; 6], 0, b"x")), (HELD_ENOUGH, -1));
    drop(client);
    fixture.wait_for_end_of_connections();
    fixture.advance(DAY + SLACK);
    // More than the log may have, but no consumer has seen any of it.
    assert!(times(&mut fixture.client(), 0).is_empty());
    fixture.broker.set_follower(Pace::Running { lag: Duration::ZERO });
    let mut client = fixture.client();
    client.send_fetch("orders", 0, 0, 1);
    assert_eq!(client.receive_fetched().0, OUT_OF_RANGE);
    assert_eq!(times(&mut client, 3), [time; 6]);
}
