//! Locks against a real Redis that forgets, hangs, and gives locks to others, in virtual time.

use rustix::process::Signal;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_services::locks::{Lock, Locks};
use tickwheel_services::{RedisServer, happens};

/// So long that nothing runs out in Redis, whose clock is real.
const LEASE: Duration = Duration::from_secs(3600);

/// A server, a process' locks, and those that were lost.
struct Fixture {
    locks: Locks,
    lost: Receiver<String>,
    clock: ManualClock,
    timer: Timer,
    server: RedisServer,
}

impl Fixture {
    fn new() -> Self {
        let server = RedisServer::start().unwrap();
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let (locks, lost) = locks(&timer, &server);
        Fixture {
            locks,
            lost,
            clock,
            timer,
            server,
        }
    }

    fn take(&self, count: usize) -> Vec<Lock> {
        let take = |number| self.locks.try_lock(&format!("lock:{number}"));
        (0..count)
            .map(|number| take(number).unwrap().expect("it is free"))
            .collect()
    }

    /// Lets so many twelfths of a lease pass. Renewals begin after four.
    fn pass(&self, twelfths: u32) {
        self.clock.advance(LEASE / 12 * twelfths);
        while self.timer.advance_clock(Duration::ZERO) > 0 {}
    }

    /// Waits until so many were renewed, and failed to be.
    fn wait_for(&self, renewed: u64, failed: u64) {
        let counts = || {
            let counts = self.locks.counts();
            (counts.renewed.load(Relaxed), counts.failed.load(Relaxed))
        };
        assert!(happens(|| counts() == (renewed, failed)), "{:?}", counts());
    }

    /// Waits until so many locks were lost, and each once.
    fn wait_for_losses(&self, count: usize) {
        let mut lost = Vec::new();
        // What another thread has found to be lost, this one hands over.
        assert!(happens(|| {
            self.pass(0);
            lost.extend(self.lost.try_iter());
            lost.len() >= count
        }));
        let names: HashSet<_> = lost.iter().collect();
        assert_eq!((lost.len(), names.len()), (count, count));
    }

    fn redis<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = self.server.client().unwrap().get_connection().unwrap();
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
            .unwrap()
    }
}

fn locks(timer: &Timer, server: &RedisServer) -> (Locks, Receiver<String>) {
    let (sender, lost) = channel();
    let tell = move |name: &str| drop(sender.send(name.to_owned()));
    (
        Locks::new(timer, &server.client().unwrap(), LEASE, tell),
        lost,
    )
}

#[test]
fn a_lock_outlasts_its_lease_and_is_given_back() {
    let fixture = Fixture::new();
    let (rivals, _) = locks(&fixture.timer, &fixture.server);
    let lock = fixture
        .locks
        .try_lock("lock:0")
        .unwrap()
        .expect("it is free");
    for renewed in 1..=4 {
        fixture.redis::<()>(&["PEXPIRE", "lock:0", "1000000"]);
        fixture.pass(4);
        fixture.wait_for(renewed, 0);
        assert!(fixture.redis::<u64>(&["PTTL", "lock:0"]) > 1_000_000);
    }
    assert!(lock.is_held() && rivals.try_lock("lock:0").unwrap().is_none());
    assert!(lock.unlock().unwrap());
    assert!(
        rivals
            .try_lock("lock:0")
            .unwrap()
            .expect("it was given back")
            .is_held()
    );
    assert_eq!(fixture.lost.try_recv().ok(), None);
}

#[test]
fn what_somebody_else_holds_is_neither_renewed_nor_given_back() {
    let fixture = Fixture::new();
    let [lost, kept]: [Lock; 2] = fixture.take(2).try_into().ok().unwrap();
    fixture.redis::<()>(&["SET", "lock:0", "rival"]);
    fixture.pass(4);
    fixture.wait_for(1, 0);
    fixture.wait_for_losses(1);
    assert!(!lost.is_held() && kept.is_held());
    // Taken by force a moment before it is given back: the watchdog can't know.
    fixture.redis::<()>(&["SET", "lock:1", "rival"]);
    assert_eq!([lost.unlock().unwrap(), kept.unlock().unwrap()], [false; 2]);
    for lock in ["lock:0", "lock:1"] {
        assert_eq!(fixture.redis::<String>(&["GET", lock]), "rival");
        assert_eq!(fixture.redis::<i64>(&["PTTL", lock]), -1, "it was renewed");
    }
}

#[test]
fn a_server_that_forgets_all_locks_loses_each_once() {
    let mut fixture = Fixture::new();
    let locks = fixture.take(500);
    fixture.server.restart().unwrap();
    fixture.pass(4);
    fixture.wait_for_losses(500);
    assert!(locks.iter().all(|lock| !lock.is_held()));
    fixture.pass(24);
    assert_eq!(fixture.lost.try_recv().ok(), None);
}

#[test]
fn a_server_that_hangs_costs_its_locks_once_and_then_they_are_free() {
    let fixture = Fixture::new();
    let locks = fixture.take(500);
    fixture.server.signal(Signal::STOP).unwrap();
    fixture.pass(12);
    fixture.wait_for_losses(500);
    assert!(locks.iter().all(|lock| !lock.is_held()));

    fixture.server.signal(Signal::CONT).unwrap();
    fixture.redis::<()>(&["FLUSHALL"]); // As if they had run out there.
    let lock = fixture
        .locks
        .try_lock("lock:0")
        .unwrap()
        .expect("it is free");
    assert!(lock.is_held() && lock.unlock().unwrap());
}

#[test]
fn a_server_that_was_restarted_costs_nothing() {
    let mut fixture = Fixture::new();
    let locks = fixture.take(500);
    fixture.server.stop().unwrap();
    fixture.pass(4);
    fixture.wait_for(0, 500);
    fixture.server.restart().unwrap();
    fixture.pass(1);
    fixture.wait_for(500, 500);
    assert!(locks.into_iter().all(|lock| lock.unlock().unwrap()));
    assert_eq!(fixture.lost.try_recv().ok(), None);
}
