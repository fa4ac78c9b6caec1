//! Threads that take, ask for, release and answer the same few leases on a reaper, whose timer is
//! shut down or dropped meanwhile.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tickwheel::{Task, Timer, Worker};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};

const THREADS: u64 = 4;
const STEPS: u64 = 300;

#[derive(Default)]
struct Seen {
    late: Mutex<Vec<Renewal<u64>>>,
    lost: AtomicU64,
}

/// Answers by the key, some of them later and from another thread.
struct Store(Arc<Seen>);

impl LeaseStore<u64> for Store {
    fn renew(&self, batch: Vec<Renewal<u64>>) {
        for renewal in batch {
            match renewal.key() % 4 {
                0 => renewal.renewed(),
                1 => renewal.gone(),
                2 => renewal.failed(),
                _ => self.0.late.lock().unwrap().push(renewal),
            }
        }
    }

    fn lost(&self, _: u64) {
        self.0.lost.fetch_add(1, SeqCst);
    }
}

fn step(leases: &Leases<u64>, seen: &Seen, step: u64) {
    let Ok(lease) = leases.hold(step % 8) else {
        return;
    };
    match step / 8 % 4 {
        0 => drop(lease.release()),
        1 => std::mem::forget(lease),
        _ => {
            thread::sleep(Duration::from_micros(step % 50 * 20));
            let was_held = lease.is_held();
            assert!(!lease.release() || was_held, "it came back");
        }
    }
    let late = seen.late.lock().unwrap().pop();
    late.into_iter().for_each(|late| {
        if step % 2 == 0 {
            late.renewed()
        } else {
            late.gone()
        }
    });
}

fn round(number: u64) {
    let builder = Timer::builder().tick(Duration::from_micros(50));
    let timer = match number % 2 {
        0 => builder.start(),
        _ => builder
            .executor(Worker::unbounded("rounds", Task::run).unwrap())
            .start(),
    }
    .unwrap();
    let seen = Arc::<Seen>::default();
    let terms = LeaseTerms::new(Duration::from_micros(600)).batch_size(3);
    let leases = Leases::new(&timer, terms, Store(Arc::clone(&seen)));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let leases = leases.clone();
            let seen = &seen;
            scope.spawn(move || (0..STEPS).for_each(|at| step(&leases, seen, at * 7 + thread)));
        }
        if number % 4 < 2 {
            thread::sleep(Duration::from_millis(2));
            drop(timer.shutdown());
        }
    });
    seen.late.lock().unwrap().clear();
    while !leases.is_empty() {
        thread::yield_now(); // What is renewed for ever is taken again, and released.
        (0..8).for_each(|key| drop(leases.hold(key)));
    }
    let stats = leases.stats();
    assert_eq!(stats.taken, stats.released + stats.lost, "{number}");
    while seen.lost.load(SeqCst) < stats.lost {
        thread::yield_now(); // It is being reported.
    }
    drop((timer, leases));
    assert_eq!(seen.lost.load(SeqCst), stats.lost, "{number}");
    assert_eq!(Arc::strong_count(&seen), 1, "the store has gone");
}

#[test]
fn every_lease_that_is_taken_is_released_or_lost_once() {
    (0..8).for_each(round);
}
