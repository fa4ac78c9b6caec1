//! Locks against a real Redis that forgets, hangs, and gives locks to others.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_services::locks::server::RedisServer;
use tickwheel_services::locks::{Lock, Locks};

/// Only a bug takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
const S: Duration = Duration::from_secs(1);

/// A server, a process' locks, and those that were lost.
struct Fixture {
    locks: Locks,
    lost: Receiver<String>,
    timer: Timer,
    server: RedisServer,
}

impl Fixture {
    fn new(lease: Duration) -> Self {
        let (server, timer) = (RedisServer::start().unwrap(), Timer::builder().start().unwrap());
        let (locks, lost) = locks(&timer, &server, lease);
        Fixture { locks, lost, timer, server }
    }

    fn take(&self, count: usize) -> Vec<Lock> {
        let take = |number| self.locks.try_lock(&format!("lock:{number}"));
        (0..count).map(|number| take(number).unwrap().expect("it is free")).collect()
    }

    /// Waits until so many locks were lost; each once.
    fn wait_for_losses(&self, count: usize) {
        let mut names = HashSet::new();
        while names.len() < count {
            let name = self.lost.recv_timeout(PATIENCE).expect("it is lost");
            assert!(names.insert(name), "a lock is lost twice");
        }
        assert_eq!(self.lost.recv_timeout(S).ok(), None, "a lock is lost twice");
    }

    fn redis(&self, command: &[&str]) -> Option<String> {
        let mut connection = self.server.client().get_connection().unwrap();
        redis::cmd(command[0]).arg(&command[1..]).query(&mut connection).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.server.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

fn locks(timer: &Timer, server: &RedisServer, lease: Duration) -> (Locks, Receiver<String>) {
    let (sender, lost) = channel();
    let tell = move |name: &str| drop(sender.send(name.to_owned()));
    (Locks::new(timer, &server.client(), lease, tell), lost)
}

fn wait_until(what: &str, so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_lock_outlasts_its_lease_and_is_given_back() {
    let fixture = Fixture::new(3 * S);
    let (rivals, _) = locks(&fixture.timer, &fixture.server, 3 * S);
    let lock = fixture.locks.try_lock("lock").unwrap().expect("it is free");
    wait_until("a lease is over", || fixture.locks.counts().renewed >= 5);
    assert!(lock.is_held() && rivals.try_lock("lock").unwrap().is_none());
    assert!(lock.unlock().unwrap());
    let rival = rivals.try_lock("lock").unwrap().expect("it was given back");
    assert!(rival.is_held());
    assert_eq!(fixture.lost.try_recv().ok(), None);
}

#[test]
fn what_somebody_else_holds_is_neither_renewed_nor_given_back() {
    let fixture = Fixture::new(3 * S);
    let locks = fixture.take(2);
    fixture.redis(&["SET", "lock:0", "rival", "PX", "2000"]);
    fixture.wait_for_losses(1);
    let [lost, kept]: [Lock; 2] = locks.try_into().ok().unwrap();
    assert!(!lost.is_held() && kept.is_held());
    // Taken by force a moment before it is given back: the watchdog can't know.
    fixture.redis(&["SET", "lock:1", "rival"]);
    assert_eq!([lost.unlock().unwrap(), kept.unlock().unwrap()], [false; 2]);
    assert_eq!(fixture.redis(&["GET", "lock:1"]).as_deref(), Some("rival"));
    wait_until("the rival's lease is over", || fixture.redis(&["GET", "lock:0"]).is_none());
}

#[test]
fn a_server_that_forgets_all_locks_loses_each_once() {
    let mut fixture = Fixture::new(9 * S);
    let locks = fixture.take(500);
    fixture.server.crash().unwrap();
    fixture.server.restart().unwrap();
    fixture.wait_for_losses(500);
    assert!(locks.iter().all(|lock| !lock.is_held()));
}

#[test]
fn a_server_that_hangs_costs_its_locks_once_and_then_they_are_free() {
    let fixture = Fixture::new(2 * S);
    let locks = fixture.take(500);
    fixture.signal(Signal::STOP);
    wait_until("a renewal fails", || fixture.locks.counts().failed > 0);
    fixture.wait_for_losses(500);
    assert!(locks.iter().all(|lock| !lock.is_held()));

    fixture.signal(Signal::CONT);
    let renewed = fixture.locks.counts().renewed;
    wait_until("it is free", || match fixture.locks.try_lock("lock:0") {
        Ok(Some(lock)) => {
            wait_until("it is renewed", || fixture.locks.counts().renewed > renewed);
            lock.unlock().unwrap()
        }
        _ => false,
    });
}

#[test]
fn a_server_that_was_restarted_costs_nothing() {
    let mut fixture = Fixture::new(9 * S);
    let locks = fixture.take(500);
    fixture.server.stop().unwrap();
    wait_until("renewals fail", || fixture.locks.counts().failed > 0);
    fixture.server.restart().unwrap();
    wait_until("all are renewed", || fixture.locks.counts().renewed >= 500);
    assert!(locks.into_iter().all(|lock| lock.unlock().unwrap()));
    assert_eq!(fixture.lost.try_recv().ok(), None);
}
