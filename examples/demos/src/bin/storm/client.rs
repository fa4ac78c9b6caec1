//! The client: one thread's requests, added and cancelled as fast as it can.

use crate::options::Options;
use demos::ledger::{Ledger, Request};
use demos::random::Random;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{Cancel, Timeout, Timer, TimerEntry};

/// What a thread did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Timers added, those of the filling included.
    pub(crate) added: u64,
    pub(crate) cancelled: u64,
    /// Timers added during the storm.
    pub(crate) stormed: u64,
    /// Adds that the timer refused: it has no reason to.
    pub(crate) refused: u64,
    /// Adds that were put off because too many timers waited to expire.
    pub(crate) held_back: u64,
    pub(crate) longest_add: Duration,
    pub(crate) elapsed: Duration,
}

pub(crate) struct Client {
    timer: Timer<Request>,
    ledger: Arc<Ledger>,
    random: Random,
    /// The requests that will be answered, as a ring: the oldest is the next one.
    requests: Vec<Option<Timeout<Request>>>,
    next_request: usize,
    /// The slot of the first one in the ledger.
    first_slot: usize,
    /// The slots of the timers that are to expire, as a ring as well.
    pool: Range<usize>,
    next_in_pool: usize,
    timeout: Duration,
    longest_short: Duration,
    answered_percent: u64,
    short_period: Option<Duration>,
    /// The clock, as last read.
    now: Instant,
    tally: Tally,
}

impl Client {
    /// Allocates and touches all memory that the client needs.
    pub(crate) fn new(
        options: &Options,
        timer: Timer<Request>,
        ledger: Arc<Ledger>,
        number: usize,
    ) -> Self {
        let Range { start: first_slot, end } = requests_of(options, number);
        let pool = pool_of(options, number);
        let shorts = options.short_per_second;
        Client {
            timer,
            ledger,
            random: Random::new(options.seed.wrapping_add((number as u64) << 32)),
            requests: (first_slot..end).map(|_| None).collect(),
            next_request: 0,
            first_slot,
            next_in_pool: pool.start,
            pool,
            timeout: options.timeout(),
            longest_short: options.longest_short(),
            answered_percent: options.cancelled_percent,
            short_period: (shorts > 0).then(|| Duration::from_nanos(1_000_000_000 / shorts)),
            now: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// Takes in requests until its share is outstanding.
    pub(crate) fn fill(&mut self) {
        for _ in 0..self.requests.len() {
            self.exchange();
        }
    }

    /// Answers old requests and takes in new ones, until the end.
    pub(crate) fn storm(mut self, until: Instant) -> Tally {
        let filled = self.tally.added;
        let start = Instant::now();
        self.now = start;
        let mut next_short = start;
        while self.now < until {
            if self.random.below(100) < self.answered_percent {
                self.exchange();
            } else {
                self.leave();
            }
            if let Some(period) = self.short_period.filter(|_| next_short <= self.now) {
                next_short += period;
                self.leave();
            }
        }
        self.tally.stormed = self.tally.added - filled;
        self.tally.elapsed = self.now - start;
        self.tally
    }

    /// Answers the oldest request, and takes in one that will be answered in its turn.
    fn exchange(&mut self) {
        let place = self.next_request;
        self.next_request = if place + 1 < self.requests.len() { place + 1 } else { 0 };
        if let Some(timeout) = self.requests[place].take() {
            // It has expired if timeouts are shorter than the turn: then the executor settles it.
            if let Cancel::Cancelled(request) = timeout.cancel() {
                self.tally.cancelled += u64::from(self.ledger.settle(request));
            }
        }
        self.requests[place] = self.add(self.first_slot + place, self.timeout);
    }

    /// Adds a timer that nobody will cancel: a request that stays unanswered, or a short timer.
    fn leave(&mut self) {
        let slot = self.next_in_pool;
        self.next_in_pool = if slot + 1 < self.pool.end { slot + 1 } else { self.pool.start };
        let shortest = Duration::from_millis(1);
        let range = self.longest_short.saturating_sub(shortest).as_nanos() as u64;
        let timeout = shortest + Duration::from_nanos(self.random.below(range + 1));
        let _ = self.add(slot, timeout); // Without the handle: that leaves the timer alone.
    }

    /// Adds a timer and takes the time of that. `None` if the slot's last timer is pending still.
    fn add(&mut self, slot: usize, timeout: Duration) -> Option<Timeout<Request>> {
        let before = Instant::now();
        self.now = before;
        let deadline = before + timeout;
        let Some(request) = self.ledger.open(slot, deadline) else {
            self.tally.held_back += 1;
            thread::yield_now();
            return None;
        };
        let added = self.timer.add(TimerEntry::at(deadline, request));
        self.now = Instant::now();
        self.tally.longest_add = self.tally.longest_add.max(self.now - before);
        match added {
            Ok(timeout) => {
                self.tally.added += 1;
                Some(timeout)
            }
            Err(error) => {
                self.ledger.settle(error.into_entry().into_task());
                self.tally.refused += 1;
                None
            }
        }
    }
}

impl Tally {
    pub(crate) fn total(tallies: Vec<Tally>) -> Tally {
        tallies.into_iter().fold(Tally::default(), |sum, tally| Tally {
            added: sum.added + tally.added,
            cancelled: sum.cancelled + tally.cancelled,
            stormed: sum.stormed + tally.stormed,
            refused: sum.refused + tally.refused,
            held_back: sum.held_back + tally.held_back,
            longest_add: sum.longest_add.max(tally.longest_add),
            elapsed: sum.elapsed.max(tally.elapsed),
        })
    }
}

/// Returns the slots of a thread's requests. Those of all threads come first, then the pools.
fn requests_of(options: &Options, number: usize) -> Range<usize> {
    let first =
        |number| (options.outstanding() as u64 * number / options.threads() as u64) as usize;
    first(number as u64)..first(number as u64 + 1)
}

/// Returns the slots of a thread's timers that are to expire.
pub(crate) fn pool_of(options: &Options, number: usize) -> Range<usize> {
    let start = options.outstanding() + number * options.pool();
    start..start + options.pool()
}
