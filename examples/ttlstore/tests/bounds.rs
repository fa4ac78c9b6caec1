//! What connections may hold: replies that nobody reads, halves of requests, events.

mod common;

use common::{BOUNDS, Server, connect, told, until};
use std::io::Write;
use std::thread;
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_ttlstore::shared::Bounds;

const MIB: usize = 1 << 20;

fn start(bounds: Bounds) -> Server {
    Server::start(Timer::builder().start().expect("a timer"), bounds)
}

/// 60 clients that ask for what they never read: what they hold stays within the budget, they are
/// cut, and others are served.
#[test]
fn those_who_never_read_are_cut_when_they_hold_too_much() {
    let bounds = Bounds { max_clients: 100, max_held: 8 * MIB, ..BOUNDS };
    let server = start(bounds);
    let mut client = server.client();
    told(&mut client, &format!("set large {}", "x".repeat(1_000_000)));
    let greedy: Vec<_> = (0..60)
        .map(|_| {
            let raw = server.raw();
            let mut writer = raw.0.try_clone().expect("a connection");
            thread::spawn(move || {
                // Fails when it is cut.
                let _ = writer.write_all(&b"get large\r\n".repeat(200));
            });
            raw
        })
        .collect();
    until("they are cut", || server.shared.seats.cut() >= 40);
    assert!(server.shared.seats.held() <= bounds.max_held, "{}", server.shared.seats.held());
    assert_eq!(told(&mut client, "ping"), "PONG");
    drop(greedy);
    until("nothing is held", || server.shared.seats.held() == 0);
}

/// Halves of requests count as well.
#[test]
fn those_who_never_end_their_requests_are_cut_when_they_hold_too_much() {
    let server = start(Bounds { max_held: 3 * MIB, ..BOUNDS });
    let mut halves: Vec<_> = (0..8)
        .map(|_| {
            let mut raw = server.raw();
            raw.send(b"*2\r\n$3\r\nGET\r\n$1000000\r\n");
            raw.send(&vec![b'x'; 900_000]);
            raw
        })
        .collect();
    until("some are cut", || server.shared.seats.cut() >= 4);
    assert_eq!(told(&mut server.client(), "ping"), "PONG");
    // Those that are left get their reply.
    let kept = halves.iter_mut().filter_map(|raw| {
        raw.send(&[b'x'; 100_000]);
        raw.send(b"\r\nquit\r\n");
        raw.rest().starts_with("$-1\r\n").then_some(())
    });
    assert!(kept.count() > 0, "all were cut");
}

#[test]
fn a_reply_that_is_too_large_ends_the_connection() {
    let server = start(Bounds { max_reply: 3 * MIB, ..BOUNDS });
    let mut client = server.client();
    for key in 0..4 {
        told(&mut client, &format!("set {key} {}", "x".repeat(1_000_000)));
    }
    let mget = [b"mget".to_vec(), b" 1 2 3 0".repeat(100), b"\r\n".to_vec()].concat();
    let exec = [b"multi\r\n".to_vec(), b"get 1\r\n".repeat(10), b"exec\r\n".to_vec()].concat();
    for request in [mget, exec] {
        let mut raw = server.raw();
        raw.send(&request);
        let rest = raw.rest();
        assert!(rest.len() < 3 * MIB, "{} bytes came", rest.len());
    }
    assert_eq!(server.shared.seats.cut(), 2);
    assert_eq!(told(&mut client, "exists 0 1 2 3"), "4");
}

#[test]
fn one_who_takes_nothing_for_long_is_cut() {
    let server = start(Bounds { max_stall: Duration::from_millis(50), ..BOUNDS });
    told(&mut server.client(), &format!("set large {}", "x".repeat(1_000_000)));
    let mut raw = server.raw();
    raw.send(&b"get large\r\n".repeat(50));
    until("it is cut", || server.shared.seats.cut() == 1);
    until("it is gone", || server.shared.seats.open() == 0);
}

#[test]
fn a_transaction_is_no_larger_than_its_replies_may_be() {
    let server = start(Bounds { max_reply: MIB, ..BOUNDS });
    let mut raw = server.raw();
    raw.send(b"multi\r\n");
    let value = "x".repeat(200_000);
    for _ in 0..10 {
        let request = format!("*3\r\n$3\r\nset\r\n$1\r\na\r\n$200000\r\n{value}\r\n");
        raw.send(request.as_bytes());
    }
    raw.send(b"exec\r\nquit\r\n");
    let rest = raw.rest();
    assert!(rest.contains("-ERR the transaction is too large\r\n"), "{rest}");
    assert!(rest.contains("-EXECABORT "), "{rest}");
    assert_eq!(server.shared.store.len(), 0);
}

