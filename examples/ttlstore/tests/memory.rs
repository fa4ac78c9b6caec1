//! What keys and values may take.

mod common;

use common::{BOUNDS, Server, ask, told};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_ttlstore::memory::Policy;
use tickwheel_ttlstore::shared::Bounds;

const MIB: usize = 1 << 20;

fn limited(policy: Policy) -> (Server, ManualClock) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("a timer");
    (Server::start(timer, Bounds { max_memory: MIB, policy, ..BOUNDS }), clock)
}

#[test]
fn without_eviction_what_needs_room_is_refused() {
    let (server, clock) = limited(Policy::NoEviction);
    let mut client = server.client();
    let full = "OOM command not allowed when used memory > 'maxmemory'.";
    let value = "x".repeat(10_000);
    let set = |client: &mut _, key: usize| told(client, &format!("set {key} {value} px 1000"));
    let fits = (0..200).take_while(|key| set(&mut client, *key) == "OK").count();
    assert!((90..=105).contains(&fits), "{fits}");
    for line in ["set a 1", "setex a 9 1", "mset a 1", "incr a", "append 0 x", "getset 0 x"] {
        assert_eq!(told(&mut client, line), full, "{line}");
    }
    for line in ["multi", "set a 1", "exec", "get none"] {
        ask(&mut client, line).ok();
    }
    let kept = [("strlen 0", "10000"), ("pexpire 0 500", "1"), ("exists a", "0")];
    for (line, reply) in kept {
        assert_eq!(told(&mut client, line), reply);
    }
    assert_eq!(told(&mut client, "del 1 2 3"), "3");
    assert_eq!(told(&mut client, "set a 1"), "OK");
    clock.advance(Duration::from_secs(1));
    server.shared.timer.advance_clock(Duration::ZERO);
    assert_eq!(server.shared.store.len(), 1);
    assert_eq!(told(&mut client, "flushall"), "OK");
    assert_eq!(server.shared.store.tally().bytes(), 0);
}

/// Those that would expire soonest go; those without a deadline stay.
#[test]
fn with_volatile_ttl_those_that_expire_soonest_go() {
    let (server, _clock) = limited(Policy::VolatileTtl);
    let mut client = server.client();
    let value = "x".repeat(1_000);
    for key in 0..100 {
        assert_eq!(told(&mut client, &format!("set kept:{key} {value}")), "OK");
    }
    for key in 0..3_000 {
        let line = format!("set {key} {value} px {}", 1_000_000 + key * 1000);
        assert_eq!(told(&mut client, &line), "OK");
        assert!(server.shared.store.tally().bytes() <= MIB + 2_000);
    }
    let evicted = server.shared.memory.evicted();
    assert_eq!(usize::try_from(evicted).unwrap(), 3_100 - server.shared.store.len());
    let kept = (0..100).map(|key| told(&mut client, &format!("exists kept:{key}")));
    assert!(kept.into_iter().all(|reply| reply == "1"), "keys without a deadline have gone");
    let mut late = 0;
    for key in 2_000..3_000 {
        late += u32::from(told(&mut client, &format!("exists {key}")) == "1");
    }
    assert!(late > 600, "only {late} of those that expire last are left");
    // When there is nothing that may go, it is as without eviction.
    for key in 0..2_000 {
        ask(&mut client, &format!("set more:{key} {value}")).ok();
    }
    assert_eq!(server.shared.store.tally().deadlines(), 0);
    assert!(told(&mut client, "set a 1").starts_with("OOM "));
}

#[test]
fn what_a_key_takes_is_counted_whatever_becomes_of_it() {
    let (server, clock) = limited(Policy::NoEviction);
    let mut client = server.client();
    let tally = server.shared.store.tally();
    told(&mut client, "set abc 12345 px 10");
    let one = tally.bytes();
    for (line, more) in [
        ("set abc 1234567", 2),
        ("append abc 89", 4),
        ("set abc 1", -4),
        ("incrby abc 999", -1),
        ("rename abc ab", -2),
        ("pexpire ab 100", -2),
    ] {
        told(&mut client, line);
        assert_eq!(tally.bytes() as i64 - one as i64, more, "{line}");
    }
    clock.advance(Duration::from_millis(100));
    server.shared.timer.advance_clock(Duration::ZERO);
    assert_eq!(tally.bytes(), 0);
    for end in ["getdel a", "unlink a", "getex a pxat 1", "flushdb", "expire a -1"] {
        told(&mut client, "set a 1 px 100");
        told(&mut client, end);
        assert_eq!((tally.bytes(), tally.deadlines()), (0, 0), "{end}");
    }
}
