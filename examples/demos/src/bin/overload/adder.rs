//! The threads that add.

use crate::options::Load;
use crate::service::{CAPACITY, Pace};
use crate::system::{MAX_PENDING, System};
use demos::random::Random;
use std::ops::AddAssign;
use std::thread;
use std::time::{Duration, Instant};

/// Slots of a thread in the ledger: as many as can be pending, or be on their way.
pub(crate) const SLOTS: usize = MAX_PENDING + 10_000;

/// What the threads did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) offered: u64,
    /// There were as many pending as may be.
    pub(crate) refused: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.offered += other.offered;
        self.refused += other.refused;
    }
}

/// Adds with all threads until the end.
pub(crate) fn add(system: &System, threads: usize, load: Load, until: Instant) -> Tally {
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let thread =
            |number| scope.spawn(move || add_alone(system, (number, threads), load, until));
        let threads: Vec<_> = (0..threads).map(thread).collect();
        for thread in threads {
            tally += thread.join().expect("a thread that adds does not panic");
        }
    });
    tally
}

fn add_alone(
    system: &System,
    (number, threads): (usize, usize),
    load: Load,
    until: Instant,
) -> Tally {
    let (mut tally, mut random, mut next) = (Tally::default(), Random::new(number as u64), 0);
    let mut pace = match load {
        Load::Times(times) => Some(Pace::new(times * CAPACITY / threads as f64)),
        Load::FlatOut => None,
    };
    loop {
        if let Some(pace) = &mut pace {
            pace.wait();
        }
        let now = Instant::now();
        if now >= until {
            return tally;
        }
        let deadline = now + Duration::from_micros(10_000 + random.below(40_000));
        // Some slots are taken still when their turn comes again; there are more than can be.
        let request = loop {
            next = (next + 1) % SLOTS;
            if let Some(request) = system.expiry.ledger.open(number * SLOTS + next, deadline) {
                break request;
            }
        };
        tally.offered += 1;
        tally.refused += u64::from(!system.add(request, deadline));
    }
}