/// The error arrives, though the client has not read while it sent: all that it sends is taken.
#[test]
fn a_request_that_is_too_large_is_answered() {
    let server = start(BOUNDS);
    for size in [2 * MIB, 20 * MIB] {
        let mut raw = server.raw();
        raw.send(format!("*2\r\n$4\r\nECHO\r\n${size}\r\n").as_bytes());
        raw.0.write_all(&vec![b'x'; size]).expect("it is taken");
        raw.0.write_all(b"\r\n*1\r\n$4\r\nPING\r\n").expect("it is taken");
        assert_eq!(raw.rest(), "-ERR Protocol error: invalid bulk length\r\n");
    }
    // Each word fits, but not all of them.
    let mut raw = server.raw();
    raw.send(b"*100\r\n");
    for _ in 0..100 {
        let word = [&b"$100000\r\n"[..], &[b'x'; 100_000], b"\r\n"].concat();
        raw.0.write_all(&word).expect("it is taken");
    }
    assert_eq!(raw.rest(), "-ERR Protocol error: request too large\r\n");
}

#[test]
fn what_a_browser_sends_is_not_answered() {
    let server = start(BOUNDS);
    for line in ["POST / HTTP/1.1", "Host: localhost:6380", "host: x"] {
        let mut raw = server.raw();
        raw.send(format!("{line}\r\nset a 1\r\n").as_bytes());
        assert_eq!(raw.rest(), "", "{line}");
    }
    assert_eq!(told(&mut server.client(), "exists a"), "0");
}

/// A thousand subscribers or none: what expires is put into one queue.
#[test]
fn the_timers_thread_does_the_same_work_however_many_listen() {
    const KEYS: u64 = 10_000;
    const SUBSCRIBERS: u64 = 200;
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("a timer");
    let bounds = Bounds { max_clients: 1000, ..BOUNDS };
    // No server runs, so that nobody but this thread hands anything on.
    let shared = tickwheel_ttlstore::shared::Shared::new(timer.clone(), timer.clone(), bounds);
    let places: Vec<_> =
        (0..SUBSCRIBERS).map(|_| shared.seats.admit(None, timer.now()).expect("a place")).collect();
    let subscriptions: Vec<_> =
        places.iter().map(|place| shared.events.subscribe(&place.seat)).collect();
    let now = shared.now();
    for key in 0..KEYS {
        let (key, deadline) = (key.to_string(), Some(now.after_ms(5)));
        shared.store.slot(key.as_bytes(), now.instant).set(b"1", deadline).expect("there is room");
    }
    clock.advance(Duration::from_millis(5));
    timer.advance_clock(Duration::ZERO);
    assert_eq!(shared.store.tally().expired(), KEYS);
    assert_eq!(shared.events.handed(), 0, "the timer's thread has handed events on");
    while shared.events.hand_on() {}
    let batches = KEYS.div_ceil(256);
    assert_eq!(shared.events.handed(), SUBSCRIBERS * batches);
    drop(subscriptions);
    assert_eq!(shared.events.subscribers(), 0);
}

#[test]
fn each_subscriber_is_told_of_each_key_once_and_in_order() {
    let server = start(Bounds { max_clients: 100, ..BOUNDS });
    let mut client = connect(server.address.port(), 2);
    told(&mut client, "set before 1 px 1");
    until("it expires", || server.shared.store.tally().expired() == 1);
    let mut subscribers: Vec<_> = (0..50).map(|_| server.raw()).collect();
    for raw in &mut subscribers {
        raw.send(b"psubscribe __key*:expired other*\r\nsubscribe __keyevent@0__:expired\r\n");
        raw.expect("*3\r\n$10\r\npsubscribe\r\n$14\r\n__key*:expired\r\n:1\r\n");
        raw.expect("*3\r\n$10\r\npsubscribe\r\n$6\r\nother*\r\n:2\r\n");
        raw.expect("*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:3\r\n");
    }
    for key in 0..1000 {
        told(&mut client, &format!("set {key} 1 px {}", 20 + key / 10));
    }
    let mut orders = Vec::new();
    for raw in &mut subscribers {
        let mut keys = Vec::new();
        for _ in 0..1000 {
            keys.push(raw.event());
        }
        orders.push(keys);
    }
    assert!(orders.iter().all(|keys| *keys == orders[0]), "they hear different things");
    let mut sorted = orders[0].clone();
    sorted.sort_by_key(|key| key.parse::<u32>().expect("a number"));
    assert!(sorted.iter().enumerate().all(|(number, key)| *key == number.to_string()));
}
