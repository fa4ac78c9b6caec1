//! Keys that are set anew while they expire.

mod common;

use common::{Server, until};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use tickwheel_ttlstore::shared::Shared;

const THREADS: usize = 4;
const ROUNDS: usize = 3000;
const KEYS: usize = 8;

fn set(shared: &Shared, key: &[u8], ttl_ms: Option<i64>) {
    let now = shared.now();
    let deadline = ttl_ms.map(|ttl_ms| now.after_ms(ttl_ms));
    shared.store.lock(key, now.instant).set(b"value", deadline).expect("there is room");
}

/// The alarm has taken the key's timer out, and waits for the key's lock: what is set meanwhile has
/// the deadline that it is given, or none.
#[test]
fn an_alarm_on_its_way_leaves_the_new_value_alone() {
    let ms = Duration::from_millis(1);
    for ttl_ms in [None, Some(500)] {
        let (server, clock) = Server::manual();
        let (shared, timer) = (&server.shared, &server.shared.timer);
        set(shared, b"key", Some(10));
        let now = shared.now();
        let mut slot = shared.store.lock(b"key", now.instant);
        clock.advance(10 * ms);
        thread::scope(|scope| {
            let reaper = scope.spawn(|| timer.advance_clock(Duration::ZERO));
            until("the alarm is on its way", || shared.store.deadlines() == 0);
            slot.set(b"new", ttl_ms.map(|ttl_ms| now.after_ms(ttl_ms))).expect("there is room");
            drop(slot);
            assert_eq!(reaper.join().expect("no panic"), 1);
        });
        assert_eq!((shared.store.len(), shared.store.expired()), (1, 0), "{ttl_ms:?}");
        clock.advance(500 * ms);
        timer.advance_clock(Duration::ZERO);
        assert_eq!(shared.store.is_empty(), ttl_ms.is_some(), "{ttl_ms:?}");
    }
}

/// Runs `body` on all threads, from the same moment on.
fn race(body: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (body, barrier) = (&body, &barrier);
            scope.spawn(move || {
                barrier.wait();
                body(thread);
            });
        }
    });
}

/// Short TTLs, each of which ends as the next one begins; then none.
#[test]
fn the_expiry_of_a_former_value_never_takes_the_new_one() {
    let server = Server::real();
    let shared = &server.shared;
    race(|thread| {
        for round in 0..ROUNDS {
            // Each thread has its own keys, which all are of a few shards.
            let key = format!("{thread}:{}", round % KEYS);
            set(shared, key.as_bytes(), Some(1));
            if round % 16 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            set(shared, key.as_bytes(), None);
            let stays = || shared.store.lock(key.as_bytes(), shared.now().instant);
            assert!(stays().value().is_some(), "{key} was set for good");
            set(shared, key.as_bytes(), Some(1 + (round % 2) as i64));
        }
        for key in 0..KEYS {
            set(shared, format!("{thread}:{key}").as_bytes(), None);
        }
    });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(server.shared.store.len(), THREADS * KEYS);
    assert!(server.shared.store.expired() > 0, "nothing met");
    assert!(server.shared.timer.is_empty());
}

/// All threads use the same keys: each key vanishes in the end, with its alarm.
#[test]
fn whoever_set_it_last_it_vanishes() {
    let server = Server::real();
    let shared = &server.shared;
    race(|thread| {
        for round in 0..ROUNDS {
            let key = format!("{}", round % KEYS);
            let key = key.as_bytes();
            match (round + thread) % 4 {
                0 => set(shared, key, None),
                1 => drop(shared.store.lock(key, shared.now().instant).remove()),
                2 if round % 64 == 2 => shared.store.flush(),
                _ => set(shared, key, Some(1)),
            }
        }
    });
    for key in 0..KEYS {
        set(&server.shared, key.to_string().as_bytes(), Some(5));
    }
    until("all expire", || server.shared.store.is_empty());
    until("no alarm is left", || server.shared.timer.is_empty());
}
