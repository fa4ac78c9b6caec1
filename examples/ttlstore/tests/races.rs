//! Keys that are set anew while they expire.

mod common;

use common::{BOUNDS, Server, until};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;
use tickwheel::{ManualClock, Task, Timer};
use tickwheel_ttlstore::shared::Shared;

const THREADS: usize = 4;
const ROUNDS: usize = 3000;
const KEYS: usize = 8;

fn set(shared: &Shared, key: &[u8], ttl_ms: Option<i64>) {
    let now = shared.now();
    let deadline = ttl_ms.map(|ttl_ms| now.after_ms(ttl_ms));
    shared.store.slot(key, now.instant).set(b"value", deadline).expect("there is room");
}

/// The executor has the alarm already: what is set meanwhile has the deadline that it is given, or
/// none.
#[test]
fn an_alarm_on_its_way_leaves_the_new_value_alone() {
    let ms = Duration::from_millis(1);
    for ttl_ms in [None, Some(500)] {
        let clock = ManualClock::new();
        let (sender, alarms) = mpsc::channel::<Task>();
        let timer = Timer::builder()
            .clock(clock.clone())
            .executor(move |alarm| sender.send(alarm).map_err(|error| error.0))
            .build()
            .expect("a timer");
        let server = Server::start(timer, BOUNDS);
        let (shared, timer) = (&server.shared, &server.shared.timer);
        let run = || {
            timer.advance_clock(Duration::ZERO);
            alarms.try_iter().map(Task::run).count()
        };
        set(shared, b"key", Some(10));
        set(shared, b"seen", Some(10));
        clock.advance(5 * ms);
        let before = shared.now();
        clock.advance(5 * ms);
        timer.advance_clock(Duration::ZERO);
        // By one who has not looked at the clock since, so that the former value has not expired.
        let deadline = ttl_ms.map(|ttl_ms| before.after_ms(ttl_ms));
        shared.store.slot(b"key", before.instant).set(b"new", deadline).expect("there is room");
        // And by one who finds it expired.
        set(shared, b"seen", ttl_ms);
        assert_eq!(
            (run(), shared.store.len(), shared.store.tally().expired()),
            (2, 2, 1),
            "{ttl_ms:?}"
        );
        clock.advance(500 * ms);
        run();
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
            let found = shared.store.find(key.as_bytes(), shared.now().instant);
            assert!(found.is_some(), "{key} was set for good");
            drop(found);
            set(shared, key.as_bytes(), Some(1 + (round % 2) as i64));
        }
        for key in 0..KEYS {
            set(shared, format!("{thread}:{key}").as_bytes(), None);
        }
    });
    thread::sleep(Duration::from_millis(20));
    assert_eq!((shared.store.len(), shared.store.tally().deadlines()), (THREADS * KEYS, 0));
    assert!(shared.store.tally().expired() > 0, "nothing met");
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
                1 => {
                    if let Some(found) = shared.store.find(key, shared.now().instant) {
                        found.remove();
                    }
                }
                2 if round % 64 == 2 => shared.store.flush(),
                _ => set(shared, key, Some(1)),
            }
        }
    });
    for key in 0..KEYS {
        set(&server.shared, key.to_string().as_bytes(), Some(5));
    }
    until("all expire", || server.shared.store.is_empty());
    // The last key is gone before it is counted.
    until("all are counted", || server.shared.store.tally().deadlines() == 0);
    assert!(server.shared.timer.is_empty());
}
