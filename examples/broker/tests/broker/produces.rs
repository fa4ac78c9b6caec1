//! Produces: what is appended, who waits for the follower, and what is sent again.

use crate::world::*;
use tickwheel_broker::Waiting;

const OUT_OF_RANGE: i16 = 1;
const CORRUPT: i16 = 2;
const TIMED_OUT: i16 = 7;
const TOO_LARGE: i16 = 10;
const NOT_ENOUGH_REPLICAS: i16 = 19;
const INVALID_ACKS: i16 = 21;
const OUT_OF_ORDER: i16 = 45;
const OLD_EPOCH: i16 = 47;
const NO_TRANSACTIONS: i16 = 53;

fn world() -> World {
    let world = World::new();
    world.create("orders");
    world
}

#[test]
fn acks_decide_who_waits_for_the_follower() {
    let world = world();
    assert!(world.produce("orders", 0, batch(b"none")).wants_none());
    assert_eq!(world.produce("orders", 1, batch(b"one")).produced(), (0, 1));
    let mut all = world.produce("orders", -1, batch(b"all"));
    assert_eq!(world.broker.waiting(), Waiting { produces: 1, ..Waiting::default() });
    world.advance(LAG - NS);
    assert!(!all.is_answered());
    world.advance(NS);
    assert_eq!(all.produced(), (0, 2));
    assert_eq!(world.produce("orders", 2, batch(b"two")).produced(), (INVALID_ACKS, -1));
}

#[test]
fn what_the_follower_gets_too_late_is_timed_out_but_not_lost() {
    let world = world();
    let impatient = produce("orders", -1, batch(b"late")).with_timeout_ms(2);
    let mut all = world.ask(8, impatient);
    assert_eq!(world.fetch("orders", 0, 0).fetched(), (0, 0), "no consumer is to see it yet");
    world.advance(2 * MS - NS);
    assert!(!all.is_answered());
    world.advance(NS);
    assert_eq!(all.produced(), (TIMED_OUT, -1));
    world.advance(LAG - 2 * MS);
    assert_eq!(world.fetch("orders", 0, 1).fetched(), (0, batch(b"late").len()));
}

#[test]
fn what_is_sent_again_is_not_appended_again() {
    let world = world();
    let send = |epoch, sequence| world.append("orders", sequenced(b"x", 7, epoch, sequence));
    assert_eq!(send(0, 0), (0, 0));
    assert_eq!(send(0, 1), (0, 1));
    assert_eq!(send(0, 0), (0, 0));
    assert_eq!(send(0, 3), (OUT_OF_ORDER, -1));
    assert_eq!(send(0, 2), (0, 2));
    assert_eq!(send(1, 3), (OUT_OF_ORDER, -1));
    assert_eq!(send(1, 0), (0, 3));
    assert_eq!(send(0, 3), (OLD_EPOCH, -1));
    assert_eq!(world.fetch("orders", 0, 0).fetched().1, 4 * batch(b"x").len());
}

/// Each life of the broker gave the same ids, so a producer of the life before and a new one had
/// the same: what one of them sent was taken for a repetition of the other's, and lost.
#[test]
fn no_two_lives_give_a_producer_the_same_id() {
    let first_id = |world: &World| {
        let body = InitProducerIdRequest::default().with_transactional_id(None);
        let asked = world.ask(1, body);
        answered!(InitProducerId, asked.answer()).producer_id.0
    };
    let (before, now) = (first_id(&world()), world());
    let id = first_id(&now);
    assert_ne!(before, id);
    assert!(before > 0 && id > 0);
    assert_eq!(now.append("orders", sequenced(b"mine", id, 0, 0)), (0, 0));
    assert_eq!(now.append("orders", sequenced(b"yours", before, 0, 0)), (0, 1));
}

#[test]
fn whoever_begins_a_transaction_is_refused_at_once() {
    let world = world();
    let id = TransactionalId(text("transfer"));
    let init = InitProducerIdRequest::default().with_transactional_id(Some(id.clone()));
    let answer = answered!(InitProducerId, world.ask(1, init).answer());
    assert_eq!(answer.error_code, NO_TRANSACTIONS);
    let find = FindCoordinatorRequest::default().with_key(text("transfer")).with_key_type(1);
    let answer = answered!(FindCoordinator, world.ask(2, find).answer());
    assert_eq!(answer.error_code, NO_TRANSACTIONS);
    let produce = produce("orders", 1, batch(b"x")).with_transactional_id(Some(id));
    assert_eq!(world.ask(8, produce).produced(), (NO_TRANSACTIONS, -1));
}

#[test]
fn a_batch_that_is_too_large_or_corrupt_is_refused() {
    let world = world();
    assert_eq!(world.append("orders", batch(&vec![0; (1 << 20) - 100])).0, 0);
    assert_eq!(world.append("orders", batch(&vec![0; 1 << 20])).0, TOO_LARGE);
    let mut changed = batch(b"changed").to_vec();
    *changed.last_mut().expect("a batch") ^= 1;
    assert_eq!(world.append("orders", changed.into()).0, CORRUPT);
}

#[test]
fn the_oldest_batches_go_but_not_what_the_follower_lacks() {
    let world = world();
    let large = batch(&vec![0; 1_000_000]);
    for offset in 0..16 {
        assert_eq!(world.produce("orders", 1, large.clone()).produced(), (0, offset));
    }
    let refused = world.produce("orders", 1, large.clone()).produced();
    assert_eq!(refused, (NOT_ENOUGH_REPLICAS, -1));
    world.advance(LAG);
    for offset in 16..20 {
        assert_eq!(world.append("orders", large.clone()), (0, offset));
    }
    assert_eq!(world.fetch("orders", 3, 1).fetched().0, OUT_OF_RANGE);
    assert_eq!(world.fetch("orders", 4, 1).fetched(), (0, large.len()));
}
